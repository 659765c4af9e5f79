"""Rewards of finished dialogues, every term reported.

    MMAgent-R2   R = outcome + format + verification                 (equations 2 to 4)
    ProMSA       R = outcome + format - lambda min(calls / H_max, 1)   (equation 12)

The outcome is the data set's own metric in its guarded form. The verification term pays delta for
rejecting a batch without the true entity and 1 for reranking the true entity. Ours is its guard: a
batch is scored once, by its first verification, and after an image's first Rerank nothing more is
paid for that image; otherwise searching and verifying again and again is paid each time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxagent.agents import mmagent_r2
from jaxagent.bounds import at_least, check_numbers
from jaxagent.scoring.infoseek import guarded_score
from jaxagent.types import Score, Trajectory

Reward = Callable[[Trajectory], Score]


class RewardError(RuntimeError):
    """A reward that could not be computed; the message names the sample."""


def _score(terms: dict[str, float]) -> Score:
    return Score(total=sum(terms.values()), terms=terms)


@dataclass(frozen=True, kw_only=True)
class MMAgentR2Reward:
    """Terms `outcome`, `format`, `verification`; `reject` is the paper's delta."""

    reject: float = 0.2
    format: float = 1.0
    """For a dialogue that ended in its own answer and kept the syntax in every turn (ours: all or
    nothing)."""

    def __post_init__(self):
        check_numbers(self, "scoring.mmagent_r2", at_least(0), "reject", "format")

    def __call__(self, trajectory: Trajectory) -> Score:
        dialogue = trajectory.dialogue
        state = dialogue.state
        finished = dialogue.done and not trajectory.truncated
        well_formed = finished and not state.forced and not state.faults
        return _score(
            {
                "outcome": guarded_score(dialogue.answer, trajectory.question),
                "format": self.format * well_formed,
                "verification": self.verification(state, trajectory.question.entities),
            }
        )

    def verification(self, state: mmagent_r2.State, entities: Sequence[str]) -> float:
        """What the guard pays for the verifications, given the true entity of every image."""
        paid = 0.0
        scored: set[tuple[int, int]] = set()
        reranked: set[int] = set()
        for step in state.verifications:
            first = (step.image, step.batch) not in scored and step.image not in reranked
            scored.add((step.image, step.batch))
            if step.chosen is not None:
                reranked.add(step.image)
            if first and state.is_right(step, entities[step.image]):
                paid += self.reject if step.chosen is None else 1.0
        return paid


@dataclass(frozen=True, kw_only=True)
class ProMSAReward:
    """Terms `outcome`, `format`, `cost` (negative)."""

    format: float = 0.5
    """For an answered dialogue without a fault (the release's value)."""
    cost: float = 0.5
    """lambda."""
    max_calls: int = 6
    """H_max: the calls at which the cost is full (the release: 7)."""

    def __post_init__(self):
        check_numbers(self, "scoring.promsa", at_least(0), "format", "cost")
        check_numbers(self, "scoring.promsa", at_least(1), "max_calls")

    def __call__(self, trajectory: Trajectory) -> Score:
        dialogue = trajectory.dialogue
        state = dialogue.state
        well_formed = dialogue.answer is not None and not state.faults
        return _score(
            {
                "outcome": guarded_score(dialogue.answer, trajectory.question),
                "format": self.format * well_formed,
                "cost": -self.cost * min(state.num_calls / self.max_calls, 1.0),
            }
        )


def scores(reward: Reward, trajectories: Sequence[Trajectory]) -> list[Score]:
    """The score of every trajectory; a reward that raises stops with a RewardError."""
    found = []
    for trajectory in trajectories:
        try:
            found.append(reward(trajectory))
        except Exception as error:
            raise RewardError(
                f"The reward of question {trajectory.question.data_id}, sample"
                f" {trajectory.sample}, raised {type(error).__name__}: {error}."
            ) from error
    return found
