"""Frozen sizes of EVA-CLIP, read from a Hugging Face `config.json` or an `open_clip_config.json`.

BAAI publishes 8B and 18B with a `config.json` that holds every size and flag. The smaller relatives
are published in open_clip's form, whose config only names an image tower of timm; what those names
mean stands in `_TIMM`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from jaxagent.models.config import (
    ConfigError,
    Fields,
    check_sizes,
    number,
    truth,
)

_HF_LAYER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_HF_IMAGE_SIZES = (*_HF_LAYER_SIZES, "image_size", "patch_size", "num_channels")
_HF_TEXT_SIZES = (*_HF_LAYER_SIZES, "vocab_size", "max_position_embeddings")
_OPEN_CLIP_TEXT_SIZES = ("width", "heads", "layers", "vocab_size", "context_length")


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes and flags of the layers of a tower."""

    width: int  # d
    heads: int  # n
    mlp_width: int  # f
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: float
    norm_after: bool = False  # norms follow attention and MLP instead of preceding them
    inner_norm: bool = False  # a second norm, before the last kernel of attention and of the MLP
    gated: bool = False  # SwiGLU in place of gelu
    qkv_biases: tuple[bool, bool, bool]  # of queries, keys, values
    fused: bool = False  # one kernel for queries, keys and values, as the files have it

    def __post_init__(self):
        if self.width % self.heads:
            raise ConfigError(
                f"hidden_size={self.width} is not a multiple of num_attention_heads={self.heads}."
            )

    @property
    def head_size(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """Sizes of the image tower."""

    layer: LayerConfig
    layers: int  # l
    image: int  # pixels a side
    patch: int  # pixels a side
    channels: int = 3
    rotary_side: int | None = None  # the patches a side that rotary positions count; None: without
    rotary_theta: float = 10_000.0

    def __post_init__(self):
        if self.image % self.patch:
            raise ConfigError(
                f"image_size={self.image} is not a multiple of patch_size={self.patch}."
            )
        if self.rotary_side is not None and self.layer.head_size % 4:
            raise ConfigError(
                f"Heads of {self.layer.head_size} cannot turn by rows and columns; rotary "
                "positions need a multiple of 4."
            )

    @property
    def side(self) -> int:
        """Patches a side."""
        return self.image // self.patch


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Sizes of the text tower."""

    layer: LayerConfig
    layers: int  # l
    vocab: int  # v
    positions: int  # longest text, in tokens


@dataclass(frozen=True, kw_only=True)
class EvaClipConfig:
    """Sizes of both towers."""

    image: ImageConfig
    text: TextConfig
    embedding: int  # e

    @classmethod
    def from_hf(cls, fields: Fields) -> "EvaClipConfig":
        """The config of a `config.json`; ConfigError when it is another family."""
        if fields.get("architectures") != ["EvaCLIPModel"]:
            raise ConfigError(
                f"architectures={fields.get('architectures')!r} is not supported here; only "
                "['EvaCLIPModel'] is."
            )
        try:
            fields = _dotted(fields, "vision_config", "text_config")
            for name in ("use_swiglu_mlp", "use_sub_ln", "use_rope", "post_layernorm"):
                if truth(fields, f"text_config.{name}"):
                    raise ConfigError(
                        f"text_config.{name}=True is not supported here; only the image tower can "
                        "have it."
                    )
            return _of_hf(fields)
        except KeyError as missing:
            raise ConfigError(f"config.json lacks the field {missing}.") from None

    @classmethod
    def from_open_clip(cls, fields: Fields) -> "EvaClipConfig":
        """The config of an `open_clip_config.json`; ConfigError when it is another family."""
        try:
            fields = _dotted(fields, "model_cfg")
            fields = _dotted(fields, "model_cfg.vision_cfg", "model_cfg.text_cfg")
            return _of_open_clip(fields)
        except KeyError as missing:
            raise ConfigError(f"open_clip_config.json lacks the field {missing}.") from None


def _dotted(fields: Fields, *parts: str) -> dict[str, object]:
    """The fields, and those of each part under its name and a point."""
    made = dict(fields)
    for part in parts:
        if not isinstance(fields[part], Mapping):
            raise ConfigError(
                f"{part} is {fields[part]!r}; it must be an object of fields. Download the file "
                "again."
            )
        made |= {f"{part}.{name}": value for name, value in fields[part].items()}
    return made


def _of_hf(fields: Fields) -> EvaClipConfig:
    image, text = "vision_config", "text_config"
    fields = {f"{image}.num_channels": 3} | dict(fields)
    check_sizes(fields, "EVA-CLIP", "projection_dim")
    check_sizes(fields, "EVA-CLIP", *(f"{image}.{name}" for name in _HF_IMAGE_SIZES))
    check_sizes(fields, "EVA-CLIP", *(f"{text}.{name}" for name in _HF_TEXT_SIZES))
    side, theta = None, 10_000.0
    if truth(fields, f"{image}.use_rope"):
        check_sizes(fields, "EVA-CLIP", f"{image}.pretrained_seq_len")
        side = fields[f"{image}.pretrained_seq_len"]
        theta = number(fields, f"{image}.rope_theta")
    return EvaClipConfig(
        image=ImageConfig(
            layer=_hf_layer(fields, image),
            layers=fields[f"{image}.num_hidden_layers"],
            image=fields[f"{image}.image_size"],
            patch=fields[f"{image}.patch_size"],
            channels=fields[f"{image}.num_channels"],
            rotary_side=side,
            rotary_theta=theta,
        ),
        text=TextConfig(
            layer=_hf_layer(fields, text),
            layers=fields[f"{text}.num_hidden_layers"],
            vocab=fields[f"{text}.vocab_size"],
            positions=fields[f"{text}.max_position_embeddings"],
        ),
        embedding=fields["projection_dim"],
    )


def _hf_layer(fields: Fields, tower: str) -> LayerConfig:
    """The layers of a tower whose sizes are checked."""
    gated, inner_norm = (truth(fields, f"{tower}.{it}") for it in ("use_swiglu_mlp", "use_sub_ln"))
    if not gated and (activation := fields[f"{tower}.hidden_act"]) != "gelu":
        raise ConfigError(
            f"{tower}.hidden_act={activation!r} is not supported here; only 'gelu' is."
        )
    if inner_norm and not gated:
        # Its published code gives that norm another kind and epsilon; no model was published so.
        raise ConfigError(f"{tower}.use_sub_ln is not supported without use_swiglu_mlp.")
    biases = {f"{tower}.{name}_bias": True for name in "qkv"} | dict(fields)
    return LayerConfig(
        width=fields[f"{tower}.hidden_size"],
        heads=fields[f"{tower}.num_attention_heads"],
        mlp_width=fields[f"{tower}.intermediate_size"],
        norm="rms" if truth(fields, f"{tower}.use_rms_norm") else "layer",
        norm_epsilon=number(fields, f"{tower}.layer_norm_eps"),
        norm_after=truth(fields, f"{tower}.post_layernorm"),
        inner_norm=inner_norm,
        gated=gated,
        qkv_biases=tuple(truth(biases, f"{tower}.{name}_bias") for name in "qkv"),
    )


def _of_open_clip(fields: Fields) -> EvaClipConfig:
    image, text = "model_cfg.vision_cfg", "model_cfg.text_cfg"
    name = fields.get(f"{image}.timm_model_name")
    if type(name) is not str or name not in _TIMM:
        raise ConfigError(
            f"timm_model_name={name!r} is not an EVA-CLIP tower; one of {', '.join(_TIMM)} is."
        )
    for part in ("model_cfg", image, text):  # each by itself: one would hide another's
        for field, expected in _OPEN_CLIP:
            found = fields.get(f"{part}.{field}", expected)
            if found != expected or (type(found) is bool) != (type(expected) is bool):
                raise ConfigError(
                    f"{part}.{field}={found!r} is not supported; only {expected!r} is."
                )
    check_sizes(fields, "EVA-CLIP", "model_cfg.embed_dim", f"{image}.image_size")
    check_sizes(fields, "EVA-CLIP", *(f"{text}.{size}" for size in _OPEN_CLIP_TEXT_SIZES))
    width = fields[f"{text}.width"]
    layer = LayerConfig(
        width=width,
        heads=fields[f"{text}.heads"],
        mlp_width=4 * width,
        norm_epsilon=1e-5,
        qkv_biases=(True, True, True),
        fused=True,
    )
    return EvaClipConfig(
        image=replace(_TIMM[name], image=fields[f"{image}.image_size"]),
        text=TextConfig(
            layer=layer,
            layers=fields[f"{text}.layers"],
            vocab=fields[f"{text}.vocab_size"],
            positions=fields[f"{text}.context_length"],
        ),
        embedding=fields["model_cfg.embed_dim"],
    )


def _eva02(width: int, layers: int, heads: int, mlp_width: int, patch: int) -> ImageConfig:
    """An image tower of EVA02 B or L; `image` is set by the config that names it."""
    return ImageConfig(
        layer=LayerConfig(
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            norm_epsilon=1e-6,
            inner_norm=True,
            gated=True,
            qkv_biases=(True, False, True),
        ),
        layers=layers,
        image=224,
        patch=patch,
        rotary_side=16,
    )


def _plain(width: int, layers: int, heads: int, mlp_width: int, *, norm_after: bool) -> ImageConfig:
    """An image tower of EVA01 g or EVA02 E."""
    return ImageConfig(
        layer=LayerConfig(
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            norm_epsilon=1e-6,
            norm_after=norm_after,
            qkv_biases=(True, False, True),
            fused=True,
        ),
        layers=layers,
        image=224,
        patch=14,
    )


_TIMM = {
    "eva02_base_patch16_clip_224": _eva02(768, 12, 12, 2048, 16),
    "eva02_large_patch14_clip_224": _eva02(1024, 24, 16, 2730, 14),
    "eva02_large_patch14_clip_336": _eva02(1024, 24, 16, 2730, 14),
    "eva_giant_patch14_clip_224": _plain(1408, 40, 16, 6144, norm_after=False),
    "eva_giant_patch14_224": _plain(1408, 40, 16, 6144, norm_after=False),
    "eva02_enormous_patch14_clip_224": _plain(1792, 64, 16, 15360, norm_after=True),
}
"""The image tower behind each of timm's names."""

_OPEN_CLIP = (
    ("timm_pool", "token"),
    ("timm_proj", None),
    ("custom_text", True),
    ("quick_gelu", False),
    ("hf_model_name", None),
    ("mlp_ratio", 4.0),
    ("pool_type", "argmax"),
    ("proj_bias", False),
    ("no_causal_mask", False),
    ("embed_cls", False),
    ("ls_init_value", None),
)
"""The fields of open_clip that would change the towers, and the value that published files have."""
