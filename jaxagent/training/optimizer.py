"""AdamW with global-norm clipping, and the learning rate over the updates.

warm-up:  rate * (k + 1) / w      in update k = 0 .. w - 1
then:     constant, or by half a cosine or a line to 0, behind the last update
"""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxagent.bounds import BELOW_1, POSITIVE, at_least, check_numbers
from jaxagent.trees import Params, map_named

NOT_DECAYED = r"(norm/scale|bias)$"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW's numbers; `warmup` is a share of the updates."""

    learning_rate: float = 1e-4
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: float = 0.05
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0

    def __post_init__(self):
        check_numbers(self, "optimizer", BELOW_1, "warmup", "beta1", "beta2")
        check_numbers(self, "optimizer", at_least(0), "learning_rate", "weight_decay")
        check_numbers(self, "optimizer", POSITIVE, "epsilon", "clip_norm")


def learning_rate(config: OptimizerConfig, num_updates: int) -> optax.Schedule:
    """The rate of each update, counted from 0."""
    num_warm = round(config.warmup * num_updates)
    peak, num_left = config.learning_rate, max(num_updates - num_warm, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "cosine": optax.cosine_decay_schedule(peak, num_left),
        "linear": optax.linear_schedule(peak, 0.0, num_left),
    }[config.schedule]

    def rate(update: Int[Array, ""] | int) -> Float[Array, ""]:
        update = jnp.asarray(update, jnp.float32)
        warm = peak * (update + 1) / max(num_warm, 1)
        return jnp.where(update < num_warm, warm, after(update - num_warm))

    return rate


class Optimizer(NamedTuple):
    """An optax transformation from gradients to what is added, and the rate of each update."""

    init: optax.TransformInitFn
    update: optax.TransformUpdateFn
    rate: optax.Schedule


def make_optimizer(config: OptimizerConfig, num_updates: int) -> Optimizer:
    """AdamW over so many updates."""
    rate = learning_rate(config, num_updates)
    chain = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            rate,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=_decayed,
        ),
    )

    def update(gradients: Params, state: optax.OptState, params: Params):
        # optax raises a float to the power of its integer count
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(gradients, state, params)

    return Optimizer(chain.init, update, rate)


def _decayed(params: Params) -> Params:
    """False for norms and biases."""
    return map_named(lambda name, _: re.search(NOT_DECAYED, name) is None, params)
