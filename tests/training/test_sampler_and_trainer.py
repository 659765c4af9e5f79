"""The trainer sees what the sampler saw: its log-probs are the recorded ones, pixels included."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from jaxagent.algorithms.table import ALGORITHMS
from jaxagent.rollout.sampling import Sampling
from jaxagent.sharding import MeshSizes, make_mesh, policy_rules
from jaxagent.training.batch import Shape, micro_batches
from jaxagent.training.optimizer import OptimizerConfig, make_optimizer
from jaxagent.training.pictures import frozen_pictures, patch_pictures
from jaxagent.training.samples import sample
from jaxagent.training.step import StepConfig, Update
from jaxagent.types import ImageRef
from tests import tiny
from tests.rollout import fakes

TEMPERATURE = 0.7
SHAPE = Shape(rows=2, tokens=384, targets=96, samples=2, image_tokens=72)
OBSERVATIONS = {
    1: ("1 ", ImageRef("tall:1"), " Chad 2 ", ImageRef("b:2"), " Romania"),
    2: ("Romania. Capital: <|im_end|> </answer> ", ImageRef("wide")),
}
QUESTIONS = [
    fakes.question("q0", "a"),
    fakes.question("q1", "b", "tall", text="Which is larger, by area, in square kilometres?"),
]
NUM_IMAGES = 4
"""In a dialogue of the first question: its own, two candidates, one more."""


@pytest.fixture(scope="module")
def engine():
    method = fakes.method(
        lambda dialogue, num: OBSERVATIONS.get(num), stops=("</answer>", "e"), tool="search"
    )
    return fakes.engine(method, replace(fakes.CONFIG, sampling=Sampling(temperature=TEMPERATURE)))


@pytest.fixture(scope="module")
def trajectories(engine):
    """Two samples of each question, three turns each."""
    return [one for group in fakes.run(engine, QUESTIONS, samples=2).trajectories for one in group]


@pytest.fixture(scope="module")
def gaps(engine):
    """(trajectories, source of pictures) -> |trainer's log-prob - recorded one| of each token."""
    policy, params = tiny.policy()
    update = Update(
        model=policy.model,
        algorithm=ALGORITHMS["grpo"],
        optimizer=make_optimizer(OptimizerConfig(), 10),
        mesh=make_mesh(MeshSizes(), jax.devices()[:1]),
        rules=policy_rules(tied=True, qkv_bias=False),
        config=StepConfig(chunk=32, temperature=TEMPERATURE, banned=policy.chat.banned_ids),
    )
    learner = update.learner(params)
    merge = policy.image_processor.merge

    def patches(key):
        return policy.image_processor.patches(fakes.images(key)).values

    sources = {
        "features": frozen_pictures(engine.features, params),
        "patches": partial(patch_pictures, patches, merge),
    }

    def found(the_trajectories, source: str = "features") -> np.ndarray:
        batches = micro_batches(
            [sample(one, group=i) for i, one in enumerate(the_trajectories)],
            [SHAPE],
            aggregation=update.algorithm.aggregation,
            pictures=sources[source],
            merge=merge,
        )
        return np.concatenate(
            [
                np.abs(update.log_probs(learner, update.placed(batch)) - batch.rows.sampled)[
                    batch.rows.targets.samples.ids > 0
                ]
                for batch in batches
            ]
        )

    return found


@pytest.mark.parametrize("source", ["features", "patches"])
def test_the_trainer_gives_every_written_token_its_recorded_log_prob(trajectories, gaps, source):
    assert all(len(one.images) >= NUM_IMAGES for one in trajectories)
    found = gaps(trajectories, source)
    assert len(found) == sum(one.written.sum() for one in trajectories)
    assert found.max() < 1e-4


@pytest.mark.parametrize("at", range(NUM_IMAGES))
@pytest.mark.parametrize("fate", ["renamed", "dropped"])
def test_a_dialogue_with_another_image_or_without_it_does_not_agree(trajectories, gaps, fate, at):
    seen = trajectories[0]
    images = list(seen.images)
    taken = images.pop(at)
    if fate == "renamed":
        other = f"{taken.key.partition(':')[0]}:9"
        images.insert(at, replace(taken, key=other))
    assert gaps([seen]).max() < 1e-4
    assert gaps([replace(seen, images=tuple(images))]).max() > 0.01
