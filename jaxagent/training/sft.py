"""Supervised fine-tuning on traces: cross-entropy of what the expert wrote, and verdicts by sight.

    loss = mean over written tokens of - log pi  +  w * mean over verdicts of - log p(yes or no)

A verdict is asked at the token after each candidate image (`samples.verdicts`): a target right
where the comparison can be made. Without it a small policy stays at chance for hundreds of steps.
Comparing is learnt more slowly than the rest, so the first updates may look at more traces beside
their own, each only up to the first choice among candidates: for half of the tokens. What is looked
at adds the same loss of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxagent.training.batch import PictureSource, Shape, micro_batches
from jaxagent.training.loop import Finished, NotedProgress, Run, Stepped, run, updated
from jaxagent.training.samples import Sample, sample, until_first_choice, verdicts
from jaxagent.training.step import Learner, Update, merged
from jaxagent.trees import Params
from jaxagent.types import Trajectory


class TraceError(ValueError):
    """Traces that cannot be made, or are too few to learn from."""


TraceSource = Callable[[int], Sequence[Trajectory]]
"""Step -> the traces of that step; the same ones whenever it is asked."""


@dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """What an update learns from."""

    batch: int
    """Dialogues an update."""
    verdict_weight: float
    """w; 0 asks for no verdicts."""
    look_steps: int
    """Updates at the start that look at more traces, up to their first choice."""
    look_batches: int
    """Batches of further traces that such an update looks at."""
    seed: int

    @property
    def looks(self) -> int:
        """Traces that are looked at, each once."""
        return self.look_steps * self.look_batches * self.batch


def shuffled(traces: Sequence[Trajectory], config: SFTConfig) -> TraceSource:
    """Batches that pass over the traces in a new order each time; only whole batches are formed."""
    per_pass = len(traces) // config.batch
    if not per_pass:
        raise TraceError(
            f"{len(traces)} traces do not fill one batch of {config.batch}. "
            "Lower sft.batch or make more traces."
        )

    def batch(step: int) -> list[Trajectory]:
        number, place = divmod(step, per_pass)
        order = np.random.default_rng((config.seed, number)).permutation(len(traces))
        return [traces[i] for i in order[place * config.batch : (place + 1) * config.batch]]

    return batch


def train_sft(
    learner: Learner,
    *,
    update: Update,
    traces: TraceSource,
    looks: TraceSource = lambda step: (),
    pictures: Callable[[Params], PictureSource],
    ladder: Sequence[Shape],
    config: SFTConfig,
    to: Run,
    progress: NotedProgress = lambda what, done, total, note: None,
) -> Finished:
    """The learner after supervised training.

    Args:
        traces, looks: asked for a batch before the first step, so that making them counts in none.
            Of `looks`, each of the first `look_steps` updates takes `look_batches` batches.
        update: of the algorithm `sft`; with `verdict_ids` when verdicts are asked.
        pictures: where images come from under given parameters (`training.pictures`).
    """
    merge = update.model.config.vision.merge

    def samples_of(found: Sequence[Trajectory]) -> list[Sample]:
        return [
            sample(
                trace,
                group=i,
                verdicts=verdicts(trace, merge=merge) if config.verdict_weight else None,
            )
            for i, trace in enumerate(found)
        ]

    def read(number: int) -> list[list[Sample]]:
        """The samples of an update: whole ones, and those that are looked at."""
        batches = config.look_batches if number < config.look_steps else 0
        first = number * config.look_batches
        seen = [trace for step in range(first, first + batches) for trace in looks(step)]
        return [
            samples_of(traces(number)),
            [until_first_choice(one) for one in samples_of(seen)],
        ]

    def step(learner: Learner, number: int) -> Stepped:
        source = pictures(merged(learner.params, learner.frozen))
        batches = [
            batch
            for samples in read(number)
            if samples
            for batch in micro_batches(
                samples,
                ladder,
                aggregation=update.algorithm.aggregation,
                pictures=source,
                merge=merge,
                verdict_weight=config.verdict_weight,
            )
        ]
        learner, scalars = updated(update, learner, batches, to.folder)
        return Stepped(learner, {f"sft/{name}": value for name, value in scalars.items()})

    return run(learner, step, to, begin=read, progress=progress)
