"""The two tables of EVA-CLIP, and the reader and writer of its folders.

`config.json` goes with the keys of BAAI's own modelling code (8B, 8B-448, 18B),
`open_clip_config.json` with those of open_clip around timm (EVA01 g, EVA02 B, L and E).

Letters: d width, n heads, h head size, f MLP width, v vocabulary, t positions, p patches and the
class token, e embedding size; a patch is channels c, rows y, columns x.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jax.typing import DTypeLike

from jaxagent.models.config import ConfigError
from jaxagent.models.eva_clip import Model
from jaxagent.models.eva_clip_config import EvaClipConfig, LayerConfig
from jaxagent.trees import Params
from jaxagent.weights.config_file import CONFIG, config_fields, copy_file, write_fields
from jaxagent.weights.params import read_params, write_params
from jaxagent.weights.table import Line, Row, rows

HF_CONFIG, OPEN_CLIP_CONFIG = CONFIG, "open_clip_config.json"
_CONFIGS = (HF_CONFIG, OPEN_CLIP_CONFIG)
_REMEDY = "Point at a folder in the form of BAAI/EVA-CLIP-8B or of open_clip."

UNUSED = (
    r"(vision|text)_model\.embeddings\.position_ids",
    r"vision_model\..*\.rope\.freqs_(cos|sin)",
    r"visual\.trunk\.rope\..*",
    r"text\.attn_mask",
)
"""Keys that older folders hold and that the config already says."""


class EvaClipWeights(NamedTuple):
    """What a folder holds besides its tokenizer."""

    config: EvaClipConfig
    params: Params


def read_config(folder: str | Path) -> EvaClipConfig:
    """The config of a folder; ConfigError when there is none or it is another family's."""
    path = _config_path(Path(folder))
    fields = config_fields(path, remedy=_REMEDY)
    if path.name == OPEN_CLIP_CONFIG:
        return EvaClipConfig.from_open_clip(fields)
    return EvaClipConfig.from_hf(fields)


def _config_path(folder: Path) -> Path:
    """The config of a folder; where it has both, that of the Hugging Face form."""
    for name in _CONFIGS:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder} holds neither {HF_CONFIG} nor {OPEN_CLIP_CONFIG}. {_REMEDY}")


def read_eva_clip(
    folder: str | Path, *, dtype: DTypeLike = "float32", shardings: Params | None = None
) -> EvaClipWeights:
    """The config and the parameters of a folder, placed by `shardings` (None: on the host).

    Raises ConfigError or WeightsError; missing, unknown and mis-shaped tensors come in one message.
    """
    config = read_config(folder)
    params = read_params(
        folder,
        table(config),
        Model(config).shapes(),
        dtype=dtype,
        shardings=shardings,
        unused=UNUSED,
    )
    return EvaClipWeights(config, params)


