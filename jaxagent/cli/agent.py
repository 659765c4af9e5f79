"""An agent put together from a config, and its evaluation: what train, evaluate and sweep share."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.cold_start import new_policy
from jaxagent.cli.costs import add_costs
from jaxagent.cli.errors import told
from jaxagent.cli.records import record
from jaxagent.cli.work import WorkFolder
from jaxagent.evaluation import Protocol, Sampler, chosen, evaluated
from jaxagent.processing.policy import Policy
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.engine import Engine
from jaxagent.rollout.loop import PromptError
from jaxagent.rollout.sampling import Sampling
from jaxagent.rollout.slots import NonFiniteLogits
from jaxagent.rollout.tools import ToolFailure
from jaxagent.scoring.rewards import Reward
from jaxagent.training.warm_start import tower_vectors
from jaxagent.trees import Params
from jaxagent.types import Progress, Question, Split, Trajectory

ROLLOUT_ERRORS = (PromptError, ToolFailure, NonFiniteLogits)
"""What a rollout raises that a field of the config can mend."""


class AgentWithParams(NamedTuple):
    """An agent, and the parameters that it starts from."""

    agent: "Agent"
    params: Params


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A policy with its method, in its world. Parameters come apart, as everywhere."""

    config: ConfigDict
    world: build.World
    policy: Policy
    reward: Reward
    training_questions: Callable[[], list[Question]]
    """Those that a training by the config trains on; searched for when first asked for."""

    def patches(self, key: str) -> Float[np.ndarray, "p c"]:
        """An image as the vision tower takes it."""
        return self.policy.image_processor.patches(self.world.images(key)).values

    def engine(self, *, sampling: Sampling | None = None) -> Engine:
        """The engine that rolls the policy out; `sampling` in place of the config's."""
        settings = record(RolloutConfig, self.config, "rollout")
        if sampling:
            settings = replace(settings, sampling=sampling)
        with told(ValueError):
            return Engine(
                self.policy,
                build.method(self.config),
                build.tools(self.config, self.world.base),
                self.world.images,
                settings,
            )

    def evaluate(self, params: Params, *, progress: Progress) -> list[dict]:
        """Rows of the config's protocol; empty when it asks for no split.

        Every policy that is asked the same meets the same random numbers.
        """
        settings, rows = self.config.evaluation, []
        asked = self.questions_asked() if settings.splits else []
        for temperature in dict.fromkeys((settings.train_temperature, settings.temperature)):
            questions = [one for one in asked if self.temperature(one) == temperature]
            if questions:
                rows += evaluated(
                    questions,
                    sample=self.sampler(params, temperature),
                    reward=self.reward,
                    base=self.world.base,
                    towers=lambda keys: self.tower_vectors(params, keys),
                    chunk=max(1, self.config.rollout.slots // settings.samples),
                    progress=progress,
                )
        return rows

    def temperature(self, question: Question) -> float:
        """What an evaluation's dialogue on the question is sampled with."""
        settings = self.config.evaluation
        return settings.train_temperature if question.split == "train" else settings.temperature

    def sampler(self, params: Params, temperature: float) -> Sampler:
        """Dialogues for the questions of an evaluation."""
        engine = self.engine(sampling=Sampling(temperature=temperature))
        params = engine.placed(params)  # once for all questions

        def sample(questions: Sequence[Question]) -> list[list[Trajectory]]:
            with told(*ROLLOUT_ERRORS):
                rollout = engine.run(
                    params,
                    questions,
                    samples=self.config.evaluation.samples,
                    seed=self.world.benchmark.config.seed,
                    step=0,
                    version=0,
                )
            return rollout.trajectories

        return sample

    def tower_vectors(
        self, params: Params, keys: Sequence[str]
    ) -> dict[str, Float[np.ndarray, " e"]]:
        """Unit vectors of images by the policy's vision tower, whatever their grids."""
        by_grid = defaultdict(dict)
        for key in keys:
            patches = self.policy.image_processor.patches(self.world.images(key))
            by_grid[patches.grid][key] = patches.values
        vectors = {}
        for grid, patches in by_grid.items():
            vectors |= tower_vectors(self.policy.model, params, patches, grid)
        return vectors

    def questions_of(self, split: Split) -> list[Question]:
        """A split's questions; of `train` those that are trained on."""
        if split == "train":
            return self.training_questions()
        return self.world.questions(split, families=self.config.data.families)

    def questions_asked(self) -> list[Question]:
        """The protocol's questions."""
        settings = self.config.evaluation
        with told(ValueError):
            found = [question for split in settings.splits for question in self.questions_of(split)]
            protocol = Protocol(
                splits=settings.splits,
                count=settings.questions,
                seed=self.world.benchmark.config.seed,
            )
            return chosen(found, protocol)


def assemble(
    config: ConfigDict, world: build.World, folder: WorkFolder, progress: Progress
) -> AgentWithParams:
    """The agent and the parameters that it starts from; a new policy is made and warmed up."""
    make = partial(new_policy, config, world, folder, progress)
    new = timed_policy(folder, make) if config.model.folder == "new" else None
    loaded = build.policy(config, folder=new)
    agent = Agent(
        config=config,
        world=world,
        policy=loaded.policy,
        reward=build.reward(config),
        training_questions=cache(partial(build.training_questions, config, world, progress)),
    )
    return AgentWithParams(agent, loaded.params)


def timed_policy(folder: WorkFolder, make: Callable[[], Path]) -> Path:
    """The folder of a new policy; what making it took is kept with the run's costs."""
    started, there = time.monotonic(), folder.policy.exists()
    path = make()
    if not there:
        add_costs(folder.costs, {"policy_seconds": time.monotonic() - started})
    return path
