"""Metrics of an evaluation: accuracy, identification, calls, retrieval by round, with intervals.

Shares and means are fractions. Questions about one entity are not independent, so an interval
resamples entities:

    entities   td td td | ro | ml ml       one resample: ro, ro, td -> their questions together
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.scoring.infoseek import harmonic_mean, official_score, reference_of
from jaxagent.types import Candidate, Dialogue, Question, Trajectory


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
    recorded = [search.entity and search.entity.entity for search in dialogue.state.images]
    return recorded == list(dialogue.question.entities)


def rejections(dialogue: Dialogue) -> int:
    """Rejections that asked for another batch; those past the limit are not among them."""
    if not isinstance(dialogue.state, mmagent_r2.State):
        return 0
    return sum(search.rejections for search in dialogue.state.images)


@dataclass(frozen=True, kw_only=True)
class SplitMeans:
    """Means of one metric by split and over all of them.

    `harmonic` is InfoSeek's "all", the harmonic mean of unseen question and unseen entity (None
    when one is absent); `micro` weighs questions alike. Papers print either.
    """

    splits: Mapping[str, float]
    harmonic: float | None
    micro: float


def split_means(values: Sequence[float], questions: Sequence[Question]) -> SplitMeans:
    """Means of `values[i]`, measured on `questions[i]`; raises ValueError when there is none."""
    if not values or len(values) != len(questions):
        raise ValueError(f"{len(values)} values for {len(questions)} questions; give one for each.")
    splits, kinds = defaultdict(list), defaultdict(list)
    for value, question in zip(values, questions, strict=True):
        splits[question.split].append(value)
        kinds[question.split.endswith("unseen_question")].append(value)
    both = len(kinds) == 2
    return SplitMeans(
        splits={name: _mean(rows) for name, rows in sorted(splits.items())},
        harmonic=harmonic_mean(_mean(kinds[True]), _mean(kinds[False])) if both else None,
        micro=_mean(values),
    )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One row of ProMSA's retrieval table; both are shares of all samples that searched.

    `right`: some document of this or an earlier round was right. `stopped_wrong`: the sample
    stopped by this round and none was.
    """

    number: int
    right: float
    stopped_wrong: float


def retrieval_by_round(trajectories: Sequence[Trajectory]) -> list[Round]:
    """Cumulative retrieval accuracy over the calls of each ProMSA dialogue.

    A right document is a page of a true entity or a passage of the question's evidence.
    """
    histories = [rounds for one in trajectories if (rounds := _right_by_call(one))]
    length = max(map(len, histories), default=0)
    table = []
    for number in range(1, length + 1):
        right = [any(history[:number]) for history in histories]
        stopped = [len(history) <= number for history in histories]
        table.append(
            Round(
                number=number,
                right=_mean(right),
                stopped_wrong=_mean(
                    done and not good for done, good in zip(stopped, right, strict=True)
                ),
            )
        )
    return table


def _right_by_call(trajectory: Trajectory) -> list[bool]:
    question, turns = trajectory.question, trajectory.dialogue.turns
    calls = promsa.ImageSearch | promsa.TextSearch | promsa.BadCall
    # A call on the last step is not answered, so its turn may be the last one.
    answers = [turn.found for turn in turns[1:]] + [()]
    return [
        any(
            one.entity in question.entities
            if isinstance(one, Candidate)
            else one.id in question.evidence
            for one in found
        )
        for turn, found in zip(turns, answers, strict=True)
        if isinstance(turn.action, calls)
    ]


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


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
