"""A config as the parts of a run: the base with its questions, the method, its tools, the policy.

A new method is a row of `METHODS`; nothing else here knows methods apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.protocol import Method, Tools
from jaxagent.agents.tools import all_tools
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.records import record
from jaxagent.cli.work import WorkFolder, local_path
from jaxagent.data.benchmark import Benchmark, build_benchmark, read_questions
from jaxagent.data.config import FlagsConfig
from jaxagent.data.fiction import twisted_images
from jaxagent.data.views import FlagImages
from jaxagent.processing.policy import LoadedPolicy, load_policy
from jaxagent.retrieval import knowledge_base
from jaxagent.retrieval.encoders import Encoders, open_encoders
from jaxagent.retrieval.image_encoder import shipped_folder
from jaxagent.retrieval.knowledge_base import Entity, KnowledgeBase, KnowledgeBaseConfig
from jaxagent.retrieval.search import entity_ranks
from jaxagent.scoring.rewards import MMAgentR2Reward, ProMSAReward, Reward
from jaxagent.services.summariser import summarise_by_extraction
from jaxagent.suggestions import did_you_mean
from jaxagent.types import Images, Progress, Question, Split, silent


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """How a method is made from its settings, how its reward is, and what makes its policy.

    `title`: the paper's name of it.
    `cold_start`: the experiment that trains the policy which ships for it.
    `reach`: settings -> the candidates within which a training question's entities must be.
    """

    title: str
    cold_start: str
    settings: type
    method: Callable[..., Method]
    reward: type
    reach: Callable[..., int] | None = None


METHODS: Mapping[str, MethodRow] = {
    mmagent_r2.NAME: MethodRow(
        title="MMAgent-R2",
        cold_start="flags_cold_start",
        settings=mmagent_r2.MMAgentR2,
        method=mmagent_r2.method,
        reward=MMAgentR2Reward,
        reach=lambda settings: settings.pool,
    ),
    promsa.NAME: MethodRow(
        title="ProMSA",
        cold_start="flags_promsa_cold_start",
        settings=promsa.ProMSA,
        method=promsa.method,
        reward=ProMSAReward,
    ),
}
DATA = {"flags": FlagsConfig}
SUMMARISERS = {"extractive": summarise_by_extraction}
SEARCHED = 256  # questions whose images are rendered and searched between two words of progress


@dataclass(frozen=True, kw_only=True)
class World:
    """What an agent is asked, and what it can search."""

    benchmark: Benchmark
    base: KnowledgeBase
    images: Images

    def questions(self, split: Split, *, families: Sequence[str]) -> list[Question]:
        """A split's questions of these families, in the data set's order."""
        with told():
            found = read_questions(self.benchmark.folder, split)
        return [question for question in found if question.family in families]

    @property
    def names(self) -> dict[str, str]:
        """Entity id -> name."""
        return {entity.id: entity.name for entity in self.base.entities.values()}


def chosen(word: str, table: Mapping, field: str):
    """The table's row for a config's word."""
    if word not in table:
        raise UserError(f"config.{field} is {word!r}. {did_you_mean(word, table)}")
    return table[word]


def kb_folder(config: ConfigDict, workdir: Path) -> Path:
    """Where the benchmark and its base lie."""
    named = config.data.folder
    return local_path(named, "config.data.folder") if named else workdir / "kb"


def open_world(config: ConfigDict, folder: WorkFolder, progress: Progress) -> World:
    """The benchmark and its knowledge base, built where they are missing or half built."""
    flags = record(chosen(config.data.name, DATA, "data.name"), config, "data.flags")
    indices = record(KnowledgeBaseConfig, config, "retrieval")
    root = kb_folder(config, folder.root)
    with told():
        opened = encoders(config)  # before anything is built
        benchmark = build_benchmark(root, flags, progress)
        images = twisted_images(FlagImages(root, size=config.data.image_side))
        base = knowledge_base.build(
            root / "base",
            [Entity(id=one.id, name=one.name, images=(one.image,)) for one in benchmark.entities],
            benchmark.passages,
            images=images,
            encoders=opened,
            config=indices,
            progress=progress,
        )
    images = telling(images, benchmark)
    return World(benchmark=benchmark, base=replace(base, images=images), images=images)


def telling(images: Images, benchmark: Benchmark) -> Images:
    """Images that tell the user of a drawing which was spoilt since the benchmark was built."""

    def pixels(key: str):
        try:
            return images(key)
        except OSError as error:
            raise UserError(
                f"{error} Delete {benchmark.folder}; the same command builds it again."
            ) from error

    return pixels


def encoders(config: ConfigDict) -> Encoders:
    text = config.retrieval.text_encoder
    return open_encoders(config.retrieval.image_encoder, None if text == "lexical" else text)


def settings(config: ConfigDict) -> object:
    """The settings of the config's method."""
    row = chosen(config.method.name, METHODS, "method.name")
    return record(row.settings, config, f"method.{config.method.name}")


