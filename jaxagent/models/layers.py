"""The small layers that every tower is built of.

Norms compute in float32 and return the input's dtype. Nothing promotes a dtype or a rank on its
own, so the layers run under JAX's strict promotion in float32 and in bfloat16. Initial weights are
normal with variance
1 / fan-in; biases start at 0 and norm scales at 1.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


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
        rngs: nnx.Rngs,
    ):
        scale = math.prod(inputs) ** -0.5
        self.kernel = nnx.Param(scale * jax.random.normal(rngs.params(), (*inputs, *outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None
        self.num_axes = len(inputs)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        y = jnp.tensordot(x, self.kernel[...], self.num_axes)
        return y if self.bias is None else y + _broadcast(self.bias[...], y.ndim)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis."""

    def __init__(self, width: int, *, epsilon: float):
        self.scale = nnx.Param(jnp.ones(width))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return wide.astype(x.dtype) * _broadcast(self.scale[...], x.ndim)


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""

    def __init__(self, width: int, *, epsilon: float):
        self.scale = nnx.Param(jnp.ones(width))
        self.bias = nnx.Param(jnp.zeros(width))
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

    def __init__(self, rows: int, width: int, *, rngs: nnx.Rngs):
        self.table = nnx.Param(width**-0.5 * jax.random.normal(rngs.params(), (rows, width)))

    def __call__(self, ids: Int[Array, "*b"]) -> Float[Array, "*b d"]:
        return self.table[...].at[ids].get(mode="clip")


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x)), the text towers' MLP."""

    def __init__(self, width: int, inner: int, *, rngs: nnx.Rngs):
        self.gate = Linear((width,), (inner,), rngs=rngs)
        self.up = Linear((width,), (inner,), rngs=rngs)
        self.down = Linear((inner,), (width,), rngs=rngs)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class MLP(nnx.Module):
    """down(gelu(up(x))) with biases; `approximate` takes the tanh form of gelu."""

    def __init__(self, width: int, inner: int, outer: int, *, approximate: bool, rngs: nnx.Rngs):
        self.up = Linear((width,), (inner,), bias=True, rngs=rngs)
        self.down = Linear((inner,), (outer,), bias=True, rngs=rngs)
        self.approximate = approximate

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        return self.down(jax.nn.gelu(self.up(x), approximate=self.approximate))


def stack(build: Callable[[nnx.Rngs], nnx.Module], num: int, *, rngs: nnx.Rngs) -> nnx.Module:
    """`num` modules as one, every parameter with a leading layer axis, each with its own key."""

    @nnx.split_rngs(splits=num)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def build_all(rngs: nnx.Rngs) -> nnx.Module:
        return build(rngs)

    return build_all(rngs)
