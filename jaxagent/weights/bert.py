"""The table of BERT, and the reader of its Hugging Face folder.

Letters: v vocabulary, p positions, d width, n heads, h head size, f MLP width. The pooler is not
read.
"""

import json
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxagent.models.bert import BertConfig, Model
from jaxagent.models.config import ConfigError
from jaxagent.trees import Params, flat, nested
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.table import Row

_EMBEDDINGS = (
    ("embeddings.word_embeddings.weight", "word/table", "v d -> v d"),
    ("embeddings.position_embeddings.weight", "position/table", "p d -> p d"),
    ("embeddings.token_type_embeddings.weight", "type/table", "p d -> p d"),
    ("embeddings.LayerNorm.weight", "norm/scale", "d -> d"),
    ("embeddings.LayerNorm.bias", "norm/bias", "d -> d"),
)
_LAYER = (
    ("attention.self.query.weight", "q/kernel", "(n h) d -> d n h"),
    ("attention.self.query.bias", "q/bias", "(n h) -> n h"),
    ("attention.self.key.weight", "k/kernel", "(n h) d -> d n h"),
    ("attention.self.key.bias", "k/bias", "(n h) -> n h"),
    ("attention.self.value.weight", "v/kernel", "(n h) d -> d n h"),
    ("attention.self.value.bias", "v/bias", "(n h) -> n h"),
    ("attention.output.dense.weight", "o/kernel", "d (n h) -> n h d"),
    ("attention.output.dense.bias", "o/bias", "d -> d"),
    ("attention.output.LayerNorm.weight", "attention_norm/scale", "d -> d"),
    ("attention.output.LayerNorm.bias", "attention_norm/bias", "d -> d"),
    ("intermediate.dense.weight", "mlp/up/kernel", "f d -> d f"),
    ("intermediate.dense.bias", "mlp/up/bias", "f -> f"),
    ("output.dense.weight", "mlp/down/kernel", "d f -> f d"),
    ("output.dense.bias", "mlp/down/bias", "d -> d"),
    ("output.LayerNorm.weight", "mlp_norm/scale", "d -> d"),
    ("output.LayerNorm.bias", "mlp_norm/bias", "d -> d"),
)


class BertWeights(NamedTuple):
    """What a folder holds besides its tokenizer."""

    config: BertConfig
    params: Params


def table(config: BertConfig) -> list[Row]:
    """Every row of this config."""
    sizes = {"n": config.heads, "h": config.head_size}
    rows = [
        Row(key=key, name=name, pattern=pattern, sizes=sizes) for key, name, pattern in _EMBEDDINGS
    ]
    return rows + [
        Row(
            key=f"encoder.layer.{{i}}.{key}",
            name=f"layers/{name}",
            pattern=pattern,
            sizes=sizes,
            layers=range(config.layers),
        )
        for key, name, pattern in _LAYER
    ]


def read_bert(folder: str | Path) -> BertWeights:
    """The config and the float32 parameters of a folder.

    Raises ConfigError for another family and WeightsError for a file that is missing, torn or lacks
    tensors.
    """
    folder = Path(folder)
    try:
        config = BertConfig.from_hf(json.loads((folder / "config.json").read_text()))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ConfigError(f"{folder} holds no readable config.json ({error}).") from None
    rows = table(config)
    shapes = flat(Model(config).shapes())
    path = folder / "model.safetensors"
    try:
        with safe_open(path, framework="np") as file:
            found = set(file.keys())
            problems = [key for row in rows for key in row.hf_keys() if key not in found]
            if problems:
                raise WeightsError(f"{path} lacks {', '.join(problems)}.")
            named = {
                row.name: _parameter(row, [file.get_tensor(key) for key in row.hf_keys()])
                for row in rows
            }
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read ({error}). Install it again.") from None
    problems = [
        f"{name} is {parameter.shape}, the config expects {shapes[name].shape}"
        for name, parameter in named.items()
        if parameter.shape != shapes[name].shape
    ]
    if problems:
        raise WeightsError(f"{path} does not fit its config.json: {'; '.join(problems)}.")
    return BertWeights(config, nested({name: jnp.asarray(value) for name, value in named.items()}))


def _parameter(row: Row, tensors: list[np.ndarray]) -> np.ndarray:
    layers = [np.asarray(row.imported(tensor), np.float32) for tensor in tensors]
    return layers[0] if row.layers is None else np.stack(layers)
