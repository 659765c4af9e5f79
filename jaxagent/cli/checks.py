"""Everything that a config can be told wrong of, before anything is built or written.

    checked_base ─► checked_agent ─► checked_training       each holds the one before it

What the update needs is asked of a training alone, so that a policy can be evaluated on a machine
with other devices. Each group becomes its layer's record once; the parts of a run make the same
records again where they need them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxagent.algorithms.table import ALGORITHMS, Algorithm, algorithm
from jaxagent.cli import build
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.records import at, check, record
from jaxagent.cli.work import local_path
from jaxagent.data.tiny_policy import PolicySizes
from jaxagent.models.policy import Model
from jaxagent.processing.policy import open_policy
from jaxagent.retrieval.encoders import TextSearch
from jaxagent.retrieval.knowledge_base import KnowledgeBaseConfig
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.sampling import Sampling
from jaxagent.sharding import MeshSizes, ShardingError, make_mesh, partition_specs, policy_rules
from jaxagent.training.batch import PackingConfig, Shape
from jaxagent.training.demonstrations import Demonstrations
from jaxagent.training.image_encoder import ImageEncoderConfig
from jaxagent.training.optimizer import OptimizerConfig
from jaxagent.training.rl import RLConfig, check_sampling
from jaxagent.training.sft import SFTConfig
from jaxagent.training.warm_start import WarmStart
from jaxagent.types import Family, Split
from jaxagent.weights.folder import read_config


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The fields of `config.model` that the commands themselves read."""

    folder: str
    dtype: Literal["float32", "bfloat16"]
    saved_dtype: Literal["float32", "bfloat16"]
    vision: Literal["frozen", "trained"]
    remat: bool


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The fields of `config.evaluation`."""

    splits: tuple[Split, ...]
    questions: int
    samples: int
    temperature: float
    train_temperature: float
    when: tuple[Literal["before", "after"], ...]


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """The fields of `config.algorithm`; an empty word or tuple is the algorithm's own."""

    name: str
    clip: tuple[float, ...]
    horizon: tuple[float, ...]
    advantage: str
    aggregation: str
    old: Literal["", "sampler", "trainer", "current"]


LEAST = {
    "seed": 0,
    "data.image_side": 8,
    "data.questions": 0,
    "data.flags.views": 1,
    "data.flags.val_entities": 1,
    "data.flags.test_entities": 1,
    "retrieval.measured": 1,
    "image_encoder.steps": 0,
    **{f"model.sizes.{one.name}": 1 for one in fields(PolicySizes) if one.type is int},
    "packing.chunk": 1,
    "warm_start.steps": 0,
    "warm_start.batch": 2,
    "sft.steps": 0,
    "sft.minutes": 0,
    "sft.batch": 1,
    "sft.look_steps": 0,
    "sft.look_batches": 0,
    "sft.traces": 1,
    "sft.max_tokens": 1,
    "sft.verdict_weight": 0,
    "rl.steps": 0,
    "rl.minutes": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 1,
    "evaluation.questions": 0,
    "evaluation.samples": 1,
    "report.dialogues": 0,
    "report.image_side": 8,
}
"""The least value of fields whose record does not know one, or that a run needs to be more."""


def checked_base(config: ConfigDict) -> ConfigDict:
    """The config itself; UserError names what does not fit in the base, or any number too small."""
    for name, least in LEAST.items():
        *path, last = name.split(".")
        if (value := at(config, ".".join(path))[last]) < least:
            raise UserError(f"config.{name} is {value!r}; it must be at least {least}.")
    for name, value in (("seed", config.seed), ("data.flags.seed", config.data.flags.seed)):
        if value >= 2**32:
            raise UserError(f"config.{name} is {value}; it must be below 2**32.")
    for name in ("val_facts", "test_facts"):
        if (value := config.data.flags[name]) <= 0:
            raise UserError(
                f"config.data.flags.{name} is {value!r}; it must be above 0, or a split is empty."
            )
    build.kb_folder(config, Path())
    local_path(config.model.folder, "config.model.folder")
    check(config.data.families, tuple[Family, ...], "data.families")
    for name in ("data.families", "data.flags.families"):
        check_some(config, name, get_args(Family))
    record(build.chosen(config.data.name, build.DATA, "data.name"), config, "data.flags")
    if not set(config.data.families) & set(config.data.flags.families):
        raise UserError(
            f"config.data.families is {config.data.families}, and config.data.flags.families makes "
            f"none of them: it is {config.data.flags.families}."
        )
    if not Path(config.retrieval.text_encoder).is_dir():
        check(config.retrieval.text_encoder, TextSearch, "retrieval.text_encoder")
    record(KnowledgeBaseConfig, config, "retrieval")
    record(ImageEncoderConfig, config, "image_encoder")
    return config


