"""Policy optimisation: sample groups, score them, take advantages, update; again and again.

    questions ─► rollout ─► scores ─► advantages ─► epochs x minibatches of updates

Which questions a step asks, the order of minibatches and the noise of sampling derive from the seed
and the step's number. Samples whose advantage is 0 have no gradient: they are counted in every
mean, but never computed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagent.bounds import at_least, check_numbers
from jaxagent.rollout.engine import Engine
from jaxagent.rollout.loop import Rollout
from jaxagent.rollout.sampling import Sampling
from jaxagent.scoring.rewards import Reward, scores
from jaxagent.training.batch import MicroBatch, PictureSource, Shape, micro_batches
from jaxagent.training.loop import Finished, NotedProgress, Run, Stepped, run, updated
from jaxagent.training.pictures import FROZEN_VERSION
from jaxagent.training.samples import Sample, sample
from jaxagent.training.step import Learner, Update, merged
from jaxagent.trees import Params
from jaxagent.types import Question, Score, Trajectory

SampleGroups = Callable[[Params, Sequence[Question], int], Rollout]
"""(parameters, questions, step) -> a group of dialogues for each question."""


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """What a step samples, and how often it learns from it."""

    questions: int = 8
    """Questions a step."""
    samples: int = 8
    """Dialogues a question: the group."""
    epochs: int = 1
    """Passes over each rollout."""
    minibatches: int = 1
    """Updates a pass; groups stay whole."""
    shuffle: Literal["no", "advantages"] = "no"
    """`advantages` permutes them over the batch: a control that must not learn."""
    seed: int = 0

    def __post_init__(self):
        check_numbers(self, "rl", at_least(1), "questions", "epochs", "minibatches")
        check_numbers(self, "rl", at_least(2), "samples")  # a group of one has no advantage
        if self.minibatches > self.questions:
            raise ValueError(
                f"rl.minibatches is {self.minibatches}, but a step has {self.questions} groups. "
                "Lower it, or raise rl.questions."
            )


class Scored(NamedTuple):
    """A rollout's groups with their scores, for whoever watches."""

    groups: list[list[Trajectory]]
    scores: list[list[Score]]


def engine_sampler(engine: Engine, config: RLConfig, *, frozen_vision: bool) -> SampleGroups:
    """Groups from an engine; image features outlive a step when the tower is frozen."""
    check_sampling(engine.config.sampling)

    def groups(params: Params, questions: Sequence[Question], step: int) -> Rollout:
        return engine.run(
            params,
            questions,
            samples=config.samples,
            seed=config.seed,
            step=step,
            version=step,
            vision_version=FROZEN_VERSION if frozen_vision else None,
        )

    return groups


def check_sampling(sampling: Sampling) -> None:
    """Raises ValueError when what sampling records is not what the update computes.

    The update scores whole distributions: greedy choices and cuts are refused.
    """
    if sampling != Sampling(temperature=sampling.temperature) or sampling.greedy:
        raise ValueError(
            f"Training samples with {sampling}, but the update scores whole distributions. Give a "
            "temperature above 0, and no top_k, top_p or min_p."
        )


def step_questions(questions: Sequence[Question], config: RLConfig, step: int) -> list[Question]:
    """The questions of a step: passes over all of them, in a new order each time."""
    start = step * config.questions
    orders: dict[int, np.ndarray] = {}
    drawn = []
    for place in range(start, start + config.questions):
        number, at = divmod(place, len(questions))
        if number not in orders:
            orders[number] = np.random.default_rng((config.seed, number)).permutation(
                len(questions)
            )
        drawn.append(questions[orders[number][at]])
    return drawn


def advantages(
    groups: Sequence[Sequence[Score]],
    advantage: Callable[[Float[np.ndarray, " m"]], Float[np.ndarray, " m"]],
    config: RLConfig,
    step: int,
) -> list[Float[np.ndarray, " m"]]:
    """The advantages of each group; permuted over the whole batch in the control."""
    found = [advantage(np.array([score.total for score in group])) for group in groups]
    if config.shuffle == "no":
        return found
    mixed = np.random.default_rng((config.seed, step, 1)).permutation(np.concatenate(found))
    return np.split(mixed, np.cumsum([len(group) for group in found])[:-1])


