"""The losses: a surrogate of every target, weighted and summed.

    clipped:     min(r * A, clip(r, 1 - low, 1 + high) * A)      r = exp(log ratio)
    likelihood:  log pi(y_t)                                     cross-entropy, for SFT

    loss = - sum over targets of weight * surrogate

The weights come from `aggregations`, so a batch cut into any pieces gives the same sum. What stands
at a place without a target (NaN, inf) reaches neither the value nor the gradient: inputs are
replaced before they are used.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.algorithms.log_ratios import Samples, spread


class Clip(NamedTuple):
    """A ratio counts between 1 - low and 1 + high."""

    low: float
    high: float


class Targets(NamedTuple):
    """What the loss needs to know of the targets (u) and the samples (z) of packed rows.

    `old_log_probs` are what the ratio is taken to, `weights` what one target of a sample weighs.
    """

    samples: Samples
    old_log_probs: Float[Array, "b u"]
    advantages: Float[Array, "b z"]
    weights: Float[Array, "b z"]


class LossTerms(NamedTuple):
    """A loss, and sums and extremes over its targets that add up over micro-batches."""

    loss: Float[Array, ""]
    clipped_low: Float[Array, ""]
    clipped_high: Float[Array, ""]
    max_ratio: Float[Array, ""]
    min_ratio: Float[Array, ""]


Surrogate = Callable[
    [Float[Array, "b u"], Float[Array, "b u"], Float[Array, "b u"], Clip], Float[Array, "b u"]
]


def clipped_surrogate(
    log_ratio: Float[Array, "b u"],
    log_probs: Float[Array, "b u"],
    advantages: Float[Array, "b u"],
    clip: Clip,
) -> Float[Array, "b u"]:
    """PPO's pessimistic surrogate of each target."""
    del log_probs
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip.low, 1 + clip.high)
    return jnp.minimum(ratio * advantages, clipped * advantages)


def likelihood(
    log_ratio: Float[Array, "b u"],
    log_probs: Float[Array, "b u"],
    advantages: Float[Array, "b u"],
    clip: Clip,
) -> Float[Array, "b u"]:
    """The log-probability of each target."""
    del log_ratio, advantages, clip
    return log_probs


def policy_loss(
    log_probs: Float[Array, "b u"],
    targets: Targets,
    *,
    log_ratio: Callable[[Float[Array, "b u"], Samples], Float[Array, "b u"]],
    surrogate: Surrogate,
    clip: Clip,
) -> LossTerms:
    """The loss of the targets of packed rows, and its terms."""
    samples = targets.samples
    there = samples.ids > 0
    log_probs = jnp.where(there, log_probs, 0)
    delta = log_probs - jnp.where(there, targets.old_log_probs, 0)
    advantages = spread(targets.advantages, samples)
    log_ratios = log_ratio(delta, samples)
    terms = surrogate(log_ratios, log_probs, advantages, clip)
    ratio = jax.lax.stop_gradient(jnp.exp(log_ratios))
    return LossTerms(
        loss=-jnp.sum(spread(targets.weights, samples) * terms),
        clipped_low=jnp.sum((ratio < 1 - clip.low) & (advantages < 0), dtype=log_probs.dtype),
        clipped_high=jnp.sum((ratio > 1 + clip.high) & (advantages > 0), dtype=log_probs.dtype),
        max_ratio=jnp.max(jnp.where(there, ratio, -jnp.inf)),
        min_ratio=jnp.min(jnp.where(there, ratio, jnp.inf)),
    )
