"""Dense Qwen3-VL: vision tower, mergers, text tower, and the pure functions that the rest calls.

Vision tower: patches are projected, the learned square table of positions is interpolated to the
image's grid (bilinear, corners aligned), then blocks with two-axis rotary positions attend within
one frame:

    x = x + o(attention(rotate(q), rotate(k), v));  x = x + mlp(layer_norm(x))

The merger makes one text token of every merge x merge patches; the outputs of the deepstack layers
pass mergers of their own and are added to the first text layers. Source: Qwen3-VL (arXiv
2511.21631), held against transformers' `modeling_qwen3_vl`. Left out: video time stamps (they are
plain text, written by whoever builds the prompt) and the mixture-of-experts sizes.
"""

from dataclasses import dataclass
from functools import cache as memoised
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from jaxagent.models import attention as attend
from jaxagent.models.attention import KVCache, Place
from jaxagent.models.config import Qwen3VLConfig, VisionConfig
from jaxagent.models.decoder import Decoder, ImageFeatures, Placed, at_tokens
from jaxagent.models.layers import (
    MLP,
    Blueprint,
    Embedding,
    LayerNorm,
    Linear,
    blueprint,
    initial_params,
    stack,
)
from jaxagent.models.rope import (
    Rotation,
    patch_coordinates,
    rotate,
    text_rotation,
    vision_rotation,
)
from jaxagent.models.row_attention import row_attention
from jaxagent.trees import Params

CacheKernel = Literal["batch", "row"]
"""How a chunk attends to the cache: all rows over a common length, or row after row (CPUs)."""
Grid = tuple[int, int, int]
"""Frames, rows and columns of patches."""


class VisionAttention(nnx.Module):
    """Full attention among the patches of a frame."""

    def __init__(self, config: VisionConfig):
        d, n, h = config.width, config.heads, config.head_size
        self.qkv = Linear((d,), (3, n, h), bias=True)
        self.o = Linear((n, h), (d,), bias=True)

    def __call__(self, x: Float[Array, "i p d"], rotation: Rotation) -> Float[Array, "i p d"]:
        q, k, v = jnp.moveaxis(self.qkv(x), 2, 0)
        return self.o(attend.attention(rotate(q, rotation), rotate(k, rotation), v, None))


class VisionBlock(nnx.Module):
    """One layer of the vision tower."""

    def __init__(self, config: VisionConfig):
        d = config.width
        self.attention_norm = LayerNorm(d, epsilon=1e-6)
        self.attention = VisionAttention(config)
        self.mlp_norm = LayerNorm(d, epsilon=1e-6)
        self.mlp = MLP(d, config.mlp_width, d, approximate=True)

    def __call__(self, x: Float[Array, "i p d"], rotation: Rotation) -> Float[Array, "i p d"]:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class Merger(nnx.Module):
    """One text token of merge x merge patches; the norm stands before or after they are joined."""

    def __init__(self, config: VisionConfig, *, norm_joined: bool):
        joined = config.width * config.merge**2
        self.norm = LayerNorm(joined if norm_joined else config.width, epsilon=1e-6)
        self.mlp = MLP(joined, joined, config.out_width, approximate=False)
        self.joined = joined
        self.norm_joined = norm_joined

    def __call__(self, x: Float[Array, "i p d"]) -> Float[Array, "i n e"]:
        if not self.norm_joined:
            x = self.norm(x)
        x = x.reshape(x.shape[0], -1, self.joined)
        return self.mlp(self.norm(x) if self.norm_joined else x)


