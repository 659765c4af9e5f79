"""A small convolutional image encoder: square RGB images to unit vectors.

    x = relu(norm(linear(patches of 4 x 4 pixels)))
    each stage:  x = relu(norm(depthwise(x)));  x = relu(norm(convolution of stride 2(x)))
    y = linear(mean over places | max over places);  y / |y|

Ours, sized for seconds of training on two CPU cores: 64 x 64 pixels, 16 x 16 places after the
patches, 26,000 parameters. Norms are over the channels of a place, so that an image's vector does
not depend on its batch. The depthwise convolution is a sum of nine shifted products: XLA's own
takes ten times as long on CPUs.
"""

from dataclasses import dataclass
from functools import cache as memoised
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, UInt8

from jaxagent.models.layers import (
    Blueprint,
    LayerNorm,
    Linear,
    blueprint,
    initial_params,
    parameter,
)
from jaxagent.trees import Params


@dataclass(frozen=True, kw_only=True)
class ConvEncoderConfig:
    """Sizes: pixels of a side, channels before and after each stage, numbers in a vector."""

    size: int = 64
    patch: int = 4
    widths: tuple[int, ...] = (16, 32, 48)
    out_width: int = 64

    def __post_init__(self):
        halvings = len(self.widths) - 1
        if self.size % (self.patch * 2**halvings):
            raise ValueError(
                f"Images of {self.size} pixels do not divide into patches of {self.patch} that "
                f"are halved {halvings} times. Take a multiple of {self.patch * 2**halvings}."
            )


def depthwise(x: Float[Array, "b y x d"], kernel: Float[Array, "9 d"]) -> Float[Array, "b y x d"]:
    """Every channel's own 3 x 3 filter.

    Row 3 r + c of the kernel weighs the neighbour (r - 1, c - 1) places away.
    """
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(
        padded[:, row : row + height, column : column + width]
        * kernel[3 * row + column][None, None, None]
        for row in range(3)
        for column in range(3)
    )


class Stage(nnx.Module):
    """Looks around each place, then halves the image's side."""

    def __init__(self, width: int, out_width: int):
        self.look = parameter((9, width), std=1 / 3)
        self.look_norm = LayerNorm(width, epsilon=1e-6)
        self.halve = parameter((3, 3, width, out_width), std=(9 * width) ** -0.5)
        self.halve_norm = LayerNorm(out_width, epsilon=1e-6)

    def __call__(self, x: Float[Array, "b y x d"]) -> Float[Array, "b i j f"]:
        x = jax.nn.relu(self.look_norm(depthwise(x, self.look[...])))
        x = jax.lax.conv_general_dilated(
            x, self.halve[...], (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(self.halve_norm(x))


class ConvEncoder(nnx.Module):
    """Patches, stages, pooling and projection."""

    def __init__(self, config: ConvEncoderConfig):
        first, last = config.widths[0], config.widths[-1]
        self.patch_size = config.patch
        self.patch = Linear((3 * config.patch**2,), (first,), bias=True)
        self.patch_norm = LayerNorm(first, epsilon=1e-6)
        pairs = zip(config.widths[:-1], config.widths[1:], strict=True)
        self.stages = nnx.List([Stage(*pair) for pair in pairs])
        self.project = Linear((2 * last,), (config.out_width,), bias=True)

    def __call__(self, pixels: UInt8[Array, "b y x 3"]) -> Float[Array, "b e"]:
        x = self._patches(pixels.astype(jnp.float32) / 127.5 - 1)
        x = jax.nn.relu(self.patch_norm(self.patch(x)))
        for stage in self.stages:
            x = stage(x)
        y = self.project(jnp.concatenate([x.mean(axis=(1, 2)), x.max(axis=(1, 2))], axis=1))
        return y * jax.lax.rsqrt(jnp.sum(y * y, axis=1, keepdims=True) + 1e-12)

    def _patches(self, x: Float[Array, "b y x 3"]) -> Float[Array, "b i j c"]:
        b, side, p = x.shape[0], x.shape[1] // self.patch_size, self.patch_size
        x = x.reshape(b, side, p, side, p, 3).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(b, side, side, 3 * p**2)


@memoised
def _blueprint(config: ConvEncoderConfig) -> Blueprint:
    return blueprint(partial(ConvEncoder, config))


@dataclass(frozen=True)
class Model:
    """The encoder as pure functions of its parameters."""

    config: ConvEncoderConfig

    def shapes(self) -> Params:
        """The parameters as `ShapeDtypeStruct`s."""
        return _blueprint(self.config).shapes

    def init(self, key: Key[Array, ""]) -> Params:
        """Random float32 parameters."""
        return initial_params(_blueprint(self.config), key)

    def encode(self, params: Params, pixels: UInt8[Array, "b y x 3"]) -> Float[Array, "b e"]:
        """Unit vectors of images of `config.size` pixels square."""
        return nnx.merge(_blueprint(self.config).graph, params)(pixels)