def check_some(config: ConfigDict, name: str, allowed: Sequence[str]) -> None:
    """Refuses an empty tuple in the field that says what is asked."""
    path, _, last = name.rpartition(".")
    if not at(config, path)[last]:
        raise UserError(
            f"config.{name} is (), so nothing is asked. Give at least one of {', '.join(allowed)}."
        )


def checked_agent(config: ConfigDict) -> ConfigDict:
    """The config itself; UserError names what does not fit in the agent or its evaluation."""
    checked_base(config)
    build.method(config)
    build.reward(config)
    build.chosen(config.method.summariser, build.SUMMARISERS, "method.summariser")
    model = record(ModelConfig, config, "model")
    record(PolicySizes, config, "model.sizes")
    if model.folder != "new":
        with told():
            open_policy(build.policy_folder(model.folder, config.method.name))
    record(RolloutConfig, config, "rollout")
    evaluation = record(EvaluationConfig, config, "evaluation")
    if len(set(evaluation.splits)) < len(evaluation.splits):
        raise UserError(f"config.evaluation.splits is {evaluation.splits}; each may stand once.")
    with told(ValueError):
        Sampling(temperature=evaluation.temperature)
        Sampling(temperature=evaluation.train_temperature)
    record(WarmStart, config, "warm_start")
    return config


def checked_training(config: ConfigDict) -> ConfigDict:
    """The config itself; UserError names what does not fit in a training on these devices."""
    checked_agent(config)
    rollout = record(RolloutConfig, config, "rollout")
    record(OptimizerConfig, config, "optimizer")
    record(SFTConfig, config, "sft", seed=config.seed)
    record(Demonstrations, config, "sft", seed=config.seed)
    record(RLConfig, config, "rl", seed=config.seed)
    chosen_algorithm(config)
    with told(ValueError):
        if config.rl.steps:
            check_sampling(rollout.sampling)
        mesh = make_mesh(record(MeshSizes, config, "sharding"))
    check_packing(config, ladder(config, mesh.shape["data"] * mesh.shape["fsdp"])[-1])
    if config.model.folder != "new":
        check_mesh(mesh, build.policy_folder(config.model.folder, config.method.name))
    return config


def check_packing(config: ConfigDict, last: Shape) -> None:
    """Refuses a last shape of the ladder that has no room for every sample and its images."""
    context, longest = config.rollout.context, config.sft.max_tokens
    needs = [("dialogue", context, "rollout.context")] if config.rl.steps else []
    if config.sft.steps:
        needs.append(("trace", min(longest, context), "sft.max_tokens"))
    rooms = (("row_lengths ends at", last.tokens), ("image_tokens is", last.image_tokens))
    for (what, need, field), (name, room) in product(needs, rooms):
        if room < need:
            raise UserError(
                f"config.packing.{name} {room} tokens, but a {what} may hold {need} "
                f"(config.{field}). Raise the one or lower the other."
            )


def check_mesh(mesh: Mesh, folder: Path) -> None:
    """Refuses a mesh that does not divide the parameters of the policy in a folder."""
    policy = read_config(folder)
    rules = policy_rules(tied=policy.text.tied, qkv_bias=policy.text.qkv_bias)
    try:
        partition_specs(rules, Model(policy).shapes(), mesh)
    except ShardingError as error:
        sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
        raise UserError(
            f"The mesh of config.sharding ({sizes}) does not divide the policy in {folder}. Give "
            f"other sizes. {error}"
        ) from error


def ladder(config: ConfigDict, min_rows: int) -> list[Shape]:
    """The shapes that samples are packed into."""
    chunk = config.packing.chunk
    shapes = record(PackingConfig, config, "packing", min_rows=min_rows).ladder()
    if uneven := [shape.targets for shape in shapes if shape.targets % chunk]:
        raise UserError(
            f"config.packing.chunk is {chunk}, which does not divide {uneven[0]} scored tokens "
            "of a row. Give a divisor of half of every row length and of the last one."
        )
    return shapes


def chosen_algorithm(config: ConfigDict) -> Algorithm:
    """The config's algorithm with what it gives in place of the algorithm's own."""
    given = record(AlgorithmConfig, config, "algorithm")
    if given.name == "sft":
        others = ", ".join(name for name in ALGORITHMS if name != "sft")
        raise UserError(
            "config.algorithm.name is 'sft', which learns from no reward. Give one of "
            f"{others}; traces are learnt from with config.sft.steps."
        )
    if given.clip and len(given.clip) != 2:
        raise UserError(f"config.algorithm.clip is {given.clip}; it is (low, high) or ().")
    names = ("c", "alpha", "offset")
    if given.horizon and len(given.horizon) != len(names):
        raise UserError(
            f"config.algorithm.horizon is {given.horizon}; it is (c, alpha, offset) or ()."
        )
    with told(ValueError):
        return algorithm(
            given.name,
            clip=given.clip or None,
            horizon=dict(zip(names, given.horizon, strict=True)) if given.horizon else None,
            advantage=given.advantage or None,
            aggregation=given.aggregation or None,
            old=given.old or None,
        )
