"""Contrastive training of any encoder on pairs of images of one entity (InfoNCE, both ways).

For unit vectors q_i and k_i of the two images of entity i, and temperature T:

    s_ij = q_i . k_j / T
    loss = mean_i (log sum_j exp s_ij - s_ii) / 2  +  mean_j (log sum_i exp s_ij - s_jj) / 2

The rows of a batch show different entities, so every other row is a negative. van den Oord et al.,
Representation Learning with Contrastive Predictive Coding, 2018; both ways as in CLIP (Radford et
al., 2021), with a fixed temperature. AdamW under a linear warm-up and a cosine, gradients cut by
their global norm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxagent.training.optimizer import Optimizer, OptimizerConfig, make_optimizer
from jaxagent.trees import Params


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """A contrastive run; `warmup` is a share of the steps."""

    steps: int
    learning_rate: float = 2e-3
    warmup: float = 0.1
    weight_decay: float = 1e-4
    temperature: float = 0.07
    clip_norm: float = 1.0


class Pairs(NamedTuple):
    """A batch: row i of both sides shows the same entity, other rows show others."""

    queries: Any
    keys: Any


Embed = Callable[[Params, Any], Float[Array, "b e"]]
"""Unit vectors of one side of a batch."""


class Trained(NamedTuple):
    """Trained parameters and the loss of every step."""

    params: Params
    losses: list[float]


def contrastive_loss(
    queries: Float[Array, "b e"], keys: Float[Array, "b e"], *, temperature: float
) -> Float[Array, ""]:
    """InfoNCE, the mean of both ways; see the module's equations."""
    scores = queries @ keys.T / temperature
    own = jnp.diagonal(scores)
    there = jax.nn.logsumexp(scores, axis=1) - own
    back = jax.nn.logsumexp(scores, axis=0) - own
    return (there.mean() + back.mean()) / 2


def _optimizer(config: ContrastiveConfig) -> Optimizer:
    return make_optimizer(
        OptimizerConfig(
            learning_rate=config.learning_rate,
            schedule="cosine",
            warmup=config.warmup,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            beta2=0.999,
        ),
        config.steps,
    )


@partial(jax.jit, static_argnames=("embed", "config"), donate_argnames=("params", "state"))
def _step(
    params: Params, state: optax.OptState, pairs: Pairs, *, embed: Embed, config: ContrastiveConfig
) -> tuple[Params, optax.OptState, Float[Array, ""]]:
    def loss(params: Params) -> Float[Array, ""]:
        queries, keys = embed(params, pairs.queries), embed(params, pairs.keys)
        return contrastive_loss(queries, keys, temperature=config.temperature)

    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = _optimizer(config).update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value


def train(
    embed: Embed,
    params: Params,
    pairs: Callable[[int], Pairs],
    config: ContrastiveConfig,
    *,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Trained:
    """Trained parameters; `params` is given up to the run.

    `pairs(step)` is the batch of a step, every batch of one shape; `progress` hears each step's
    loss. Raises FloatingPointError at the first loss that is not finite.
    """
    state = _optimizer(config).init(params)
    losses: list[float] = []
    for step in range(config.steps):
        params, state, loss = _step(params, state, pairs(step), embed=embed, config=config)
        losses.append(float(loss))
        if not jnp.isfinite(loss):
            raise FloatingPointError(
                f"The contrastive loss is {losses[-1]} at step {step}. Lower the learning rate "
                f"({config.learning_rate})."
            )
        progress(step, losses[-1])
    return Trained(params, losses)
