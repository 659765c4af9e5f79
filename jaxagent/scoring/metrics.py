"""Metrics of an evaluation: accuracy, identification, verdicts, rejections, and intervals.

Questions about one entity are not independent, so an interval resamples entities:

    entities   td td td | ro | ml ml       one resample: ro, ro, td -> their questions together
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxagent.agents import mmagent_r2
from jaxagent.scoring.infoseek import official_score, reference_of
from jaxagent.types import Dialogue, Question


def answered_right(question: Question, answer: str | None) -> float:
    """The data set's metric, as it is published; 0 without an answer or where it raises."""
    if answer is None:
        return 0.0
    try:
        return official_score(answer, reference_of(question), kind=question.kind)
    except ValueError:
        return 0.0


def identified(dialogue: Dialogue) -> bool | None:
    """Ident.: whether the recorded entities are the true ones for ALL images.

    None where the method records no entity (ProMSA).
    """
    if not isinstance(dialogue.state, mmagent_r2.State):
        return None
    return dialogue.state.recorded == dialogue.question.entities


def rejections(dialogue: Dialogue) -> int:
    """Rejections that asked for another batch; those past the limit are not among them."""
    if not isinstance(dialogue.state, mmagent_r2.State):
        return 0
    return sum(search.rejections for search in dialogue.state.images)


def verified(dialogue: Dialogue) -> dict[int, bool]:
    """The policy's turns (from 1) that verified a batch, and whether they were right; those that
    the method refused are not among them."""
    state = dialogue.state
    if not isinstance(state, mmagent_r2.State):
        return {}
    entities = dialogue.question.entities
    return {one.turn: state.is_right(one, entities[one.image]) for one in state.verifications}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its percentile interval."""

    mean: float
    low: float
    high: float


def entity_interval(
    values: Float[np.ndarray, " g"],
    entities: Sequence[str],
    *,
    minus: Float[np.ndarray, " g"] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The mean over questions with a bootstrap interval over entities.

    With `minus`, the paired difference of two systems on the same questions. `entities[i]` is the
    cluster of question i, the entity of its first image. Raises ValueError for an empty or uneven
    input.
    """
    if not len(values) or len(values) != len(entities):
        raise ValueError(f"{len(values)} values for {len(entities)} entities; give one for each.")
    if minus is not None:
        if len(minus) != len(values):
            raise ValueError(f"Paired with {len(minus)} values, not {len(values)}.")
        values = values - minus
    _, cluster = np.unique(np.array(entities), return_inverse=True)
    counts = np.bincount(cluster).astype(np.float64)
    sums = np.bincount(cluster, weights=values)
    num = len(counts)
    drawn = np.random.default_rng(seed).multinomial(num, np.full(num, 1 / num), size=resamples)
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high))
