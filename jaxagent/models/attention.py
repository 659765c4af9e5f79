"""Grouped-query attention and the KV cache.

softmax(q k^T / sqrt(h)) v, where n query heads share k key and value heads in groups of n / k. The
groups are an axis of the einsum, so keys and values are never repeated in memory. Scores and
softmax are float32. A row that sees nothing returns finite values that nobody reads.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.config import TextConfig

_MIN_BLOCK = 64  # queries of a block of `packed_attention`
_MAX_BLOCKS = 8


class KVCache(NamedTuple):
    """Keys and values of all layers; a page is a row's whole slot, `kv` is k keys then k values."""

    pages: Float[Array, "l pages page kv h"]


class Place(NamedTuple):
    """Where a chunk stands: the page of each row (None: page b for row b) and its first slot."""

    rows: Int[Array, " b"] | None
    start: Int[Array, " b"]


def new_cache(config: TextConfig, rows: int, length: int, *, dtype: DTypeLike) -> KVCache:
    """An empty cache with `length` slots for each of `rows` rows."""
    shape = (config.layers, rows, length, 2 * config.kv_heads, config.head_size)
    return KVCache(jnp.zeros(shape, dtype))


def attention(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    visible: Bool[Array, "b t s"] | None,
) -> Float[Array, "b t n h"]:
    """What each query takes from the keys it may see (None: all of them)."""
    b, t, n, h = q.shape
    grouped = q.reshape(b, t, k.shape[2], n // k.shape[2], h)
    scores = jnp.einsum("bskh,btkgh->bkgts", k, grouped, preferred_element_type=jnp.float32)
    scores = scores * h**-0.5
    if visible is not None:
        scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(b, t, n, h)


def packed_attention(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    segments: Int[Array, "b t"],
) -> Float[Array, "b t n h"]:
    """`attention` under `segment_mask`, without most of the scores that the mask would hide.

    A block of queries meets only the keys up to its own end. Heads stand before tokens, so that
    each product is of whole matrices: 3 times as fast on CPUs, forwards and backwards.
    """
    b, t, n, h = q.shape
    groups = n // k.shape[2]
    q = (q * h**-0.5).reshape(b, t, -1, groups, h).transpose(0, 2, 3, 1, 4)
    k, v = (x.swapaxes(1, 2) for x in (k, v))
    size = max(_MIN_BLOCK, -(-t // _MAX_BLOCKS))
    blocks = []
    for start in range(0, t, size):
        end = min(start + size, t)
        queries = q[:, :, :, start:end].reshape(b, -1, groups * (end - start), h)
        scores = jnp.einsum(
            "bkqh,bksh->bkqs", queries, k[:, :, :end], preferred_element_type=jnp.float32
        ).reshape(b, -1, groups, end - start, end)
        visible = segment_mask(segments[:, :end], start)[:, None, None]
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        taken = jnp.einsum(
            "bkqs,bksh->bkqh",
            weights.astype(v.dtype).reshape(b, -1, groups * (end - start), end),
            v[:, :, :end],
            preferred_element_type=jnp.float32,
        ).reshape(b, -1, groups, end - start, h)
        blocks.append(taken / weights.sum(-1, keepdims=True))
    taken = jnp.concatenate(blocks, 3).astype(v.dtype)
    return taken.transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def segment_mask(segments: Int[Array, "b s"], start: int = 0) -> Bool[Array, "b t s"]:
    """Which tokens see which in packed rows: earlier ones, and itself, of the same segment.

    The rows are those of the tokens from `start` on.

    segments  1 1 2 2 0      1 . . . .
                             1 1 . . .
                             . . 1 . .
                             . . 1 1 .
                             . . . . 1
    """
    slots = jnp.arange(segments.shape[1])
    same = segments[:, start:, None] == segments[:, None, :]
    return same & (slots[start:, None] >= slots[None])[None]


def cache_mask(start: Int[Array, " b"], num_tokens: int, length: int) -> Bool[Array, "b t s"]:
    """Which slots the tokens of a chunk see: all up to their own.

    start 2, 2 tokens, 5 slots:      1 1 1 . .
                                     1 1 1 1 .
    """
    slots = start[:, None] + jnp.arange(num_tokens)[None]
    return jnp.arange(length)[None, None] <= slots[:, :, None]


def append(
    cache: KVCache,
    layer: Int[Array, ""],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    place: Place,
) -> KVCache:
    """The cache with a chunk's keys and values; what would lie behind a page's end is dropped."""
    b, t = k.shape[:2]
    rows = jnp.arange(b) if place.rows is None else place.rows
    slots = place.start[:, None] + jnp.arange(t)[None]
    new = jnp.concatenate([k, v], axis=2).astype(cache.pages.dtype)
    return KVCache(cache.pages.at[layer, rows[:, None], slots].set(new, mode="drop"))


def cached_keys_values(
    cache: KVCache, layer: Int[Array, ""], place: Place, *, length: int
) -> tuple[Float[Array, "b s k h"], Float[Array, "b s k h"]]:
    """Keys and values of the first `length` slots of the rows in `place`."""
    _, pages, _, kv, h = cache.pages.shape
    if place.rows is None:
        both = jax.lax.dynamic_slice(cache.pages, (layer, 0, 0, 0, 0), (1, pages, length, kv, h))[0]
    else:
        both = cache.pages[layer, place.rows, :length]
    k, v = jnp.split(both, 2, axis=2)
    return k, v