def train_rl(
    learner: Learner,
    *,
    update: Update,
    questions: Sequence[Question],
    sample_groups: SampleGroups,
    reward: Reward,
    pictures: Callable[[Params], PictureSource],
    ladder: Sequence[Shape],
    config: RLConfig,
    to: Run,
    watch: Callable[[int, Scored], None] = lambda step, scored: None,
    progress: NotedProgress = lambda what, done, total, note: None,
) -> Finished:
    """The learner after policy optimisation.

    Args:
        pictures: where images come from under given parameters (`training.pictures`).
        watch: sees every rollout with its scores, after the step's update.

    Raises:
        RewardError: a reward raised; the message names the sample.
        NonFiniteGradient: nothing was changed by that update.
    """

    def step(learner: Learner, number: int) -> Stepped:
        clock = _Clock()
        params = merged(learner.params, learner.frozen)
        rollout = sample_groups(params, step_questions(questions, config, number), number)
        clock.lap("time/rollout")
        scored = Scored(
            rollout.trajectories, [scores(reward, group) for group in rollout.trajectories]
        )
        found = advantages(scored.scores, update.algorithm.advantage, config, number)
        clock.lap("time/scoring")
        minibatches = _minibatches(scored.groups, found, config, number)
        batches = [
            _batches(update, learner, samples, pictures(params), ladder) for samples in minibatches
        ]
        clock.lap("time/packing")
        reports = []
        for _ in range(config.epochs):
            for each in batches:
                learner, scalars = updated(update, learner, each, to.folder)
                reports.append(scalars)
        clock.lap("time/update")
        watch(number, scored)
        scalars = {f"rollout/{name}": float(value) for name, value in rollout.metrics.items()}
        scalars |= reward_scalars(scored) | clock.laps
        scalars |= {f"update/{name}": value for name, value in combined(reports).items()}
        return Stepped(learner, scalars)

    return run(learner, step, to, progress=progress)


def reward_scalars(scored: Scored) -> dict[str, float]:
    """Means of the reward and of its terms, the share of groups that teach, lengths and calls."""
    flat_scores = [score for group in scored.scores for score in group]
    dialogues = [one for group in scored.groups for one in group]
    terms = {name for score in flat_scores for name in score.terms}
    spread = [np.ptp([score.total for score in group]) > 0 for group in scored.scores]
    return {
        "reward/total": float(np.mean([score.total for score in flat_scores])),
        **{
            f"reward/{name}": float(np.mean([score.terms.get(name, 0.0) for score in flat_scores]))
            for name in sorted(terms)
        },
        "reward/groups_with_signal": float(np.mean(spread)),
        "dialogue/tokens": float(np.mean([len(one.ids) for one in dialogues])),
        "dialogue/written": float(np.mean([one.written.sum() for one in dialogues])),
        "dialogue/calls": float(np.mean([one.num_calls for one in dialogues])),
        "dialogue/truncated": float(np.mean([one.truncated for one in dialogues])),
    }


def combined(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """The scalars of a step's updates: extremes of what is an extreme, means of the rest."""
    columns = defaultdict(list)
    for report in reports:
        for name, value in report.items():
            columns[name].append(value)
    extremes = {"max": max, "min": min}
    return {
        name: float(extremes.get(name.partition("_")[0], np.mean)(values))
        for name, values in columns.items()
    }


def _minibatches(
    groups: Sequence[Sequence[Trajectory]],
    found: Sequence[Float[np.ndarray, " m"]],
    config: RLConfig,
    step: int,
) -> list[list[Sample]]:
    order = np.random.default_rng((config.seed, step, 2)).permutation(len(groups))
    return [
        [
            sample(one, group=int(g), advantage=float(advantage))
            for g in part
            for one, advantage in zip(groups[g], found[g], strict=True)
        ]
        for part in np.array_split(order, config.minibatches)
    ]


def _batches(
    update: Update,
    learner: Learner,
    samples: Sequence[Sample],
    pictures: PictureSource,
    ladder: Sequence[Shape],
) -> list[MicroBatch]:
    """The micro-batches of an update, with the log-probabilities that its ratios are taken to."""
    batches = micro_batches(
        samples,
        ladder,
        aggregation=update.algorithm.aggregation,
        pictures=pictures,
        merge=update.model.config.vision.merge,
        silent="skip",
    )
    if update.algorithm.old != "trainer":
        return batches
    return [
        batch._replace(
            rows=batch.rows._replace(
                targets=batch.rows.targets._replace(
                    old_log_probs=np.asarray(update.log_probs(learner, update.placed(batch)))
                )
            )
        )
        for batch in batches
    ]


class _Clock:
    """Seconds between laps, by name."""

    def __init__(self):
        self.laps: dict[str, float] = {}
        self.last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self.last
        self.last = now
