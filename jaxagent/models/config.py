"""Frozen sizes of both towers, and how they are read from a Hugging Face `config.json`.

The field names are words for what a size is; the letters of the shapes stand beside them. Published
folders of Qwen2-VL and Qwen2.5-VL hold the text tower's fields at the top, newer ones in
`text_config`; both are read. What is only one family's stands in that family's file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "intermediate_size"),
)
SHARED_VISION_SIZES = {
    "depth": "layers",
    "num_heads": "heads",
    "in_channels": "channels",
    "patch_size": "patch",
    "temporal_patch_size": "temporal_patch",
    "spatial_merge_size": "merge",
}
VISION_SIZES = SHARED_VISION_SIZES | {
    "hidden_size": "width",
    "intermediate_size": "mlp_width",
    "out_hidden_size": "out_width",
}
"""A field of a `vision_config` -> the size that it is."""

Fields = Mapping[str, Any]
"""A JSON object."""


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
    """What the vision towers of all families have in common."""

    width: int  # d
    layers: int  # l
    heads: int  # n
    mlp_width: int  # f
    out_width: int  # the text tower's d
    channels: int
    patch: int  # pixels a side
    temporal_patch: int  # frames a patch
    merge: int  # patches a side of one image token
    deepstack: tuple[int, ...] = ()  # the layers whose outputs become deepstack features

    def __post_init__(self):
        if self.width % (4 * self.heads):
            raise ConfigError(
                f"vision hidden_size={self.width} is not a multiple of 4 x num_heads={self.heads}, "
                "which its rotary positions need."
            )
        self.check_layers("deepstack_visual_indexes", self.deepstack)

    def check_layers(self, name: str, numbers: tuple[int, ...]) -> None:
        """ConfigError unless the numbers are those of layers of the tower, rising."""
        if sorted(set(numbers)) != list(numbers) or any(
            not 0 <= layer < self.layers for layer in numbers
        ):
            raise ConfigError(
                f"{name}={list(numbers)} must rise within the {self.layers} vision layers."
            )

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def patch_values(self) -> int:
        """Numbers in one flattened patch, `c`."""
        return self.channels * self.temporal_patch * self.patch**2


@dataclass(frozen=True, kw_only=True)
class TextKind:
    """What a family's text tower has, and how transformers reads its config."""

    qk_norm: bool
    qkv_bias: bool
    interleaved: bool  # the frequencies of M-RoPE
    head_size: int | None  # without `head_dim`; None: always width / heads, and no attention_bias
    tie_in_text: bool  # the text tower's own tie_word_embeddings counts too


def read_text(fields: Fields, kind: TextKind, *, deepstack: int) -> TextConfig:
    """The text tower of a `config.json`."""
    text = fields.get("text_config", fields)
    # transformers 5 writes `rope_parameters`; published folders hold `rope_scaling`, `rope_theta`
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    check_object(rope, "config.json's rope_parameters or rope_scaling")
    rotary = rope.get("rope_type", rope.get("type", "default"))
    if rotary not in ("default", "mrope"):  # "mrope": the older word for the default
        raise ConfigError(f"rope_type={rotary!r} is not supported; only 'default' is.")
    if (activation := text["hidden_act"]) != "silu":
        raise ConfigError(f"text hidden_act={activation!r} is not supported; only 'silu' is.")
    if truth(text, "use_sliding_window"):
        raise ConfigError("use_sliding_window=true is not supported; every layer sees all tokens.")
    check_sizes(text, "text", *TEXT_SIZES)
    width, heads = text["hidden_size"], text["num_attention_heads"]
    bias = kind.head_size is not None and truth(text, "attention_bias")
    if kind.head_size is None:
        if width % heads:
            raise ConfigError(
                f"hidden_size={width} is not a multiple of num_attention_heads={heads}."
            )
        head_size = width // heads
    elif text.get("head_dim") is None:
        head_size = kind.head_size
    else:
        check_sizes(text, "text", "head_dim")
        head_size = text["head_dim"]
    return TextConfig(
        vocab=text["vocab_size"],
        width=width,
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=text["num_key_value_heads"],
        head_size=head_size,
        mlp_width=text["intermediate_size"],
        norm_epsilon=number(text, "rms_norm_eps"),
        rope_theta=number(rope if "rope_theta" in rope else text, "rope_theta"),
        rope_sections=_sections(rope),
        rope_interleaved=kind.interleaved,
        qk_norm=kind.qk_norm,
        qkv_bias=kind.qkv_bias or bias,
        out_bias=bias,
        tied=truth(fields, "tie_word_embeddings")
        or (kind.tie_in_text and truth(text, "tie_word_embeddings")),
        deepstack=deepstack,
    )


def _sections(rope: Fields) -> tuple[int, int, int]:
    sections = integers(rope, "mrope_section")
    if len(sections) != 3 or min(sections) < 0:
        raise ConfigError(f"mrope_section={list(sections)} is no list of three sizes.")
    return sections


def check_object(value: Any, what: str) -> None:
    """ConfigError unless the value is a JSON object."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{what} is {value!r}; it must be an object of fields. Point at a folder in Hugging "
            "Face format."
        )


def check_sizes(fields: Fields, part: str, *names: str) -> None:
    """ConfigError unless each field is an integer of at least 1."""
    for name in names:
        if type(value := fields[name]) is not int or value < 1:
            raise ConfigError(f"{part} {name}={value!r} is no integer of at least 1.")


def truth(fields: Fields, name: str) -> bool:
    """A field that is true or false, false when it is absent or null; ConfigError else."""
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise ConfigError(f"{name}={value!r} is neither true nor false.")
    return bool(value)


def vision_sizes(fields: Fields, names: Mapping[str, str]) -> dict[str, int]:
    """Sizes of a vision tower by the names of `VisionConfig`; ConfigError when one is none."""
    check_sizes(fields, "vision", *names)
    return {size: fields[name] for name, size in names.items()}


def check_activation(vision: Fields, expected: str) -> None:
    """ConfigError unless the vision tower's MLP has this activation."""
    if (activation := vision["hidden_act"]) != expected:
        raise ConfigError(
            f"vision hidden_act={activation!r} is not supported; only {expected!r} is."
        )


def integers(fields: Fields, name: str) -> tuple[int, ...]:
    """A list of integers; ConfigError when it is anything else."""
    value = fields[name]
    if not isinstance(value, list | tuple) or any(type(one) is not int for one in value):
        raise ConfigError(f"{name}={value!r} is no list of integers.")
    return tuple(value)


def number(fields: Fields, name: str) -> float:
    """A number above 0; ConfigError when it is anything else."""
    if type(value := fields[name]) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{name}={value!r} is no number above 0.")
    return float(value)
