"""What comes before policy optimisation when there is no policy yet: a new one, and its lessons.

    tokenizer ─► initial weights ─► warm start of the vision tower ─► traces of the expert ─► SFT

The new policy is a folder in Hugging Face format like any other, so everything after it is the same
code that a published policy takes.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxagent.agents import mmagent_r2
from jaxagent.cli import build
from jaxagent.cli.errors import told
from jaxagent.cli.records import record
from jaxagent.cli.work import WorkFolder
from jaxagent.data.benchmark import benchmark_texts
from jaxagent.data.matching import check_room, with_matching
from jaxagent.data.questions import entity_views
from jaxagent.data.tiny_policy import PolicySizes, make_policy_folder
from jaxagent.processing.policy import Policy, load_policy
from jaxagent.rollout.config import RolloutConfig
from jaxagent.training.demonstrations import Demonstrations, Stage, demonstrations, looks
from jaxagent.training.warm_start import WarmStart, levelled, warm_start_pairs, warm_started
from jaxagent.types import Progress, Trajectory
from jaxagent.weights.folder import is_whole, write_policy

logger = logging.getLogger(__name__)
TAGS = tuple(
    f"<{slash}{tag}>" for tag in ("reason", "thinking", *mmagent_r2.TAGS) for slash in ("", "/")
)
"""Tags that get a token of their own, as Qwen's `<tool_call>` has one."""
SEARCH_END = "</search_call>"
"""What every image that a search returns comes after."""
WIRE = (
    "system\n", "user\n", "Question: ", "assistant\n", "1 no 2 yes 3 no 4 no 5 no",
    "Find.", "Read.", "Found.",
    '{"image": 1}', '{"text": ["Chad: What', '"]}', 'Image 1 is "Chad".',
    '{"name": "image_search_tool", "arguments": {}}',
    '{"name": "text_search_tool", "arguments": {"query": "Chad: ',
)  # fmt: skip
WIRE_REPEATS = 300  # so that the tokenizer merges what every dialogue holds


def new_policy(
    config: ConfigDict, world: build.World, folder: WorkFolder, progress: Progress
) -> Path:
    """The folder of a new policy whose vision tower is warm; made once in a work folder."""
    path = folder.policy
    if is_whole(path):
        return path
    draft = folder.root / "policy.draft"
    sizes = record(PolicySizes, config, "model.sizes")
    texts = [*benchmark_texts(world.benchmark.folder), *WIRE * WIRE_REPEATS]
    with told(ValueError):
        make_policy_folder(draft, texts, sizes=sizes, seed=config.seed, words=TAGS)
    policy, params = load_policy(draft)
    settings = record(WarmStart, config, "warm_start")
    if settings.steps:
        with told(ValueError, FloatingPointError):
            check_room(policy.model.config)
            params = _warm(policy, params, world, settings, config.seed, progress)
    write_policy(draft, policy.model.config, params, template=draft)
    draft.rename(path)
    return path


def _warm(policy: Policy, params, world: build.World, settings: WarmStart, seed: int, progress):
    shown = world.base.image_rows  # none of an entity whose image cannot be read
    entities = [one for one in world.benchmark.entities if one.split and shown[one.id]]
    flags = world.benchmark.config
    pairs = warm_start_pairs(
        [one.id for one in entities],
        frozenset(one.id for one in entities if one.split == "train"),
        (flags.base, flags.query),
        settings,
    )
    grid = policy.image_processor.patches(world.images(entities[0].image)).grid

    def patches(key: str):
        return policy.image_processor.patches(world.images(key)).values

    params = warm_started(
        policy.model,
        params,
        pairs,
        patches,
        grid,
        settings,
        seed=seed,
        progress=lambda step, loss: progress("Warm start", step + 1, settings.steps),
    )
    bases = np.stack([patches(one.image) for one in entities])
    params = levelled(policy.model, params, bases, grid)
    features = policy.model.encode_images(params, jnp.asarray(bases), grid)
    search_end = policy.chat.tokenizer.token_to_id(SEARCH_END)
    return with_matching(params, policy.model.config, features, search_end=search_end)


def lessons(
    config: ConfigDict, world: build.World, policy: Policy, progress: Progress
) -> Iterator[Trajectory]:
    """The expert's traces on training questions, by the config's method."""
    settings = record(Demonstrations, config, "sft", seed=config.seed)
    yield from demonstrations(
        _stage(config, world, policy),
        settings,
        progress=lambda done: progress("Traces", done, settings.traces),
    )


def glances(
    config: ConfigDict, world: build.World, policy: Policy, progress: Progress, *, count: int
) -> Iterator[Trajectory]:
    """Other traces of the expert, up to the first choice."""
    yield from looks(
        _stage(config, world, policy),
        record(Demonstrations, config, "sft", seed=config.seed),
        count=count,
        progress=lambda done: progress("Looks", done, count),
    )


def _stage(config: ConfigDict, world: build.World, policy: Policy) -> Stage:
    flags, entities = world.benchmark.config, world.benchmark.entities
    return Stage(
        questions=build.family_questions(config, world),
        views=lambda entity: entity_views(entity, "train", flags),
        policy=policy,
        settings=build.settings(config),
        method=build.method(config),
        tools=build.tools(config, world.base),
        images=world.images,
        rollout=record(RolloutConfig, config, "rollout"),
        passages={passage.id: passage for passage in world.benchmark.passages},
        names=world.names,
        hidden=frozenset(one.id for one in entities if one.split != "train"),
    )
