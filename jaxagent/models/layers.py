"""The small layers that every tower is built of.

Norms compute in float32 and return the input's dtype. Nothing promotes a dtype or rank on its own,
so the layers run under JAX's strict promotion in float32 and in bfloat16.

Modules are only built abstractly, by `blueprint`: a parameter states its shape and what its initial
values are (weights normal with variance 1 / fan-in, biases 0, norm scales 1), and `initial_params`
draws them on the host, where nothing has to be compiled.
"""

import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxagent.trees import Params, map_named

Activation = Callable[[Array], Array]


def parameter(shape: tuple[int, ...], *, mean: float = 0.0, std: float = 0.0) -> nnx.Param:
    """A parameter whose initial values are normal with this mean and standard deviation."""
    return nnx.Param(jnp.zeros(shape), mean=mean, std=std)


def _broadcast(vector: Array, ndim: int) -> Array:
    """`vector` with leading axes of size 1, up to `ndim` axes."""
    return jnp.expand_dims(vector, range(ndim - vector.ndim))


class Linear(nnx.Module):
    """x . kernel (+ bias) over the last `len(inputs)` axes of x; kernel: `[*inputs, *outputs]`."""

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        bias: bool = False,
    ):
        self.kernel = parameter((*inputs, *outputs), std=math.prod(inputs) ** -0.5)
        self.bias = parameter(outputs) if bias else None
        self.num_axes = len(inputs)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        y = jnp.tensordot(x, self.kernel[...], self.num_axes)
        return y if self.bias is None else y + _broadcast(self.bias[...], y.ndim)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis."""

    def __init__(self, width: int, *, epsilon: float):
        self.scale = parameter((width,), mean=1.0)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return wide.astype(x.dtype) * _broadcast(self.scale[...], x.ndim)


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""

    def __init__(self, width: int, *, epsilon: float):
        self.scale = parameter((width,), mean=1.0)
        self.bias = parameter((width,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        scale, bias = (
            _broadcast(param[...].astype(jnp.float32), x.ndim) for param in (self.scale, self.bias)
        )
        return (wide * scale + bias).astype(x.dtype)


class Embedding(nnx.Module):
    """Rows of a table; an id outside it takes the nearest row, so that padding ids are harmless."""

    def __init__(self, rows: int, width: int):
        self.table = parameter((rows, width), std=width**-0.5)

    def __call__(self, ids: Int[Array, "*b"]) -> Float[Array, "*b d"]:
        return jnp.take(self.table[...], ids, axis=0, mode="clip")


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int, *, bias: bool = False):
        self.gate = Linear((width,), (inner,), bias=bias)
        self.up = Linear((width,), (inner,), bias=bias)
        self.down = Linear((inner,), (width,), bias=bias)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def gelu(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """x Phi(x), Phi the normal distribution."""
    return jax.nn.gelu(x, approximate=False)


def tanh_gelu(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """`gelu` by its approximation with tanh."""
    return jax.nn.gelu(x, approximate=True)


def quick_gelu(x: Float[Array, "*b f"]) -> Float[Array, "*b f"]:
    """x sigmoid(1.702 x), an older approximation of `gelu`."""
    return x * jax.nn.sigmoid(x * 1.702)


class MLP(nnx.Module):
    """down(activation(up(x))) with biases."""

    def __init__(self, width: int, inner: int, outer: int, *, activation: Activation):
        self.up = Linear((width,), (inner,), bias=True)
        self.down = Linear((inner,), (outer,), bias=True)
        self.activation = activation

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        return self.down(self.activation(self.up(x)))


def stack(build: Callable[[], nnx.Module], num: int) -> nnx.Module:
    """`num` modules as one, every parameter with a leading layer axis."""
    return nnx.vmap(build, in_axes=(), out_axes=0, axis_size=num)()


class Blueprint(NamedTuple):
    """A module without values: its structure, its parameters' shapes, their initial (mean, std)."""

    graph: nnx.GraphDef
    shapes: Params
    initial: dict[str, tuple[float, float]]


def blueprint(build: Callable[[], nnx.Module]) -> Blueprint:
    """The blueprint of the module that `build` makes; nothing is allocated."""
    graph, state = nnx.split(nnx.eval_shape(build))
    initial = {
        "/".join(map(str, path)): (variable.get_metadata("mean"), variable.get_metadata("std"))
        for path, variable in nnx.to_flat_state(state)
    }
    return Blueprint(graph, nnx.to_pure_dict(state), initial)


def initial_params(blueprint: Blueprint, key: Key[Array, ""]) -> Params:
    """Random float32 parameters; each depends on the key and its own name alone."""
    seed = np.asarray(jax.random.key_data(key)).tolist()

    def draw(name, leaf):
        mean, std = blueprint.initial[name]
        numbers = np.random.default_rng([*seed, zlib.crc32(name.encode())])
        values = mean + std * numbers.standard_normal(leaf.shape, dtype=np.float32)
        return jnp.asarray(values, jnp.float32)

    return map_named(draw, blueprint.shapes)
