"""The tables of BEM: its folder, as transformers lays it out, and its published variables by order.

The published weights are a list of 206 arrays without names: a Flax tree in alphabetical order.

    0-1       norm of the embeddings: bias, scale            n 12 heads, h 64, d 768, f 3072
    2-4       positions `p d`, segments `3 d`, tokens `v d`
    then for each of 12 layers 16 arrays: the bias before the kernel or scale of
                a norm `d`; key `n h`, `d n h`; out `d`, `n h d`; query and value as key;
                MLP up `f`, `d f`; MLP down `d`, `f d`; a norm `d`
    197-201   head of the masked language model, left aside
    202-205   pooler `d`, `d d`; classifier `2`, `d 2`

Shapes leave an `Order` open: in which order the layers stand (as text, layer_10 comes before
layer_2), which norm is the first one, and which of three arrays of one shape is the key's, the
query's and the value's. `processing/bem_conversion` finds out by scoring known pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jax.typing import DTypeLike

from jaxagent.models.bem import Model, bem_config
from jaxagent.models.bert import BertConfig
from jaxagent.trees import Params, nested
from jaxagent.weights import bert
from jaxagent.weights.bert import read_fields
from jaxagent.weights.config_file import CONFIG, write_fields
from jaxagent.weights.params import read_params, write_params
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.table import Row, rows

_EMBEDDINGS, _OF_A_LAYER, _MASKED_HEAD, _LAST = 5, 16, 5, 4
_OTHERS = _EMBEDDINGS + _MASKED_HEAD + _LAST
_HEADS = (
    ("bert.pooler.dense.weight", "pooler/kernel", "e d -> d e"),
    ("bert.pooler.dense.bias", "pooler/bias", "d -> d"),
    ("classifier.weight", "classifier/kernel", "c d -> d c"),
    ("classifier.bias", "classifier/bias", "c -> c"),
)


class BemWeights(NamedTuple):
    """What a folder holds besides its vocabulary."""

    config: BertConfig
    params: Params


class Order(NamedTuple):
    """What the shapes of the variables leave open."""

    layers: Literal["by_number", "by_text"]  # 0 1 2 .. 11, or 0 1 10 11 2 .. 9
    first_norm: Literal["attention", "mlp"]
    projections: tuple[str, str, str]  # what stands where an alphabet has k, q and v


def orders() -> list[Order]:
    """Every order, those that an alphabetical tree can have first."""
    return [
        Order(layers, first, projections)
        for projections in permutations("kqv")
        for layers in ("by_text", "by_number")
        for first in ("attention", "mlp")
    ]


def is_alphabetical(order: Order) -> bool:
    """Whether key, query and value stand in the order of their names, as Flax sorts them."""
    return order.projections == ("k", "q", "v")


def table(config: BertConfig) -> list[Row]:
    """Every row of a folder of this config."""
    within = [
        replace(row, key=f"bert.{row.key}", name=f"bert/{row.name}") for row in bert.table(config)
    ]
    return within + rows(_HEADS, "", "", {})


def read_bem(
    folder: str | Path, *, dtype: DTypeLike = "float32", shardings: Params | None = None
) -> BemWeights:
    """The config and the parameters of a folder that `write_bem` made.

    Raises ConfigError for another model and WeightsError for tensors that do not fit.
    """
    config = bem_config(read_fields(folder))
    params = read_params(
        folder,
        table(config),
        Model(config).shapes(),
        dtype=dtype,
        shardings=shardings,
        unused=(r"bert\.embeddings\.position_ids",),
    )
    return BemWeights(config, params)


def write_bem(folder: str | Path, config: BertConfig, params: Params) -> None:
    """Writes weights and config; transformers loads them as BertForSequenceClassification."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    write_params(folder, table(config), params, dtype="float32", max_bytes=4 * 2**30)
    fields = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.positions,
        "type_vocab_size": config.types,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_act": "gelu_new",
        "pad_token_id": config.pad,
        "id2label": {"0": "different", "1": "equivalent"},
        "label2id": {"different": 0, "equivalent": 1},
        "dtype": "float32",
    }
    write_fields(folder, fields, dtype="float32")


