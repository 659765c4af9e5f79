"""Dense Qwen3-VL's vision tower.

Patches are projected, the learned square table of positions is interpolated to the image's grid
(bilinear, corners aligned), then blocks with layer norms and two-axis rotary positions attend
within one frame. The merger makes one text token of every merge x merge patches; the outputs of the
deepstack layers pass mergers of their own and are added to the first text layers. Source: Qwen3-VL
(arXiv 2511.21631), held against transformers' `modeling_qwen3_vl`. Left out: video time stamps
(they are plain text, written by whoever builds the prompt) and the mixture-of-experts sizes.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.config import (
    VISION_SIZES,
    ConfigError,
    Fields,
    VisionConfig,
    check_activation,
    check_sizes,
    integers,
    vision_sizes,
)
from jaxagent.models.decoder import ImageFeatures, without_deepstack
from jaxagent.models.layers import MLP, Embedding, LayerNorm, Linear, stack, tanh_gelu
from jaxagent.models.rope import patch_coordinates, vision_rotation
from jaxagent.models.vision import EPSILON, Merger, VisionBlock
from jaxagent.types import Grid

_NORM = partial(LayerNorm, epsilon=EPSILON)


@dataclass(frozen=True, kw_only=True)
class Qwen3VisionConfig(VisionConfig):
    """Sizes of Qwen3-VL's vision tower."""

    positions: int  # the learned square table, side * side

    def __post_init__(self):
        super().__post_init__()
        if self.side**2 != self.positions:
            raise ConfigError(f"num_position_embeddings={self.positions} is not a square.")

    @property
    def side(self) -> int:
        return round(self.positions**0.5)


def vision_config(fields: Fields) -> Qwen3VisionConfig:
    """The tower of a `vision_config`."""
    check_activation(fields, "gelu_pytorch_tanh")
    check_sizes(fields, "vision", "num_position_embeddings")
    return Qwen3VisionConfig(
        **vision_sizes(fields, VISION_SIZES),
        positions=fields["num_position_embeddings"],
        deepstack=integers(fields, "deepstack_visual_indexes"),
    )


class VisionTower(nnx.Module):
    """Images of one grid to their text tokens."""

    def __init__(self, config: Qwen3VisionConfig):
        self.config = config
        d = config.width
        self.patch = Linear((config.patch_values,), (d,), bias=True)
        self.position = Embedding(config.positions, d)
        mlp = partial(MLP, d, config.mlp_width, d, activation=tanh_gelu)
        build = partial(VisionBlock, d, config.heads, norm=_NORM, mlp=mlp)
        self.blocks = stack(build, config.layers)
        merger = partial(Merger, d, config.merge, config.out_width, norm=_NORM)
        self.merger = merger()
        deep = partial(merger, norm_joined=True)
        num_deep = len(config.deepstack)
        self.deepstack_mergers = stack(deep, num_deep) if num_deep else None

    def __call__(self, patches: Float[Array, "i p c"], grid: Grid) -> ImageFeatures:
        config, (frames, height, width) = self.config, grid
        num_images, num_taps = patches.shape[0], len(config.deepstack)
        x = self.patch(patches.astype(self.patch.kernel[...].dtype))
        x = x.reshape(num_images * frames, height * width, config.width)  # frames attend apart
        x = x + interpolated(self.position, height, width, config)[None]
        rotation, frame = vision_rotation(height, width, config), ((1, height * width),)
        graph, params = nnx.split(self.blocks)

        # Each deepstack layer writes to its own slot; the others share one that nobody reads.
        slots = np.full(config.layers, num_taps)
        slots[list(config.deepstack)] = np.arange(num_taps)

        def step(carry, xs):
            (x, taps), (slot, block_params) = carry, xs
            x = nnx.merge(graph, block_params)(x, rotation, frame)
            return (x, taps.at[slot].set(x) if num_taps else taps), None

        taps = jnp.zeros((num_taps + 1, *x.shape), x.dtype)
        (x, taps), _ = jax.lax.scan(step, (x, taps), (jnp.asarray(slots), params))
        tokens = self.merger(x).reshape(num_images, -1, config.out_width)
        return self._with_deepstack(taps[:num_taps], tokens)

    def _with_deepstack(
        self, taps: Float[Array, "s f p d"], tokens: Float[Array, "i n e"]
    ) -> ImageFeatures:
        if self.deepstack_mergers is None:
            return without_deepstack(tokens)
        graph, params = nnx.split(self.deepstack_mergers)
        merged = jax.vmap(lambda params, tap: nnx.merge(graph, params)(tap))(params, taps)
        return ImageFeatures(tokens, merged.reshape(taps.shape[0], *tokens.shape))


def interpolated(
    table: Embedding, height: int, width: int, config: Qwen3VisionConfig
) -> Float[Array, "p d"]:
    """The position of each patch of a frame."""
    corners, weights = interpolation(height, width, config)
    rows = table(jnp.asarray(corners))
    return jnp.sum(rows * jnp.asarray(weights, rows.dtype)[:, :, None], axis=1)


def interpolation(
    height: int, width: int, config: Qwen3VisionConfig
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
