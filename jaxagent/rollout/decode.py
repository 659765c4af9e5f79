"""The device's part of a rollout: four compiled functions over one KV cache.

    encoded    images of one grid              -> their features
    appended   chunks of several rows          -> the cache with them
    copied     rows that hold a shared prompt  -> the cache with copies of them
    decoded    the last token of several rows  -> `steps` further tokens of each, and the cache

Parameters and cache are arguments, the cache is donated. A batch is padded with rows whose index lies
behind the cache: they read some row and write nowhere. `span` bounds the slots that attention reads, and
every real token of the call stands below it. Functions and not methods, so that two engines of one
policy share what was compiled.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from jaxagent.models.attention import KVCache
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.qwen3_vl import Grid, Model
from jaxagent.rollout.sampling import Drawn, Sampling, drawn, token_keys
from jaxagent.trees import Params


class Chunks(NamedTuple):
    """Tokens to append to `rows` of the cache, from slot `start` on.

    `feature_index` is -1 at text; an image token takes that row of the flattened features.
    """

    rows: Int[Array, " b"]
    start: Int[Array, " b"]
    ids: Int[Array, "b t"]
    positions: Int[Array, "3 b t"]
    features: ImageFeatures
    feature_index: Int[Array, "b t"]


class Speakers(NamedTuple):
    """Rows to write in: the last token of each, its slot and its M-RoPE position.

    `questions` and `samples` name the dialogue that the noise is drawn for.
    """

    rows: Int[Array, " b"]
    start: Int[Array, " b"]
    ids: Int[Array, " b"]
    positions: Int[Array, " b"]
    questions: UInt32[Array, " b"]
    samples: UInt32[Array, " b"]


class Decoded(NamedTuple):
    """`steps` tokens of each row, and the cache that holds all of them but the last."""

    drawn: Drawn
    cache: KVCache


@partial(jax.jit, static_argnames=("model", "grid"))
def encoded(
    model: Model, params: Params, patches: Float[Array, "i p c"], *, grid: Grid
) -> ImageFeatures:
    """The features of images that share one grid."""
    return model.encode_images(params, patches, grid)


@partial(jax.jit, static_argnames=("model", "span"), donate_argnames="cache")
def appended(model: Model, params: Params, cache: KVCache, chunks: Chunks, *, span: int) -> KVCache:
    """The cache with the chunks in it."""
    _, cache = model.extend(
        params,
        cache,
        chunks.ids,
        chunks.positions,
        chunks.rows,
        chunks.start,
        chunks.features,
        chunks.feature_index,
        length=span,
    )
    return cache


@partial(jax.jit, static_argnames="span", donate_argnames="cache")
def copied(
    cache: KVCache, sources: Int[Array, " b"], targets: Int[Array, " b"], *, span: int
) -> KVCache:
    """The cache with the first `span` slots of each source row in its target row."""
    taken = cache.pages.at[:, sources, :span].get(mode="clip")
    return KVCache(cache.pages.at[:, targets, :span].set(taken, mode="drop"))


@partial(jax.jit, static_argnames=("model", "sampling", "steps", "span"), donate_argnames="cache")
def decoded(
    model: Model,
    params: Params,
    cache: KVCache,
    speakers: Speakers,
    key: Key[Array, ""],
    banned: Bool[Array, " v"],
    *,
    sampling: Sampling,
    steps: int,
    span: int,
) -> Decoded:
    """Some further tokens of each speaker.

    The rows' slots are gathered once for all steps, and the new ones are written back behind them.
    """
    rows, start = speakers.rows, speakers.start
    gathered = KVCache(cache.pages.at[:, rows, :span].get(mode="clip"))

    def step(carry, at):
        cache, ids = carry
        slots = start + at
        positions = jnp.broadcast_to((speakers.positions + at)[None, :, None], (3, *ids.shape, 1))
        hidden, cache = model.extend(params, cache, ids[:, None], positions, None, slots)
        keys = token_keys(key, speakers.questions, speakers.samples, slots + 1)
        new = drawn(model.logits(params, hidden[:, 0]), keys, sampling, banned=banned)
        return (cache, new.ids), new

    (gathered, _), new = jax.lax.scan(step, (gathered, speakers.ids), jnp.arange(steps))
    slots = start[:, None] + jnp.arange(steps)[None]
    local = jnp.arange(rows.shape[0])[:, None]
    written = gathered.pages.at[:, local, slots].get(mode="clip")
    pages = cache.pages.at[:, rows[:, None], slots].set(written, mode="drop")
    return Decoded(Drawn(new.ids.T, new.log_probs.T), KVCache(pages))