def variables_config(variables: Sequence[np.ndarray]) -> BertConfig:
    """The sizes of BEM's variables; WeightsError when they are not BEM's."""
    layers, rest = divmod(len(variables) - _OTHERS, _OF_A_LAYER)
    if rest or layers < 1:
        raise WeightsError(
            f"There are {len(variables)} variables; BEM has 206, of 12 layers. Download the model "
            "again."
        )
    positions, types, words = (variables[i].shape for i in (2, 3, 4))
    heads, up = variables[_EMBEDDINGS + 2].shape, variables[_EMBEDDINGS + 10].shape
    if not (len(positions) == len(types) == len(words) == len(heads) == 2 and len(up) == 1):
        raise WeightsError(
            f"The variables 2, 3, 4, 7 and 15 are {positions}, {types}, {words}, {heads} and {up}; "
            "BEM has tables, heads and a bias there. Download the model again."
        )
    config = BertConfig(
        vocab=words[0],
        width=words[1],
        layers=layers,
        heads=heads[0],
        mlp_width=up[0],
        positions=positions[0],
        types=types[0],
        norm_epsilon=1e-12,
        tanh_gelu=True,
    )
    _check_shapes(variables, config)
    return config


def _check_shapes(variables: Sequence[np.ndarray], config: BertConfig) -> None:
    v, d, p, f = config.vocab, config.width, config.positions, config.mlp_width
    n, h = config.heads, config.head_size
    key = [(n, h), (d, n, h)]
    layer = [(d,), (d,), *key, (d,), (n, h, d), *key, *key, (f,), (d, f), (d,), (f, d), (d,), (d,)]
    expected = [(d,), (d,), (p, d), (config.types, d), (v, d), *layer * config.layers]
    expected += [(v,), (d,), (d, d), (d,), (d,), (d,), (d, d), (2,), (d, 2)]
    problems = [
        f"variables/{i} is {variable.shape}, not {shape}"
        for i, (variable, shape) in enumerate(zip(variables, expected, strict=True))
        if variable.shape != shape
    ]
    if n * h != d:
        problems.append(f"{n} heads of {h} do not make the width {d}")
    if problems:
        raise WeightsError(
            f"The variables are not BEM's ({len(problems)} problems): {'; '.join(problems[:5])}. "
            "Download the model again."
        )


def variables_params(variables: Sequence[np.ndarray], config: BertConfig, order: Order) -> Params:
    """The parameters, read in `order`; raises nothing where `variables_config` did not."""
    last = len(variables) - _LAST
    named = {
        "bert/norm/bias": variables[0],
        "bert/norm/scale": variables[1],
        "bert/position/table": variables[2],
        "bert/type/table": variables[3],
        "bert/word/table": variables[4],
        "pooler/bias": variables[last],
        "pooler/kernel": variables[last + 1],
        "classifier/bias": variables[last + 2],
        "classifier/kernel": variables[last + 3],
    }
    places = _layer_places(config.layers, order)
    for offset, name in _layer_names(order).items():
        named[f"bert/layers/{name}"] = np.stack(
            [variables[_EMBEDDINGS + _OF_A_LAYER * place + offset] for place in places]
        )
    return nested(named)


def _layer_places(layers: int, order: Order) -> list[int]:
    """Where each layer stands in the list.

    by_text, 12 layers: layer   0 1 2 3 .. 9  10 11
                        stands  0 1 4 5 .. 11  2  3
    """
    standing = (
        list(range(layers)) if order.layers == "by_number" else sorted(range(layers), key=str)
    )
    return [standing.index(layer) for layer in range(layers)]


def _layer_names(order: Order) -> Mapping[int, str]:
    """The parameter behind each of a layer's arrays."""
    key, query, value = order.projections
    first, last = ("attention", "mlp") if order.first_norm == "attention" else ("mlp", "attention")
    parts = [
        (f"{first}_norm", "scale"),
        (key, "kernel"),
        ("o", "kernel"),
        (query, "kernel"),
        (value, "kernel"),
        ("mlp/up", "kernel"),
        ("mlp/down", "kernel"),
        (f"{last}_norm", "scale"),
    ]
    names = [name for part, second in parts for name in (f"{part}/bias", f"{part}/{second}")]
    return dict(enumerate(names))
