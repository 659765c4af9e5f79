"""Log-probabilities of given targets, by chunks of the projection to the vocabulary.

The logits of `chunk` targets a row exist at a time, forwards and backwards: the backward pass
computes them again. Peak memory is bounded by rows * chunk * v, never rows * targets * v.

The distribution is the sampler's: banned ids out, logits over temperature. Cuts (top-p, top-k) move
with the parameters and have no gradient, so a policy that was sampled with them is refused where
the loop is set up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.rollout.sampling import Sampling, support


class TargetScores(NamedTuple):
    """The log-probability of each target and, without gradient, the entropy of what it was drawn
    from."""

    log_probs: Float[Array, "b u"]
    entropy: Float[Array, "b u"]


def target_scores(
    hidden: Float[Array, "b u d"],
    head: Float[Array, "d v"],
    target_ids: Int[Array, "b u"],
    *,
    chunk: int,
    temperature: float,
    banned: Bool[np.ndarray, " v"],
) -> TargetScores:
    """The scores of the targets that hidden states predict; `chunk` must divide u."""
    b, u, d = hidden.shape
    if u % chunk:
        raise ValueError(f"{u} targets a row do not divide into chunks of {chunk}.")
    sampling = Sampling(temperature=temperature)

    @jax.checkpoint
    def scores_of(states: Float[Array, "b c d"], ids: Int[Array, "b c"]) -> TargetScores:
        logits = jnp.einsum("bcd,dv->bcv", states, head, preferred_element_type=jnp.float32)
        kept = jax.vmap(lambda x: support(x, sampling, banned=jnp.asarray(banned)))(logits)
        log_probs = jax.nn.log_softmax(kept)
        plain = jax.lax.stop_gradient(log_probs)
        entropy = -jnp.sum(jnp.where(plain > -jnp.inf, plain * jnp.exp(plain), 0), axis=-1)
        return TargetScores(jnp.take_along_axis(log_probs, ids[:, :, None], 2)[:, :, 0], entropy)

    def step(carry: None, xs: tuple[Array, Array]) -> tuple[None, TargetScores]:
        return carry, scores_of(*xs)

    states = hidden.reshape(b, u // chunk, chunk, d).swapaxes(0, 1)
    ids = target_ids.reshape(b, u // chunk, chunk).swapaxes(0, 1)
    _, scores = jax.lax.scan(step, None, (states, ids))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(b, u), scores)
