"""Attention over the cache, one row after the other, each over its own slots only.

    m' = max(m, max s),  l' = e^(m - m') l + sum e^(s - m'),  o' = e^(m - m') o + e^(s - m') v

for the scores s of one block of slots after the other; the result is o / l. A row reads as many
blocks as it has filled, so rows of different lengths share a call and nothing is padded to the
longest; the scores of a block stay in a core's cache. Rows follow one another: this is the form for
CPUs. An accelerator wants all rows at once (`attention.attention` over a common length, or a paged
kernel).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.models.attention import KVCache, Place

BLOCK = 128
"""Slots read at a time: of 128, 256 and 384 the fastest for short dialogues."""


def row_attention(
    q: Float[Array, "b t n h"], cache: KVCache, layer: Int[Array, ""], place: Place
) -> Float[Array, "b t n h"]:
    """What a chunk's queries take from the slots of their row, up to their own."""
    b, t, n, h = q.shape
    kv_heads = cache.pages.shape[3] // 2
    rows = jnp.arange(b) if place.rows is None else place.rows
    grouped = q.reshape(b, t, kv_heads, n // kv_heads, h).transpose(0, 2, 3, 1, 4)

    def one(row):
        row, start, queries = row
        return _one_row(queries, cache, layer, row, start)

    taken = jax.lax.map(one, (rows, place.start, grouped))
    return taken.transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def _one_row(
    queries: Float[Array, "k g t h"],
    cache: KVCache,
    layer: Int[Array, ""],
    row: Int[Array, ""],
    start: Int[Array, ""],
) -> Float[Array, "k g t h"]:
    k, g, t, h = queries.shape
    length = cache.pages.shape[2]
    block = min(BLOCK, length)
    joined = t == 1  # for so few queries, one wide product takes less time than one for each head
    asked = (queries * h**-0.5).reshape(k, g * t, h)
    asked = _spread(asked) if joined else asked
    last = jnp.tile(start + jnp.arange(t), asked.shape[1] // t)

    def step(at, carry):
        peak, total, taken = carry
        first = jnp.minimum(at * block, length - block)  # the last block may overlap the one before
        both = jax.lax.dynamic_slice(
            cache.pages, (layer, row, first, 0, 0), (1, 1, block, 2 * k, h)
        )[0, 0].astype(asked.dtype)
        if joined:
            keys = values = both.reshape(1, block, 2 * k * h)
        else:
            keys, values = jnp.split(both.transpose(1, 0, 2), 2)
        scores = _product("pxc,psc->pxs", asked, keys)
        slots = first + jnp.arange(block)
        visible = (slots[None] <= last[:, None]) & (slots[None] >= at * block)
        scores = jnp.where(visible[None], scores, jnp.finfo(jnp.float32).min)
        new_peak = jnp.maximum(peak, jnp.max(scores, -1))
        shrink = jnp.exp(peak - new_peak)
        weights = jnp.exp(scores - new_peak[:, :, None])
        total = total * shrink + jnp.sum(weights, -1)
        new = _product("pxs,psc->pxc", weights.astype(values.dtype), values)
        return new_peak, total, taken * shrink[:, :, None] + new

    peak = jnp.full(asked.shape[:2], jnp.finfo(jnp.float32).min)
    carry = (peak, jnp.zeros_like(peak), jnp.zeros(asked.shape))
    num_blocks = jnp.minimum((start + t - 1) // block + 1, -(-length // block))
    _, total, taken = jax.lax.fori_loop(0, num_blocks, step, carry)
    taken = taken / total[:, :, None]
    if joined:
        by_head = taken.reshape(k, g, 2 * k, h)
        taken = jnp.stack([by_head[head, :, k + head] for head in range(k)])
    return taken.reshape(k, g, t, h).astype(queries.dtype)


def _spread(queries: Float[Array, "k g h"]) -> Float[Array, "1 n c"]:
    """Queries as wide as a whole slot, zero but at their own key head.

    two key heads     q0  ->  q0  0  .  .      a slot holds  k0 k1 v0 v1
                      q1  ->   0 q1  .  .
    """
    k, g, h = queries.shape
    wide = jnp.zeros((k, g, 2 * k, h), queries.dtype)
    own = jnp.arange(k)
    return wide.at[own, :, own].set(queries).reshape(1, k * g, 2 * k * h)


def _product(axes: str, x: Array, y: Array) -> Array:
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)
