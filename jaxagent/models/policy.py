"""A Qwen-VL policy: a vision tower, the text tower, and the pure functions that the rest calls.

A family is a row of `FAMILIES`: what its text tower has, its vision tower, and how the sizes of
both are read. Everything behind a tower's image features is the same for all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as memoised
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from jaxagent.models import attention as attend
from jaxagent.models import qwen2_5_vl, qwen2_vl, qwen3_vl
from jaxagent.models.attention import KVCache, Place
from jaxagent.models.config import (
    ConfigError,
    Fields,
    TextConfig,
    TextKind,
    VisionConfig,
    check_object,
    check_sizes,
    read_text,
)
from jaxagent.models.decoder import Decoded, Decoder, ImageFeatures, Placed, at_tokens
from jaxagent.models.layers import Blueprint, blueprint, initial_params
from jaxagent.models.rope import text_rotation
from jaxagent.models.row_attention import row_attention
from jaxagent.trees import Params
from jaxagent.types import Grid

CacheKernel = Literal["batch", "row"]
"""How a chunk attends to the cache: all rows over a common length, or row after row (CPUs)."""
FamilyName = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
"""The `model_type` of a `config.json`."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What tells the policies of one family from the others."""

    vision_config: Callable[[Fields], VisionConfig]
    tower: Callable[[Any], nnx.Module]
    text: TextKind


_QWEN2_TEXT = TextKind(
    qk_norm=False, qkv_bias=True, interleaved=False, head_size=None, tie_in_text=True
)
_QWEN3_TEXT = TextKind(
    qk_norm=True, qkv_bias=False, interleaved=True, head_size=128, tie_in_text=False
)

FAMILIES: dict[FamilyName, Family] = {
    "qwen2_vl": Family(
        vision_config=qwen2_vl.vision_config,
        tower=qwen2_vl.VisionTower,
        text=_QWEN2_TEXT,
    ),
    "qwen2_5_vl": Family(
        vision_config=qwen2_5_vl.vision_config,
        tower=qwen2_5_vl.VisionTower,
        text=_QWEN2_TEXT,
    ),
    "qwen3_vl": Family(
        vision_config=qwen3_vl.vision_config,
        tower=qwen3_vl.VisionTower,
        text=_QWEN3_TEXT,
    ),
}


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """A family, the sizes of both towers, and the id that stands for images."""

    family: FamilyName
    text: TextConfig
    vision: VisionConfig
    image_token: int

    def __post_init__(self):
        if self.image_token >= self.text.vocab:
            raise ConfigError(
                f"image_token_id={self.image_token} is no token of a vocab_size={self.text.vocab}."
            )
        if self.vision.out_width != self.text.width:
            raise ConfigError(
                f"The vision tower's features have {self.vision.out_width} numbers, the text "
                f"tower's hidden_size is {self.text.width}; they cannot stand among its tokens."
            )

    @classmethod
    def from_hf(cls, fields: Any) -> "PolicyConfig":
        """The config of a `config.json`; ConfigError when it is another family or a part of it."""
        check_object(fields, "config.json")
        name = fields.get("model_type")
        if not isinstance(name, str) or name not in FAMILIES:
            raise ConfigError(
                f"The folder holds a {name!r} model; the families that can be read are "
                f"{', '.join(FAMILIES)} (dense ones). Point it at a folder of one of them."
            )
        family = FAMILIES[name]
        try:
            check_object(fields.get("text_config", {}), "config.json's text_config")
            check_object(fields["vision_config"], "config.json's vision_config")
            check_sizes(fields, "config.json's", "image_token_id")
            vision = family.vision_config(fields["vision_config"])
            text = read_text(fields, family.text, deepstack=len(vision.deepstack))
        except KeyError as missing:
            raise ConfigError(f"config.json lacks the field {missing}.") from None
        return cls(family=name, text=text, vision=vision, image_token=fields["image_token_id"])


class Towers(nnx.Module):
    """Both towers."""

    def __init__(self, config: PolicyConfig):
        self.text = Decoder(config.text)
        self.vision = FAMILIES[config.family].tower(config.vision)


@memoised
def _blueprint(config: PolicyConfig) -> Blueprint:
    return blueprint(partial(Towers, config))


