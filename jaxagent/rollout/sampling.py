"""The next token of each row, and its log-probability under the distribution it was drawn from.

    logits ─► banned ids out ─► / temperature ─► top_k ─► top_p ─► min_p ─► Gumbel-max

The three cuts keep every token whose scaled logit reaches a threshold. A threshold is found by
bisection over the 32 bits of a float, never by a sort, so that it is exact and costs 32 reductions
whatever the vocabulary. Tokens tied at a threshold stay together: top_k = 2 keeps three tokens when
the second and third are equal.

The noise of a token is a function of (seed, step, question, sample, position) alone. It knows
nothing of slots, of the other rows or of the batch's size.

Left out: presence and repetition penalties.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from jaxagent.bounds import POSITIVE, SHARE, at_least, check_numbers


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn.

    Args:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keeps this many most likely tokens; 0 keeps all.
        top_p: keeps the fewest most likely tokens whose probabilities reach this sum.
        min_p: keeps tokens at least this fraction as likely as the most likely one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, "sampling", at_least(0), "temperature", "top_k")
        check_numbers(self, "sampling", POSITIVE, "top_p")
        check_numbers(self, "sampling", SHARE, "top_p", "min_p")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Drawn(NamedTuple):
    """Tokens and their log-probabilities under the distribution they were drawn from."""

    ids: Int[Array, "*b"]
    log_probs: Float[Array, "*b"]


def drawn(
    logits: Float[Array, "b v"],
    keys: Key[Array, " b"],
    sampling: Sampling,
    *,
    banned: Bool[Array, " v"],
) -> Drawn:
    """One token a row. Greedy choices are certain: their log-probability is 0.

    Logits that are not finite give log-probabilities that are not.
    """
    scaled = support(logits, sampling, banned=banned)
    if sampling.greedy:
        certain = jnp.where(jnp.isfinite(jnp.max(scaled, -1)), 0.0, jnp.nan)
        return Drawn(jnp.argmax(scaled, -1).astype(jnp.int32), certain)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, scaled.shape[1:]))(keys)
    ids = jnp.argmax(scaled + noise, -1).astype(jnp.int32)
    log_probs = jax.nn.log_softmax(scaled)
    return Drawn(ids, jnp.take_along_axis(log_probs, ids[:, None], 1)[:, 0])


def support(
    logits: Float[Array, "b v"], sampling: Sampling, *, banned: Bool[Array, " v"]
) -> Float[Array, "b v"]:
    """Logits of the distribution drawn from: scaled, and -inf on every token that is cut."""
    scaled = jnp.where(banned[None], -jnp.inf, logits.astype(jnp.float32))
    if sampling.greedy:
        return scaled
    scaled = scaled / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        scaled = _kept(scaled, lambda kept: jnp.sum(kept, -1) >= sampling.top_k)
    if sampling.top_p < 1:
        probs = jax.nn.softmax(scaled)
        scaled = _kept(scaled, lambda kept: jnp.sum(probs, -1, where=kept) >= sampling.top_p)
    if sampling.min_p > 0:
        floor = jnp.max(scaled, -1, keepdims=True) + np.log(sampling.min_p).astype(np.float32)
        scaled = jnp.where(scaled >= floor, scaled, -jnp.inf)
    return scaled


def noise_key(seed: int, step: int) -> Key[Array, ""]:
    """The key that all noise of a rollout derives from."""
    return jax.random.fold_in(jax.random.key(seed), step)


def question_number(data_id: str) -> int:
    """What stands for a question in its keys: a hash of its id, not its place in a batch."""
    return zlib.crc32(data_id.encode())


def token_keys(
    key: Key[Array, ""],
    questions: UInt32[Array, " b"],
    samples: UInt32[Array, " b"],
    positions: Int[Array, " b"],
) -> Key[Array, " b"]:
    """The key of the token at each row's position of its dialogue."""

    def folded(question, sample, position):
        by_dialogue = jax.random.fold_in(jax.random.fold_in(key, question), sample)
        return jax.random.fold_in(by_dialogue, position)

    return jax.vmap(folded)(questions, samples, positions)


def _kept(scaled: Float[Array, "b v"], enough) -> Float[Array, "b v"]:
    """`scaled`, with -inf below the highest threshold whose kept tokens are `enough`.

    Floats are mapped to integers in the same order, so that 32 halvings end on the exact float.
    `enough(kept [b v]) -> [b]` holds for every threshold up to the one that is sought.
    """
    bits = jax.lax.bitcast_convert_type(scaled, jnp.int32)
    ranks = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
    low = jnp.min(ranks, -1)
    high = jnp.max(ranks, -1)

    def halved(_, bounds):
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1) + ((low ^ high) & 1)  # upward, overflow-free
        holds = enough(ranks >= middle[:, None])
        return jnp.where(holds, middle, low), jnp.where(holds, high, middle - 1)

    low, _ = jax.lax.fori_loop(0, 32, halved, (low, high))
    return jnp.where(ranks >= low[:, None], scaled, -jnp.inf)
