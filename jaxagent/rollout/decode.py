"""The device's part of a rollout: four compiled functions over one KV cache.

    encoded    images of one grid              -> their features
    appended   chunks of several rows          -> the cache with them
    copied     rows that hold a shared prompt  -> the cache with copies of them
    decoded    the last token of several rows  -> `steps` further tokens of each, and the cache

Parameters and cache are arguments, the cache is donated. The cache's rows are divided among the
devices of a mesh with the one axis `replica`; each has all parameters, works on its own rows and
never waits for another. Batches hold as many rows for each replica, one replica after the other,
and name rows by their place within the replica; those that pad it lie behind its last row: they
read some row and write nowhere. Functions and not methods, so that two engines of one policy share
what was compiled.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from jaxagent.models.attention import KVCache
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.policy import CacheKernel, Model
from jaxagent.rollout.sampling import Drawn, Sampling, drawn, token_keys
from jaxagent.trees import Params
from jaxagent.types import Grid

REPLICA = "replica"
CACHE = KVCache(P(None, REPLICA))
ROWS = P(REPLICA)


class Reach(NamedTuple):
    """How a call attends to the cache: by which kernel, over how many slots (None: all).

    Every real token of a call stands below the bound. The "row" kernel needs none.
    """

    kernel: CacheKernel
    span: int | None = None


class Chunks(NamedTuple):
    """Tokens to append to `rows` of the cache, from slot `start` on.

    Image features lie at the tokens where they stand, so each chunk has as many as tokens.
    `feature_index` is -1 at text and else counts in the flattened features of the replica.
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


CHUNKS = Chunks(
    rows=ROWS,
    start=ROWS,
    ids=ROWS,
    positions=P(None, REPLICA),
    features=ImageFeatures(ROWS, P(None, REPLICA)),
    feature_index=ROWS,
)


@partial(jax.jit, static_argnames=("model", "grid"))
def encoded(
    model: Model, params: Params, patches: Float[Array, "i p c"], *, grid: Grid
) -> ImageFeatures:
    """The features of images that share one grid."""
    return model.encode_images(params, patches, grid)


@partial(jax.jit, static_argnames=("model", "mesh", "reach"), donate_argnames="cache")
def appended(
    model: Model, params: Params, cache: KVCache, chunks: Chunks, *, mesh: Mesh, reach: Reach
) -> KVCache:
    """The cache with the chunks in it."""

    def on_replica(params, cache, chunks):
        _, cache = model.extend(
            params,
            cache,
            chunks.ids,
            chunks.positions,
            chunks.rows,
            chunks.start,
            chunks.features,
            chunks.feature_index,
            length=reach.span,
            kernel=reach.kernel,
        )
        return cache

    sharded = _on_replicas(on_replica, mesh, in_specs=(P(), CACHE, CHUNKS), out_specs=CACHE)
    return sharded(params, cache, chunks)


@partial(jax.jit, static_argnames=("mesh", "span"), donate_argnames="cache")
def copied(
    cache: KVCache, sources: Int[Array, " b"], targets: Int[Array, " b"], *, mesh: Mesh, span: int
) -> KVCache:
    """The cache with the first `span` slots of each source row in its target row."""

    def on_replica(cache, sources, targets):
        taken = cache.pages.at[:, sources, :span].get(mode="clip")
        return KVCache(cache.pages.at[:, targets, :span].set(taken, mode="drop"))

    sharded = _on_replicas(on_replica, mesh, in_specs=(CACHE, ROWS, ROWS), out_specs=CACHE)
    return sharded(cache, sources, targets)


@partial(
    jax.jit,
    static_argnames=("model", "mesh", "sampling", "steps", "reach"),
    donate_argnames="cache",
)
def decoded(
    model: Model,
    params: Params,
    cache: KVCache,
    speakers: Speakers,
    key: Key[Array, ""],
    banned: Bool[Array, " v"],
    *,
    mesh: Mesh,
    sampling: Sampling,
    steps: int,
    reach: Reach,
) -> Decoded:
    """Some further tokens of each speaker."""

    def on_replica(params, cache, speakers, key, banned):
        start = speakers.start

        def step(carry, at):
            cache, ids = carry
            positions = (speakers.positions + at)[None, :, None]
            hidden, cache = model.extend(
                params,
                cache,
                ids[:, None],
                jnp.broadcast_to(positions, (3, *ids.shape, 1)),
                speakers.rows,
                start + at,
                length=reach.span,
                kernel=reach.kernel,
            )
            keys = token_keys(key, speakers.questions, speakers.samples, start + at + 1)
            new = drawn(model.logits(params, hidden[:, 0]), keys, sampling, banned=banned)
            return (cache, new.ids), new

        (cache, _), new = jax.lax.scan(step, (cache, speakers.ids), jnp.arange(steps))
        return Decoded(Drawn(new.ids.T, new.log_probs.T), cache)

    sharded = _on_replicas(
        on_replica,
        mesh,
        in_specs=(P(), CACHE, Speakers(*[ROWS] * len(Speakers._fields)), P(), P()),
        out_specs=Decoded(Drawn(ROWS, ROWS), CACHE),
    )
    return sharded(params, cache, speakers, key, banned)


def _on_replicas(function, mesh: Mesh, *, in_specs, out_specs):
    # without the check, values made inside (zeros of an accumulator) need no mark that they vary
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
