"""Random samples, trajectories and updates of the tiny model, for the tests of training."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.algorithms.table import ALGORITHMS
from jaxagent.rollout.features import Features
from jaxagent.sharding import MeshSizes, make_mesh, policy_rules
from jaxagent.training.batch import PictureSource, Shape, micro_batches
from jaxagent.training.optimizer import OptimizerConfig, make_optimizer
from jaxagent.training.pictures import feature_pictures, patch_pictures
from jaxagent.training.samples import Sample
from jaxagent.training.step import StepConfig, Update
from jaxagent.trees import Params
from jaxagent.types import ImageSpan, Question
from tests import tiny

MODEL = tiny.model(layers=2)
PARAMS = tiny.params(MODEL)
MERGE, GRID, VOCAB = 2, (1, 4, 4), 64
NUM_TOKENS = 4
"""Of one image."""
LENGTHS = (14, 20, 11, 17, 23, 9)
SHAPE = Shape(rows=8, tokens=32, targets=16, samples=3, image_tokens=40)


def samples(seed: int = 0, lengths=LENGTHS, group_size: int = 2) -> list[Sample]:
    """Dialogues with one image of their group; the last third of the tokens is written."""
    rng = np.random.default_rng(seed)
    return [
        Sample(
            ids=rng.integers(9, VOCAB, length).astype(np.int32),
            written=np.arange(length) >= length - length // 3,
            log_probs=rng.normal(-4, 0.3, length).astype(np.float32),
            images=(ImageSpan(key=f"image {i // group_size}", start=1, grid=GRID),),
            calls=int(rng.integers(0, 4)),
            group=i // group_size,
            advantage=float(rng.normal()),
            verdicts={5: bool(i % 2)},
        )
        for i, length in enumerate(lengths)
    ]


def question(data_id: str) -> Question:
    """A question about one image of Chad."""
    return Question(
        data_id=data_id,
        images=("view:td",),
        text="?",
        kind="String",
        family="single",
        answers=("a",),
        entities=("td",),
        relation="capital",
    )


def patches(key: str) -> np.ndarray:
    """Random patches that depend on the key alone."""
    rng = np.random.default_rng(list(key.encode()))
    return rng.random((16, 3 * 2 * 4 * 4), np.float32)


def frozen(params: Params) -> PictureSource:
    """Features of the images under the given parameters."""
    encode = jax.jit(MODEL.encode_images, static_argnums=2)

    @cache
    def feature(key):
        one = encode(params, jnp.asarray(patches(key))[None], GRID)
        return Features(np.asarray(one.tokens[0]), np.asarray(one.deepstack[:, 0]))

    def features(keys):
        return {key: feature(key) for key in keys}

    return partial(feature_pictures, MODEL, features)


PATCHES: PictureSource = partial(patch_pictures, patches, MERGE)


@cache
def update(
    name: str = "grpo",
    *,
    mesh: MeshSizes | None = None,
    learning_rate: float = 1e-3,
    **config,
) -> Update:
    """An update of the tiny model, without a mesh on one device; compiled once for all tests."""
    devices = jax.devices()[: 8 if mesh else 1]
    return Update(
        model=MODEL,
        algorithm=ALGORITHMS[name],
        optimizer=make_optimizer(OptimizerConfig(learning_rate=learning_rate, warmup=0.0), 10),
        mesh=make_mesh(mesh or MeshSizes(), devices),
        rules=policy_rules(tied=True, qkv_bias=False),
        config=StepConfig(chunk=8, **config),
    )


def batches(the_update: Update, the_samples, pictures, shape: Shape = SHAPE, **options):
    """Micro-batches of one rung."""
    return micro_batches(
        the_samples,
        [shape],
        aggregation=the_update.algorithm.aggregation,
        pictures=pictures,
        merge=MERGE,
        **options,
    )


def total_of(the_update: Update, learner, the_batches):
    """Gradients and sums of all micro-batches, on the host."""
    total = the_update.no_total(learner.params)
    for batch in the_batches:
        total = the_update.accumulate(learner, total, the_update.placed(batch))
    return jax.device_get(total)
