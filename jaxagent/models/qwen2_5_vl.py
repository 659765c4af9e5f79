"""Qwen2.5-VL's vision tower.

As Qwen2-VL's, with RMS norms and a gated MLP, and with attention inside windows of at most `window`
pixels a side; only the blocks in `full_layers` attend within the whole frame. The patches of a
window lie together from the first block to the last, so that a windowed block is a few small
attentions and a full one sees the frame in another order, which attention does not mind. Blocks are
scanned by groups, so many windowed blocks and a full one. Source: Qwen2.5-VL (arXiv 2502.13923),
held against transformers' `modeling_qwen2_5_vl`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import jax
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
from jaxagent.models.layers import GatedMLP, Linear, RMSNorm, stack
from jaxagent.models.rope import Rotation, vision_rotation
from jaxagent.models.vision import EPSILON, Merger, VisionBlock, Windows, window_layout
from jaxagent.types import Grid

# What transformers assumes of a field that a published `config.json` leaves out.
_DEFAULTS = {
    "hidden_act": "silu",
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_NORM = partial(RMSNorm, epsilon=EPSILON)


@dataclass(frozen=True, kw_only=True)
class Qwen25VisionConfig(VisionConfig):
    """Sizes of Qwen2.5-VL's vision tower."""

    window: int  # pixels a side
    full_layers: tuple[int, ...]  # the layers that attend within the whole frame

    def __post_init__(self):
        super().__post_init__()
        if not self.window_side:
            raise ConfigError(
                f"window_size={self.window} holds no image token of "
                f"{self.patch * self.merge} pixels a side."
            )
        self.check_layers("fullatt_block_indexes", self.full_layers)

    @property
    def window_side(self) -> int:
        """Image tokens a side of a window."""
        return self.window // self.merge // self.patch


def vision_config(fields: Fields) -> Qwen25VisionConfig:
    """The tower of a `vision_config`."""
    fields = _DEFAULTS | dict(fields)
    check_activation(fields, "silu")
    check_sizes(fields, "vision", "window_size")
    return Qwen25VisionConfig(
        **vision_sizes(fields, VISION_SIZES),
        window=fields["window_size"],
        full_layers=integers(fields, "fullatt_block_indexes"),
    )


class Arrangement(NamedTuple):
    """The patches of a frame in the order of their windows, how each turns, and the windows."""

    order: Int[np.ndarray, " p"]
    rotation: Rotation
    windows: Windows


def arrangement(height: int, width: int, config: Qwen25VisionConfig) -> Arrangement:
    """The arrangement of a frame of so many patches."""
    merge = config.merge
    layout = window_layout(height // merge, width // merge, side=config.window_side, merge=merge)
    by_token = np.arange(height * width).reshape(-1, merge**2)
    order = by_token[layout.order].reshape(-1)
    rotation = vision_rotation(height, width, config)
    rotation = Rotation(rotation.cos[:, order], rotation.sin[:, order])
    return Arrangement(order, rotation, layout.windows)


class VisionTower(nnx.Module):
    """Images of one grid to their text tokens."""

    def __init__(self, config: Qwen25VisionConfig):
        self.config = config
        d = config.width
        self.patch = Linear((config.patch_values,), (d,))
        mlp = partial(GatedMLP, d, config.mlp_width, bias=True)
        build = partial(VisionBlock, d, config.heads, norm=_NORM, mlp=mlp)
        self.blocks = stack(build, config.layers)
        self.merger = Merger(d, config.merge, config.out_width, norm=_NORM)

    def __call__(self, patches: Float[Array, "i p c"], grid: Grid) -> ImageFeatures:
        config, (_, height, width) = self.config, grid
        arranged = arrangement(height, width, config)
        x = self.patch(patches.astype(self.patch.kernel[...].dtype))
        # frames attend apart
        x = x.reshape(-1, height * width, config.width)[:, arranged.order]
        x = self._through_blocks(x, arranged.rotation, arranged.windows)
        first_patches = arranged.order.reshape(-1, config.merge**2)[:, 0]
        tokens = self.merger(x)[:, np.argsort(first_patches)]
        return without_deepstack(tokens.reshape(len(patches), -1, config.out_width))

    def _through_blocks(
        self, x: Float[Array, "f p d"], rotation: Rotation, windows: Windows
    ) -> Float[Array, "f p d"]:
        graph, params = nnx.split(self.blocks)

        def block(windows, x, block_params):
            return nnx.merge(graph, block_params)(x, rotation, windows), None

        def group(num_windowed, x, group_params):
            windowed = jax.tree.map(lambda leaf: leaf[:num_windowed], group_params)
            full = jax.tree.map(lambda leaf: leaf[num_windowed:], group_params)
            x, _ = jax.lax.scan(partial(block, windows), x, windowed)
            return jax.lax.scan(partial(block, ((1, x.shape[1]),)), x, full)

        start = 0
        for num, num_windowed, size in groups(self.config):
            end = start + num * size
            grouped = jax.tree.map(
                lambda leaf: leaf[start:end].reshape(num, size, *leaf.shape[1:]),  # noqa: B023
                params,
            )
            x, _ = jax.lax.scan(partial(group, num_windowed), x, grouped)
            start = end
        return x


def groups(config: Qwen25VisionConfig) -> Iterator[tuple[int, int, int]]:
    """(how many, windowed blocks in each, blocks in each) of runs of equal groups.

    layers   0 1 2 3 4 5 6      full layers 2, 5     ->     (2, 2, 3), (1, 1, 1)
             w w f w w f w
    """
    ends = [layer + 1 for layer in config.full_layers]
    groups = [(end - start - 1, end - start) for start, end in zip([0, *ends], ends, strict=False)]
    rest = config.layers - (ends[-1] if ends else 0)
    if rest:
        groups.append((rest, rest))
    for (num_windowed, size), equal in groupby(groups):
        yield len(list(equal)), num_windowed, size
