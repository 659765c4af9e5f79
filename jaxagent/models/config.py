"""Frozen sizes of the policies, read from a Hugging Face `config.json`.

The field names are words for what a size is; the letters of the shapes stand beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size"),
)
VISION_SIZES = (
    *("hidden_size", "depth", "num_heads", "intermediate_size", "out_hidden_size", "in_channels"),
    *("patch_size", "temporal_patch_size", "spatial_merge_size", "num_position_embeddings"),
)


class ConfigError(ValueError):
    """A `config.json` that this package cannot run; the message says which field and why."""


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Sizes of a text tower (Qwen2, Qwen2.5 and Qwen3 differ only in the flags)."""

    vocab: int  # v
    width: int  # d
    layers: int  # l
    heads: int  # n
    kv_heads: int  # k
    head_size: int  # h
    mlp_width: int  # f
    norm_epsilon: float
    rope_theta: float
    rope_sections: tuple[int, int, int]  # frequencies of time, height, width
    rope_interleaved: bool
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    tied: bool  # the head is the transposed embedding table
    deepstack: int = 0  # the first text layers that image features are added to

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"num_attention_heads={self.heads} is not a multiple of "
                f"num_key_value_heads={self.kv_heads}."
            )
        if self.head_size % 2:
            raise ConfigError(f"head_dim={self.head_size} is odd; rotary positions halve it.")
        if sum(self.rope_sections) != self.head_size // 2:
            raise ConfigError(
                f"mrope_section={list(self.rope_sections)} sums to {sum(self.rope_sections)}; "
                f"head_dim={self.head_size} needs {self.head_size // 2}."
            )
        if self.deepstack > self.layers:
            raise ConfigError(
                f"{self.deepstack} deepstack features do not fit {self.layers} text layers."
            )


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Sizes of Qwen3-VL's vision tower."""

    width: int  # d
    layers: int  # l
    heads: int  # n
    mlp_width: int  # f
    out_width: int  # the text tower's d
    channels: int
    patch: int  # pixels a side
    temporal_patch: int  # frames a patch
    merge: int  # patches a side of one image token
    positions: int  # the learned square table, side * side
    deepstack: tuple[int, ...]  # the layers whose outputs become deepstack features

    def __post_init__(self):
        if self.width % (4 * self.heads):
            raise ConfigError(
                f"vision hidden_size={self.width} is not a multiple of 4 x num_heads={self.heads}, "
                "which its rotary positions need."
            )
        if self.side**2 != self.positions:
            raise ConfigError(f"num_position_embeddings={self.positions} is not a square.")
        if sorted(set(self.deepstack)) != list(self.deepstack) or any(
            not 0 <= layer < self.layers for layer in self.deepstack
        ):
            raise ConfigError(
                f"deepstack_visual_indexes={list(self.deepstack)} must rise within the "
                f"{self.layers} vision layers."
            )

    @property
    def side(self) -> int:
        return round(self.positions**0.5)

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def patch_values(self) -> int:
        """Numbers in one flattened patch, `c`."""
        return self.channels * self.temporal_patch * self.patch**2


@dataclass(frozen=True, kw_only=True)
class Qwen3VLConfig:
    """A dense Qwen3-VL: both towers and the id that stands for images."""

    text: TextConfig
    vision: VisionConfig
    image_token: int

    def __post_init__(self):
        if self.vision.out_width != self.text.width:
            raise ConfigError(
                f"vision out_hidden_size={self.vision.out_width} is not the text tower's "
                f"hidden_size={self.text.width}, so its features cannot stand among the tokens."
            )

    @classmethod
    def from_hf(cls, fields: Any) -> "Qwen3VLConfig":
        """The config of a `config.json`; ConfigError when it is another family or a part of it."""
        _check_object(fields, "config.json")
        family = fields.get("model_type")
        if family != "qwen3_vl":
            raise ConfigError(
                f"The folder holds a {family!r} model; this loader reads 'qwen3_vl' (dense "
                "Qwen3-VL). Point it at a Qwen3-VL folder."
            )
        try:
            for name in ("text_config", "vision_config"):
                _check_object(fields[name], f"config.json's {name}")
            _check_sizes(fields, "config.json's", "image_token_id")
            vision = _vision_config(fields["vision_config"])
            text = _text_config(fields, deepstack=len(vision.deepstack))
            return cls(text=text, vision=vision, image_token=fields["image_token_id"])
        except KeyError as missing:
            raise ConfigError(f"config.json lacks the field {missing}.") from None


def _check_object(value: Any, what: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{what} is {value!r}; it must be an object of fields. Point at the folder of a "
            "Qwen3-VL."
        )


def _check_sizes(fields: Mapping[str, Any], part: str, *names: str) -> None:
    for name in names:
        if type(value := fields[name]) is not int or value < 1:
            raise ConfigError(f"{part} {name}={value!r} is no integer of at least 1.")


def _integers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = fields[name]
    if not isinstance(value, list | tuple) or any(type(one) is not int for one in value):
        raise ConfigError(f"{name}={value!r} is no list of integers.")
    return tuple(value)


def _number(fields: Mapping[str, Any], name: str) -> float:
    if type(value := fields[name]) not in (int, float) or not value > 0:
        raise ConfigError(f"{name}={value!r} is no number above 0.")
    return float(value)


def _text_config(fields: Mapping[str, Any], *, deepstack: int) -> TextConfig:
    text = fields["text_config"]
    # transformers 5 writes `rope_parameters`; published folders hold `rope_scaling`, `rope_theta`
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    _check_object(rope, "config.json's rope_parameters or rope_scaling")
    if (kind := rope.get("rope_type", "default")) != "default":
        raise ConfigError(f"rope_type={kind!r} is not supported; only 'default' is.")
    if (activation := text["hidden_act"]) != "silu":
        raise ConfigError(f"text hidden_act={activation!r} is not supported; only 'silu' is.")
    _check_sizes(text, "text", *TEXT_SIZES)
    return TextConfig(
        vocab=text["vocab_size"],
        width=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_size=text["head_dim"],
        mlp_width=text["intermediate_size"],
        norm_epsilon=_number(text, "rms_norm_eps"),
        rope_theta=_number(rope if "rope_theta" in rope else text, "rope_theta"),
        rope_sections=_integers(rope, "mrope_section"),
        rope_interleaved=True,
        qk_norm=True,
        qkv_bias=text.get("attention_bias", False),
        out_bias=text.get("attention_bias", False),
        tied=fields.get("tie_word_embeddings", False),
        deepstack=deepstack,
    )


def _vision_config(vision: Mapping[str, Any]) -> VisionConfig:
    if (activation := vision["hidden_act"]) != "gelu_pytorch_tanh":
        raise ConfigError(
            f"vision hidden_act={activation!r} is not supported; only 'gelu_pytorch_tanh' is."
        )
    _check_sizes(vision, "vision", *VISION_SIZES)
    return VisionConfig(
        width=vision["hidden_size"],
        layers=vision["depth"],
        heads=vision["num_heads"],
        mlp_width=vision["intermediate_size"],
        out_width=vision["out_hidden_size"],
        channels=vision["in_channels"],
        patch=vision["patch_size"],
        temporal_patch=vision["temporal_patch_size"],
        merge=vision["spatial_merge_size"],
        positions=vision["num_position_embeddings"],
        deepstack=_integers(vision, "deepstack_visual_indexes"),
    )
