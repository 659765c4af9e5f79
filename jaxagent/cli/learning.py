"""The stages of a run over one work folder, each resumable: SFT, RL, and an evaluation around them.

    policy's folder, or a new one ─► before ─► SFT ─► RL ─► after ─► trained/ (Hugging Face)

A stage whose result lies in the folder is not run again, so the same command goes on after a stop.
Between stages parameters are on the host: devices hold only what a stage places there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxagent.algorithms.table import Algorithm, algorithm
from jaxagent.cli.agent import ROLLOUT_ERRORS, Agent
from jaxagent.cli.checks import chosen_algorithm, ladder
from jaxagent.cli.cold_start import glances, lessons
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.progress import Bars
from jaxagent.cli.records import record
from jaxagent.cli.work import WorkFolder
from jaxagent.evaluation import Row, read_rows, write_rows
from jaxagent.report.run import read_scalars
from jaxagent.rollout.engine import Engine
from jaxagent.sharding import MeshSizes, ShardingError, make_mesh, policy_rules
from jaxagent.training.batch import PackingError, PictureSource, Shape
from jaxagent.training.checkpoint import CheckpointError
from jaxagent.training.loop import Finished, Run
from jaxagent.training.optimizer import OptimizerConfig, make_optimizer
from jaxagent.training.pictures import frozen_pictures, patch_pictures
from jaxagent.training.rl import RLConfig, engine_sampler, train_rl
from jaxagent.training.sft import SFTConfig, TraceError, TraceSource, shuffled, train_sft
from jaxagent.training.step import NonFiniteGradient, StepConfig, Update, merged
from jaxagent.trees import Params
from jaxagent.types import Trajectory
from jaxagent.weights.folder import write_policy

VISION = r"^vision/"
TRAINING_ERRORS = (ShardingError, CheckpointError, PackingError, NonFiniteGradient)
"""What a training raises that a field of the config or another folder can mend."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run left: its evaluations and its scalars."""

    before: list[Row]
    after: list[Row]
    scalars: list[dict]

    @property
    def seconds(self) -> dict[str, float]:
        """What each part of training took, `sft` and `rl`."""
        clocks = {part: f"time/{part}" for part in ("sft", "rl")}
        found = {
            part: [row[clock] for row in self.scalars if clock in row]
            for part, clock in clocks.items()
        }
        return {part: max(seconds) for part, seconds in found.items() if seconds}

    @property
    def rewards(self) -> list[float]:
        """The mean reward of every RL step."""
        return [row["reward/total"] for row in self.scalars if "reward/total" in row]


def trained(agent: Agent, params: Params, folder: WorkFolder, bars: Bars) -> Trained:
    """The whole run that the agent's config asks for."""
    config = agent.config
    before = evaluated_once(agent, params, folder, "before", bars)
    params = rounded(learned(agent, params, folder, bars), config.model.saved_dtype)
    after = evaluated_once(agent, params, folder, "after", bars)
    if config.sft.steps or config.rl.steps:
        write_policy(
            folder.trained,
            agent.policy.model.config,
            params,
            template=agent.policy.folder,
            dtype=config.model.saved_dtype,
        )
    with told():
        scalars = read_scalars(folder.metrics)
    return Trained(before=before, after=after, scalars=scalars)


def learned(agent: Agent, params: Params, folder: WorkFolder, bars: Bars) -> Params:
    """The parameters after the training that the agent's config asks for."""
    learning = Learning(agent, folder, bars)
    if agent.config.sft.steps:
        params = learning.supervised(params)
    if agent.config.rl.steps:
        params = learning.optimised(params)
    return params