class VisionTower(nnx.Module):
    """Images of one grid to their text tokens."""

    def __init__(self, config: VisionConfig):
        self.config = config
        self.patch = Linear((config.patch_values,), (config.width,), bias=True)
        self.position = Embedding(config.positions, config.width)
        self.blocks = stack(partial(VisionBlock, config), config.layers)
        self.merger = Merger(config, norm_joined=False)
        self.deepstack_mergers = (
            stack(partial(Merger, config, norm_joined=True), len(config.deepstack))
            if config.deepstack
            else None
        )

    def __call__(self, patches: Float[Array, "i p c"], grid: Grid) -> ImageFeatures:
        config, (frames, height, width) = self.config, grid
        num_images, num_taps = patches.shape[0], len(config.deepstack)
        x = self.patch(patches.astype(self.patch.kernel[...].dtype))
        x = x.reshape(num_images * frames, height * width, config.width)  # frames attend apart
        x = x + self._positions(height, width)[None]
        rotation = vision_rotation(height, width, merge=config.merge, head_size=config.head_size)
        rotation = Rotation(*(part[None] for part in rotation))
        graph, params = nnx.split(self.blocks)

        # Each deepstack layer writes to its own slot; the others share one that nobody reads.
        slots = np.full(config.layers, num_taps)
        slots[list(config.deepstack)] = np.arange(num_taps)

        def step(carry, xs):
            (x, taps), (slot, block_params) = carry, xs
            x = nnx.merge(graph, block_params)(x, rotation)
            return (x, taps.at[slot].set(x) if num_taps else taps), None

        taps = jnp.zeros((num_taps + 1, *x.shape), x.dtype)
        (x, taps), _ = jax.lax.scan(step, (x, taps), (jnp.asarray(slots), params))
        tokens = self.merger(x).reshape(num_images, -1, config.out_width)
        return ImageFeatures(tokens, self._deepstack(taps[:num_taps], tokens))

    def _positions(self, height: int, width: int) -> Float[Array, "p d"]:
        corners, weights = interpolation(height, width, self.config)
        rows = self.position(jnp.asarray(corners))
        return jnp.sum(rows * jnp.asarray(weights, rows.dtype)[:, :, None], axis=1)

    def _deepstack(
        self, taps: Float[Array, "s f p d"], tokens: Float[Array, "i n e"]
    ) -> Float[Array, "s i n e"]:
        if self.deepstack_mergers is None:
            return jnp.zeros((0, *tokens.shape), tokens.dtype)
        graph, params = nnx.split(self.deepstack_mergers)
        merged = jax.vmap(lambda params, tap: nnx.merge(graph, params)(tap))(params, taps)
        return merged.reshape(taps.shape[0], *tokens.shape)


def interpolation(
    height: int, width: int, config: VisionConfig
) -> tuple[Int[np.ndarray, "p 4"], Float[np.ndarray, "p 4"]]:
    """The four table rows around each patch of a frame, and their bilinear weights."""

    def axis(index, size):
        at = index.astype(np.float32) * np.float32(config.side - 1) / np.float32(max(size - 1, 1))
        low = np.floor(at)
        taps = np.stack([low, low + 1], axis=-1)
        weights = np.maximum(1 - np.abs(at[:, None] - taps), 0)
        return np.minimum(taps, config.side - 1).astype(np.int32), weights

    rows, columns = patch_coordinates(height, width, config.merge)
    (row_taps, row_weights), (column_taps, column_weights) = (
        axis(rows, height),
        axis(columns, width),
    )
    corners = row_taps[:, :, None] * config.side + column_taps[:, None]
    weights = row_weights[:, :, None] * column_weights[:, None]
    return corners.reshape(-1, 4), weights.reshape(-1, 4)


class Qwen3VL(nnx.Module):
    """Both towers."""

    def __init__(self, config: Qwen3VLConfig):
        self.text = Decoder(config.text)
        self.vision = VisionTower(config.vision)


@memoised
def _blueprint(config: Qwen3VLConfig) -> Blueprint:
    return blueprint(partial(Qwen3VL, config))


@dataclass(frozen=True)
class Model:
    """Qwen3-VL as pure functions of its parameters.

    A value without weights: hashable, equal to every model of the same sizes, fit for a static
    argument of `jax.jit`. `remat` recomputes each text layer in the backward pass instead of
    keeping its activations.
    """

    config: Qwen3VLConfig
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
        text = self._module(params).text
        real = segments > 0
        images = None
        if features is not None:
            images = Placed(features, jnp.where(real, feature_index, -1))
        x = _embedded(text, jnp.where(real, ids, 0), images)

        def attend_packed(cache, layer, q, k, v):
            return attend.packed_attention(q, k, v, segments), cache

        rotation = text_rotation(positions, self.config.text)
        return text(x, rotation, attend_packed, images=images, remat=self.remat)[0]

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
        return text(x, rotation, attend_cached, cache=cache, images=images)

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
