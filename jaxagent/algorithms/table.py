"""The table of algorithms: each is one value, and a new one is a new row.

name             log ratio   surrogate   advantage     aggregation    clip         old
sft              token       likelihood  -             token mean     none         current
grpo             token       clipped     standardised  token mean     0.2 / 0.2    sampler
gspo             sequence    clipped     standardised  sequence mean  3e-4 / 4e-4  sampler
tn_gspo          horizon     clipped     centred       sequence mean  0.2 / 0.28   sampler
tn_gspo_release  released    clipped     standardised  sequence mean  0.2 / 0.28   trainer

Sources: MMAgent-R2 for GRPO (token mean, symmetric clip, no KL), GSPO section 5.1 for its clip,
ProMSA for TN-GSPO (H = 1 + calls) and its public release (H = calls, sample standard deviation).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Array, Float

from jaxagent.algorithms.advantages import centred, standardised
from jaxagent.algorithms.aggregations import Counts, group_token_mean, sequence_mean, token_mean
from jaxagent.algorithms.log_ratios import (
    Samples,
    horizon_log_ratio,
    released_log_ratio,
    sequence_log_ratio,
    token_log_ratio,
)
from jaxagent.algorithms.losses import Clip, Surrogate, clipped_surrogate, likelihood
from jaxagent.suggestions import did_you_mean

T = TypeVar("T")
Old = Literal["sampler", "trainer", "current"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A policy-gradient algorithm.

    `old` says which log-probabilities the ratio is taken to: those recorded while sampling
    (sampler), those of the parameters before the first optimiser pass (trainer), or the ones just
    computed, without their gradient (current: every ratio is 1).
    """

    log_ratio: Callable[[Float[Array, "b u"], Samples], Float[Array, "b u"]]
    surrogate: Surrogate = clipped_surrogate
    advantage: Callable[[Float[np.ndarray, " m"]], Float[np.ndarray, " m"]] = standardised
    aggregation: Callable[[Counts], Float[np.ndarray, " n"]]
    clip: Clip
    old: Old = "sampler"


ADVANTAGES = {"centred": centred, "standardised": standardised}
AGGREGATIONS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "group_token_mean": group_token_mean,
}
ALGORITHMS: Mapping[str, Algorithm] = {
    "sft": Algorithm(
        log_ratio=token_log_ratio,
        surrogate=likelihood,
        aggregation=token_mean,
        clip=Clip(np.inf, np.inf),
        old="current",
    ),
    "grpo": Algorithm(log_ratio=token_log_ratio, aggregation=token_mean, clip=Clip(0.2, 0.2)),
    "gspo": Algorithm(
        log_ratio=sequence_log_ratio, aggregation=sequence_mean, clip=Clip(3e-4, 4e-4)
    ),
    "tn_gspo": Algorithm(
        log_ratio=partial(horizon_log_ratio, c=0.04, alpha=1.0, offset=1),
        advantage=centred,
        aggregation=sequence_mean,
        clip=Clip(0.2, 0.28),
    ),
    "tn_gspo_release": Algorithm(
        log_ratio=partial(released_log_ratio, c=0.04, alpha=1.0, offset=0),
        advantage=partial(standardised, ddof=1),
        aggregation=sequence_mean,
        clip=Clip(0.2, 0.28),
        old="trainer",
    ),
}


def choice(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The table's entry of that name; a wrong name is a ValueError with the nearest right one."""
    if name not in table:
        raise ValueError(f"There is no {kind} {name!r}. {did_you_mean(name, table)}")
    return table[name]


def algorithm(
    name: str,
    *,
    clip: tuple[float, float] | None = None,
    horizon: Mapping[str, float] | None = None,
    advantage: str | None = None,
    aggregation: str | None = None,
    old: Old | None = None,
) -> Algorithm:
    """The algorithm of that name, with what is given in place of its own.

    Args:
        horizon: any of c, alpha and offset.

    Raises:
        ValueError: a name that is not in its table, a horizon for an algorithm that has none, or
            a number below 0.
    """
    row = choice("algorithm", name, ALGORITHMS)
    if horizon:
        if not isinstance(row.log_ratio, partial):
            raise ValueError(
                f"Algorithm {name!r} has no horizon, but {dict(horizon)} was given. "
                "Choose tn_gspo, or leave the horizon empty."
            )
        if min(horizon.values()) < 0:
            raise ValueError(f"algorithm.horizon is {dict(horizon)}; all must be at least 0.")
        row = replace(row, log_ratio=partial(row.log_ratio, **horizon))
    if clip is not None:
        if min(clip) < 0:
            raise ValueError(f"algorithm.clip is {clip}; both must be at least 0.")
        row = replace(row, clip=Clip(*clip))
    if advantage is not None:
        row = replace(row, advantage=choice("advantage", advantage, ADVANTAGES))
    if aggregation is not None:
        row = replace(row, aggregation=choice("aggregation", aggregation, AGGREGATIONS))
    if old is not None:
        row = replace(row, old=old)
    return row