def method(config: ConfigDict) -> Method:
    """The agent's method with the config's settings."""
    row = chosen(config.method.name, METHODS, "method.name")
    return row.method(settings(config))


def reward(config: ConfigDict) -> Reward:
    """The method's reward with the config's weights."""
    row = chosen(config.method.name, METHODS, "method.name")
    return record(row.reward, config, f"scoring.{config.method.name}")


def tools(config: ConfigDict, base: KnowledgeBase) -> Tools:
    """Every tool over the base."""
    summarise = chosen(config.method.summariser, SUMMARISERS, "method.summariser")
    return all_tools(base, summarise)


def policy(config: ConfigDict, *, folder: Path | None = None) -> LoadedPolicy:
    """The config's policy, or the one in `folder`; its parameters in float32, on the host."""
    with told():
        loaded = load_policy(folder or policy_folder(config.model.folder, config.method.name))
    model = replace(loaded.policy.model, remat=config.model.remat)
    return LoadedPolicy(replace(loaded.policy, model=model), loaded.params)


def policy_folder(name: str, method: str) -> Path:
    """The folder that a config names; `shipped` is the method's own, `shipped/x` that of x."""
    first, _, other = name.partition("/")
    if first == "shipped":
        row = chosen(other or method, METHODS, "model.folder" if other else "method.name")
        folder = shipped_folder(other or method)
        if not folder.is_dir():
            raise UserError(
                f"config.model.folder is {name!r}, and no policy ships for {other or method}; one "
                f"does for {', '.join(shipped_methods())}. Train one with `jaxagent train --config "
                f"{row.cold_start} --workdir <folder>` and give <folder>/trained."
            )
        return folder
    folder = local_path(name, "config.model.folder")
    if not folder.is_dir():
        raise UserError(
            f"There is no policy folder {folder}. Give config.model.folder a folder in Hugging "
            "Face format (config.json, *.safetensors, tokenizer.json), 'shipped' or 'new'."
        )
    return folder


def shipped_methods() -> list[str]:
    """The methods that a policy ships for."""
    return [method for method in METHODS if shipped_folder(method).is_dir()]


def family_questions(config: ConfigDict, world: World) -> list[Question]:
    """The training questions of the config's families."""
    found = world.questions("train", families=config.data.families)
    if not found:
        raise UserError(
            f"The benchmark has no training question of config.data.families "
            f"{config.data.families}. Name another family, or build one that has them "
            "(data.flags.families)."
        )
    return found


def training_questions(
    config: ConfigDict, world: World, progress: Progress = silent
) -> list[Question]:
    """The questions trained on: all of the families', or a draw of `data.questions`.

    The draw is by the benchmark's seed, so that runs of other seeds train on the same. Where the
    method says so, only those whose entities its searches can bring.
    """
    found = family_questions(config, world)
    if config.data.questions and config.data.questions < len(found):
        order = np.random.default_rng(world.benchmark.config.seed).permutation(len(found))
        found = [found[at] for at in sorted(order[: config.data.questions])]
    reach = chosen(config.method.name, METHODS, "method.name").reach
    if reach is None:
        return found
    top, kept = reach(settings(config)), []
    for done in range(0, len(found), SEARCHED):
        some = found[done : done + SEARCHED]
        ranks = entity_ranks(world.base, some, top)
        kept += [question for question, rank in zip(some, ranks, strict=True) if rank]
        progress("Questions within reach", done + len(some), len(found))
    if not kept:
        raise UserError(
            f"The searches of {config.method.name} can bring the entities of none of "
            f"{len(found)} training questions. Raise its batch_size or rej_max, or "
            "config.data.questions where that is not 0 (all)."
        )
    return kept