def rounded(params: Params, dtype: str) -> Params:
    """The parameters as files of that dtype hold them, in their own dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype).astype(leaf.dtype), params)


def evaluated_once(
    agent: Agent, params: Params, folder: WorkFolder, when: str, bars: Bars
) -> list[Row]:
    """The rows of the evaluation `before` or `after`, from the folder if they are there."""
    if when not in agent.config.evaluation.when:
        return []
    path = folder.dialogues(when)
    if not path.exists():
        write_rows(path, agent.evaluate(params, progress=partial(bars, note=when)))
    with told():
        return read_rows(path)


@dataclass(frozen=True)
class Learning:
    """An agent's training in a work folder."""

    agent: Agent
    folder: WorkFolder
    bars: Bars

    @property
    def config(self) -> ConfigDict:
        return self.agent.config

    @property
    def frozen(self) -> tuple[str, ...]:
        return (VISION,) if self.config.model.vision == "frozen" else ()

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        with told(ShardingError):
            return make_mesh(record(MeshSizes, self.config, "sharding"))

    @cached_property
    def engine(self) -> Engine:
        """One for sampling and for the features of a frozen tower."""
        return self.agent.engine()

    def supervised(self, params: Params) -> Params:
        """The parameters after SFT on the expert's traces."""
        settings, limits = self.config.sft, self.record(SFTConfig, "sft")
        no_and_yes = [self.agent.policy.chat.plain(word)[0] for word in ("no", "yes")]
        update = self.update(
            algorithm("sft"), settings.steps, temperature=1.0, verdict_ids=tuple(no_and_yes)
        )
        with told(*TRAINING_ERRORS):
            finished = train_sft(
                update.learner(params),
                update=update,
                traces=self.traces(lessons),
                looks=self.traces(glances, count=limits.looks),
                pictures=self.pictures,
                ladder=self.ladder,
                config=limits,
                to=self.run("sft", settings.steps, settings.minutes),
                progress=self.bars,
            )
        return self.params(finished)

    def traces(self, make: Callable[..., Iterator[Trajectory]], **options) -> TraceSource:
        """Batches of the expert's traces, which are made when the first batch is asked for."""

        @cache
        def made() -> TraceSource:
            with told(TraceError, *ROLLOUT_ERRORS):
                return shuffled(
                    list(
                        make(self.config, self.agent.world, self.agent.policy, self.bars, **options)
                    ),
                    self.record(SFTConfig, "sft"),
                )

        return lambda step: made()(step)

    def optimised(self, params: Params) -> Params:
        """The parameters after policy optimisation."""
        settings = self.config.rl
        limits = self.record(RLConfig, "rl")
        sampler = engine_sampler(self.engine, limits, frozen_vision=bool(self.frozen))
        update = self.update(
            chosen_algorithm(self.config),
            settings.steps * limits.epochs * limits.minibatches,
            temperature=self.config.rollout.sampling.temperature,
        )
        questions = self.agent.training_questions()
        with told(*TRAINING_ERRORS, *ROLLOUT_ERRORS):
            finished = train_rl(
                update.learner(params),
                update=update,
                questions=questions,
                sample_groups=lambda params, *rest: sampler(self.computed(params), *rest),
                reward=self.agent.reward,
                pictures=self.pictures,
                ladder=self.ladder,
                config=limits,
                to=self.run("rl", settings.steps, settings.minutes),
                progress=self.bars,
            )
        return self.params(finished)

    def record(self, kind: type, path: str):
        return record(kind, self.config, path, seed=self.config.seed)

    def update(
        self, row: Algorithm, num_updates: int, *, temperature: float, verdict_ids=None
    ) -> Update:
        """The update of an algorithm, compiled when it is first run."""
        policy = self.agent.policy
        text = policy.model.config.text
        return Update(
            model=policy.model,
            algorithm=row,
            optimizer=make_optimizer(
                record(OptimizerConfig, self.config, "optimizer"), num_updates
            ),
            mesh=self.mesh,
            rules=policy_rules(tied=text.tied, qkv_bias=text.qkv_bias),
            config=StepConfig(
                chunk=self.config.packing.chunk,
                temperature=temperature,
                banned=policy.chat.banned_ids,
                frozen=self.frozen,
                verdict_ids=verdict_ids,
                dtype=self.config.model.dtype,
            ),
        )

    @cached_property
    def ladder(self) -> list[Shape]:
        return ladder(self.config, self.mesh.shape["data"] * self.mesh.shape["fsdp"])

    def pictures(self, params: Params) -> PictureSource:
        """Images for the update: features of a frozen tower, patches for one that learns."""
        if self.frozen:
            return frozen_pictures(self.engine.features, params)
        policy = self.agent.policy
        return partial(patch_pictures, self.agent.patches, policy.model.config.vision.merge)

    def computed(self, params: Params) -> Params:
        """The parameters in the dtype that is computed in."""
        return jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(self.config.model.dtype)), params)

    def run(self, name: str, steps: int, minutes: float) -> Run:
        return Run(
            name=name,
            folder=self.folder.root,
            steps=steps,
            seconds=60 * minutes,
            save_every=self.config.checkpoint.every,
            keep=self.config.checkpoint.keep,
        )

    def params(self, finished: Finished) -> Params:
        """The whole tree, on the host; a run that was told to stop ends here, saved."""
        if finished.reason == "SIGTERM":
            raise UserError("Told to stop; the last step is saved and the same command resumes.")
        return jax.device_get(merged(finished.learner.params, finished.learner.frozen))