@dataclass(frozen=True)
class Model:
    """A policy as pure functions of its parameters.

    A value without weights: hashable, equal to every model of the same sizes, fit for a static
    argument of `jax.jit`. `remat` recomputes each text layer in the backward pass instead of
    keeping its activations.
    """

    config: PolicyConfig
    remat: bool = True

    def shapes(self) -> Params:
        """The parameters as `ShapeDtypeStruct`s."""
        return _blueprint(self.config).shapes

    def init(self, key: Key[Array, ""]) -> Params:
        """Random float32 parameters."""
        return initial_params(_blueprint(self.config), key)

    def new_cache(self, rows: int, length: int, dtype: DTypeLike) -> KVCache:
        """An empty cache of `rows` rows with `length` slots each."""
        return attend.new_cache(self.config.text, rows, length, dtype=dtype)

    def encode_images(
        self, params: Params, patches: Float[Array, "i p c"], grid: Grid
    ) -> ImageFeatures:
        """The features of images that share one grid; `p` is the product of the grid."""
        return self._module(params).vision(patches, grid)

    def forward(
        self,
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "3 b t"],
        segments: Int[Array, "b t"],
        features: ImageFeatures | None = None,
        feature_index: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """The hidden states of packed rows.

        A token sees the earlier tokens of its own segment; segment 0 is padding, whose ids and
        features are never read. `feature_index` gives the row of the flattened features that stands
        at a token, -1 for a token of text.
        """
        row = (ids, positions, segments, features, feature_index)
        return self._packed(params, *row, states=()).hidden

    def hidden_states(
        self,
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "3 b t"],
        segments: Int[Array, "b t"],
        features: ImageFeatures | None = None,
        feature_index: Int[Array, "b t"] | None = None,
        *,
        layers: tuple[int, ...],
    ) -> Float[Array, "m b t d"]:
        """The hidden states of packed rows after so many text layers, before the last norm.

        Layer 0 is the embedded tokens, images in their places; `config.text.layers` is what the
        last norm gets. Raises ValueError for a number beyond them.
        """
        if others := [layer for layer in layers if not 0 <= layer <= self.config.text.layers]:
            raise ValueError(
                f"The text tower has {self.config.text.layers} layers, so its hidden states are "
                f"numbered 0 to {self.config.text.layers}; there is no {others}."
            )
        row = (ids, positions, segments, features, feature_index)
        return self._packed(params, *row, states=layers).states

    def _packed(
        self,
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "3 b t"],
        segments: Int[Array, "b t"],
        features: ImageFeatures | None,
        feature_index: Int[Array, "b t"] | None,
        *,
        states: tuple[int, ...],
    ) -> Decoded:
        text = self._module(params).text
        real = segments > 0
        images = None
        if features is not None:
            images = Placed(features, jnp.where(real, feature_index, -1))
        x = _embedded(text, jnp.where(real, ids, 0), images)

        def attend_packed(cache, layer, q, k, v):
            return attend.packed_attention(q, k, v, segments), cache

        rotation = text_rotation(positions, self.config.text)
        return text(x, rotation, attend_packed, images=images, remat=self.remat, states=states)

    def extend(
        self,
        params: Params,
        cache: KVCache,
        ids: Int[Array, "b t"],
        positions: Int[Array, "3 b t"],
        rows: Int[Array, " b"] | None,
        start: Int[Array, " b"],
        features: ImageFeatures | None = None,
        feature_index: Int[Array, "b t"] | None = None,
        *,
        length: int | None = None,
        kernel: CacheKernel = "batch",
    ) -> tuple[Float[Array, "b t d"], KVCache]:
        """The hidden states of a chunk appended to each row, and the cache that holds it.

        Token j of row b is written to slot `start[b] + j` and sees the slots up to its own. What
        pads a chunk's end is written too, but later tokens overwrite it before anyone sees it.
        `rows` are the cache's rows (None: all, in order). `length` (static) bounds the slots that
        are read; every token must stand below it. `kernel` "row" reads row after row, each to its
        own end, whatever `length`. Donate the cache to the enclosing jit, or it is copied.
        """
        text = self._module(params).text
        images = None if features is None else Placed(features, feature_index)
        place = Place(rows, start)
        length = cache.pages.shape[2] if length is None else length
        visible = attend.cache_mask(start, ids.shape[1], length)

        def attend_cached(cache, layer, q, k, v):
            cache = attend.append(cache, layer, k, v, place)
            if kernel == "row":
                return row_attention(q, cache, layer, place), cache
            k, v = attend.cached_keys_values(cache, layer, place, length=length)
            return attend.attention(q, k.astype(q.dtype), v.astype(q.dtype), visible), cache

        rotation = text_rotation(positions, self.config.text)
        x = _embedded(text, ids, images)
        decoded = text(x, rotation, attend_cached, cache=cache, images=images)
        return decoded.hidden, decoded.cache

    def head(self, params: Params) -> Float[Array, "d v"]:
        """The projection to the vocabulary, for log-probabilities by chunks."""
        return self._module(params).text.head()

    def logits(self, params: Params, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """float32 logits."""
        return jnp.einsum(
            "...d,dv->...v", hidden, self.head(params), preferred_element_type=jnp.float32
        )

    def _module(self, params: Params) -> Any:
        return nnx.merge(_blueprint(self.config).graph, params)


def _embedded(
    text: Decoder, ids: Int[Array, "b t"], images: Placed | None
) -> Float[Array, "b t d"]:
    x = text.embed(ids)
    return x if images is None else at_tokens(images.features.tokens, images.index, x)
