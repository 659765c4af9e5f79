"""Qwen2-VL's vision tower.

Patches are projected, then blocks with layer norms, two-axis rotary positions and a quick-gelu MLP
attend within one frame; the merger makes one text token of every merge x merge patches. Source:
Qwen2-VL (arXiv 2409.12191), held against transformers' `modeling_qwen2_vl`. The text tower is
`decoder`.
"""

from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxagent.models.config import (
    SHARED_VISION_SIZES,
    Fields,
    VisionConfig,
    check_activation,
    check_sizes,
    vision_sizes,
)
from jaxagent.models.decoder import ImageFeatures, without_deepstack
from jaxagent.models.layers import MLP, LayerNorm, Linear, quick_gelu, stack
from jaxagent.models.rope import vision_rotation
from jaxagent.models.vision import EPSILON, Merger, VisionBlock
from jaxagent.types import Grid

# What transformers assumes of a field that a published `config.json` leaves out.
_DEFAULTS = {
    "hidden_act": "quick_gelu",
    "in_channels": 3,
    "mlp_ratio": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_SIZES = SHARED_VISION_SIZES | {"embed_dim": "width", "hidden_size": "out_width"}
_NORM = partial(LayerNorm, epsilon=EPSILON)


def vision_config(fields: Fields) -> VisionConfig:
    """The tower of a `vision_config`, whose `hidden_size` is the text tower's width."""
    fields = _DEFAULTS | dict(fields)
    check_activation(fields, "quick_gelu")
    check_sizes(fields, "vision", "mlp_ratio")
    sizes = vision_sizes(fields, _SIZES)
    return VisionConfig(**sizes, mlp_width=sizes["width"] * fields["mlp_ratio"])


class VisionTower(nnx.Module):
    """Images of one grid to their text tokens."""

    def __init__(self, config: VisionConfig):
        self.config = config
        d = config.width
        self.patch = Linear((config.patch_values,), (d,))
        mlp = partial(MLP, d, config.mlp_width, d, activation=quick_gelu)
        build = partial(VisionBlock, d, config.heads, norm=_NORM, mlp=mlp)
        self.blocks = stack(build, config.layers)
        self.merger = Merger(d, config.merge, config.out_width, norm=_NORM)

    def __call__(self, patches: Float[Array, "i p c"], grid: Grid) -> ImageFeatures:
        frames, height, width = grid
        x = self.patch(patches.astype(self.patch.kernel[...].dtype))
        x = x.reshape(-1, height * width, x.shape[-1])  # frames attend apart
        rotation = vision_rotation(height, width, self.config)
        graph, params = nnx.split(self.blocks)

        def step(x, block_params):
            return nnx.merge(graph, block_params)(x, rotation, ((1, height * width),)), None

        x, _ = jax.lax.scan(step, x, params)
        return without_deepstack(self.merger(x).reshape(len(patches), -1, self.config.out_width))
