"""The table of BERT and XLM-RoBERTa, and the reader and writer of their Hugging Face folders.

Letters: v vocabulary, p positions, d width, n heads, h head size, f MLP width. Keys may stand
behind `bert.` or `roberta.`, as in the folder of a model with a head, and norms may be named as
TensorFlow's first release did (gamma, beta). Pooler and heads are not read.
"""

from pathlib import Path
from typing import NamedTuple

from jax.typing import DTypeLike

from jaxagent.models.bert import BertConfig, Model
from jaxagent.models.config import ConfigError, Fields
from jaxagent.trees import Params
from jaxagent.weights.config_file import CONFIG, config_fields, copy_file, write_fields
from jaxagent.weights.params import read_params, write_params
from jaxagent.weights.table import Row, rows

UNUSED = (
    r"embeddings\.position_ids",  # a buffer: 0, 1, 2, ...
    r"pooler\.dense\.(weight|bias)",
    r"(cls|lm_head|classifier|qa_outputs)\..*",
)
_OLDER_NORMS = (("gamma", "weight"), ("beta", "bias"))
RENAMES = (
    *(
        (rf"^(?:(?:bert|roberta)\.)?(.*LayerNorm)\.{old}$", rf"\1.{new}")
        for old, new in _OLDER_NORMS
    ),
    (r"^(?:bert|roberta)\.", ""),
)

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
    layers = range(config.layers)
    return [
        *rows(_EMBEDDINGS, "", "", sizes),
        *rows(_LAYER, "encoder.layer.{i}.", "layers/", sizes, layers),
    ]


def read_fields(folder: str | Path) -> Fields:
    """What the `config.json` of a folder says; ConfigError when there is none to be read."""
    return config_fields(Path(folder) / CONFIG, remedy="Point at a folder in Hugging Face format.")


def read_bert_config(folder: str | Path) -> BertConfig:
    """The config of a folder; ConfigError when there is none or it is another family's."""
    return BertConfig.from_hf(read_fields(folder))


def read_bert(
    folder: str | Path, *, dtype: DTypeLike = "float32", shardings: Params | None = None
) -> BertWeights:
    """The config and the parameters of a folder, placed by `shardings` (None: on the host).

    Raises ConfigError for another family and WeightsError for a file that is missing or torn;
    missing, unknown and mis-shaped tensors come in one message.
    """
    config = read_bert_config(folder)
    params = read_params(
        folder,
        table(config),
        Model(config).shapes(),
        dtype=dtype,
        shardings=shardings,
        unused=UNUSED,
        renames=RENAMES,
    )
    return BertWeights(config, params)


def write_bert(
    folder: str | Path,
    config: BertConfig,
    params: Params,
    *,
    template: str | Path,
    dtype: DTypeLike = "float32",
    max_bytes: int = 4 * 2**30,
) -> None:
    """Writes a folder that transformers loads: these weights, every other file from `template`.

    `template` is the folder of an encoder of the same sizes; how its vectors are pooled, its
    prefixes and its tokenizer come along. `config.json` is written last, so a folder without one is
    unfinished.
    """
    folder, template = Path(folder), Path(template)
    if read_bert_config(template) != config:
        raise ConfigError(
            f"{template} is the folder of an encoder of other sizes. Name the one that the "
            "parameters came from."
        )
    folder.mkdir(parents=True, exist_ok=True)
    fields = read_fields(template)
    if not folder.samefile(template):
        (folder / CONFIG).unlink(missing_ok=True)
        _copy_others(template, folder)
    write_params(folder, table(config), params, dtype=dtype, max_bytes=max_bytes)
    write_fields(folder, fields, dtype=dtype)


def _copy_others(template: Path, folder: Path) -> None:
    """Copies the tokenizer and what modules say of themselves, each file in one move."""
    files = [
        path
        for pattern in ("*.json", "*.txt", "*.model", "*/config.json")
        for path in template.glob(pattern)
        if path.is_file() and ".safetensors" not in path.name and path.name != "card.json"
    ]
    for path in files:
        if path == template / CONFIG:
            continue
        target = folder / path.relative_to(template)
        target.parent.mkdir(exist_ok=True)
        copy_file(path, target)