def write_eva_clip(
    folder: str | Path,
    config: EvaClipConfig,
    params: Params,
    *,
    template: str | Path,
    dtype: DTypeLike = "float32",
    max_bytes: int = 4 * 2**30,
) -> None:
    """Writes a folder of the template's form: these weights, every other file from `template`.

    `dtype` is that of the files, and a `config.json` that names one names it; reading them back
    gives the rounded weights. The config is written last, so a folder without one is unfinished.
    """
    folder, template = Path(folder), Path(template)
    if read_config(template) != config:
        raise ConfigError(f"{template} is the folder of a model of other sizes.")
    present = [template / name for name in _CONFIGS if (template / name).exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if not (in_place := folder.samefile(template)):
        for name in _CONFIGS:
            (folder / name).unlink(missing_ok=True)
    write_params(folder, table(config), params, dtype=dtype, max_bytes=max_bytes)
    if not in_place:
        _copy_others(template, folder)
    for path in present:
        if path.name == HF_CONFIG:
            write_fields(folder, config_fields(path, remedy=_REMEDY), dtype=dtype)
        elif not in_place:
            copy_file(path, folder / path.name)


def _copy_others(template: Path, folder: Path) -> None:
    """Copies what holds no weights and is no config, each file in one move."""
    files = [path for path in template.iterdir() if path.is_file() and path.name not in _CONFIGS]
    for path in files:
        if not re.search(r"\.(safetensors|bin|pt)\b", path.name):
            copy_file(path, folder / path.name)


def table(config: EvaClipConfig) -> list[Row]:
    """Every row of this config, each key of its files in exactly one."""
    image, text = config.image, config.text
    if text.layer.fused:
        towers = (_OPEN_CLIP_IMAGE, _OPEN_CLIP_TEXT)
        lines = (_timm_layer(image.layer), _OPEN_CLIP_TEXT_LAYER)
        keys = ("visual.trunk.blocks.{i}.", "text.transformer.resblocks.{i}.")
    else:
        towers = (_hf_image(image.layer), _hf_text(text.layer))
        lines = (_hf_layer(image.layer), _hf_layer(text.layer))
        keys = ("vision_model.encoder.layers.{i}.", "text_model.encoder.layers.{i}.")
    made = [Row(key="logit_scale", name="log_scale", pattern="-> 1", sizes={})]
    for name, tower, whole, layer, prefix in zip(
        ("image", "text"), (image, text), towers, lines, keys, strict=True
    ):
        sizes = {"n": tower.layer.heads, "h": tower.layer.head_size, "three": 3}
        made += rows(whole, "", f"{name}/", sizes)
        made += rows(layer, prefix, f"{name}/layers/", sizes, range(tower.layers))
    return made


def _linear(key: str, name: str, pattern: str, bias: str | None) -> list[Line]:
    lines = [(f"{key}.weight", f"{name}/kernel", pattern)]
    return lines if bias is None else [*lines, (f"{key}.bias", f"{name}/bias", bias)]


def _norm(config: LayerConfig, key: str, name: str) -> list[Line]:
    lines = [(f"{key}.weight", f"{name}/scale", "d -> d")]
    return lines if config.norm == "rms" else [*lines, (f"{key}.bias", f"{name}/bias", "d -> d")]


def _apart(config: LayerConfig, keys: Iterable[str]) -> list[Line]:
    """Kernels of queries, keys and values that the files hold apart."""
    return [
        line
        for name, key, biased in zip("qkv", keys, config.qkv_biases, strict=True)
        for line in _linear(
            key, f"attention/{name}", "(n h) d -> d n h", "(n h) -> n h" if biased else None
        )
    ]


def _hf_layer(config: LayerConfig) -> list[Line]:
    gate = _linear("mlp.fc1", "mlp/gate", "f d -> d f", "f -> f") if config.gated else []
    up, down = ("mlp.fc2", "mlp.fc3") if config.gated else ("mlp.fc1", "mlp.fc2")
    inner = (
        _norm(config, "self_attn.inner_attn_ln", "attention/inner_norm")
        + _norm(config, "mlp.ffn_ln", "mlp/inner_norm")
        if config.inner_norm
        else []
    )
    return [
        *_norm(config, "layer_norm1", "attention_norm"),
        *_apart(config, [f"self_attn.{name}_proj" for name in "qkv"]),
        *_linear("self_attn.out_proj", "attention/o", "d (n h) -> n h d", "d -> d"),
        *_norm(config, "layer_norm2", "mlp_norm"),
        *gate,
        *_linear(up, "mlp/up", "f d -> d f", "f -> f"),
        *_linear(down, "mlp/down", "d f -> f d", "d -> d"),
        *inner,
    ]


def _hf_image(config: LayerConfig) -> list[Line]:
    embeddings = "vision_model.embeddings"
    return [
        (f"{embeddings}.class_embedding", "token", "d -> d"),
        (f"{embeddings}.position_embedding.weight", "position", "p d -> p d"),
        *_linear(f"{embeddings}.patch_embedding", "patch", "d c y x -> c y x d", "d -> d"),
        *_norm(config, "vision_model.post_layernorm", "norm"),
        *_linear("visual_projection", "head", "e d -> d e", "e -> e"),
    ]


def _hf_text(config: LayerConfig) -> list[Line]:
    embeddings = "text_model.embeddings"
    return [
        (f"{embeddings}.token_embedding.weight", "word/table", "v d -> v d"),
        (f"{embeddings}.position_embedding.weight", "position", "t d -> t d"),
        *_norm(config, "text_model.final_layer_norm", "norm"),
        *_linear("text_projection", "head", "e d -> d e", None),
    ]


def _timm_layer(config: LayerConfig) -> list[Line]:
    if config.fused:
        attention = [
            ("attn.qkv.weight", "attention/qkv/kernel", "(three n h) d -> d three n h"),
            ("attn.q_bias", "attention/q_bias", "(n h) -> n h"),
            ("attn.v_bias", "attention/v_bias", "(n h) -> n h"),
        ]
    else:
        attention = _apart(config, [f"attn.{name}_proj" for name in "qkv"])
    gate = _linear("mlp.fc1_g", "mlp/gate", "f d -> d f", "f -> f") if config.gated else []
    inner = (
        _norm(config, "attn.norm", "attention/inner_norm")
        + _norm(config, "mlp.norm", "mlp/inner_norm")
        if config.inner_norm
        else []
    )
    return [
        *_norm(config, "norm1", "attention_norm"),
        *attention,
        *_linear("attn.proj", "attention/o", "d (n h) -> n h d", "d -> d"),
        *_norm(config, "norm2", "mlp_norm"),
        *gate,
        *_linear("mlp.fc1_x" if config.gated else "mlp.fc1", "mlp/up", "f d -> d f", "f -> f"),
        *_linear("mlp.fc2", "mlp/down", "d f -> f d", "d -> d"),
        *inner,
    ]


_OPEN_CLIP_IMAGE = [
    ("visual.trunk.cls_token", "token", "1 1 d -> d"),
    ("visual.trunk.pos_embed", "position", "1 p d -> p d"),
    *_linear("visual.trunk.patch_embed.proj", "patch", "d c y x -> c y x d", "d -> d"),
    ("visual.trunk.norm.weight", "norm/scale", "d -> d"),
    ("visual.trunk.norm.bias", "norm/bias", "d -> d"),
    *_linear("visual.trunk.head", "head", "e d -> d e", "e -> e"),
]
_OPEN_CLIP_TEXT = [
    ("text.token_embedding.weight", "word/table", "v d -> v d"),
    ("text.positional_embedding", "position", "t d -> t d"),
    ("text.ln_final.weight", "norm/scale", "d -> d"),
    ("text.ln_final.bias", "norm/bias", "d -> d"),
    ("text.text_projection", "head/kernel", "d e -> d e"),
]
_OPEN_CLIP_TEXT_LAYER = [
    ("ln_1.weight", "attention_norm/scale", "d -> d"),
    ("ln_1.bias", "attention_norm/bias", "d -> d"),
    ("attn.in_proj_weight", "attention/qkv/kernel", "(three n h) d -> d three n h"),
    ("attn.in_proj_bias", "attention/qkv/bias", "(three n h) -> three n h"),
    *_linear("attn.out_proj", "attention/o", "d (n h) -> n h d", "d -> d"),
    ("ln_2.weight", "mlp_norm/scale", "d -> d"),
    ("ln_2.bias", "mlp_norm/bias", "d -> d"),
    *_linear("mlp.c_fc", "mlp/up", "f d -> d f", "f -> f"),
    *_linear("mlp.c_proj", "mlp/down", "d f -> f d", "d -> d"),
]
