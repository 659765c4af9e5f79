"""The update: how a batch is cut, packed and sharded changes nothing; nor does a bad gradient."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.rope import position_ids
from jaxagent.sharding import MeshSizes
from jaxagent.training.step import NonFiniteGradient, merged, split
from jaxagent.trees import flat
from tests.training.dialogues import (
    MODEL,
    PARAMS,
    PATCHES,
    SHAPE,
    batches,
    frozen,
    samples,
    total_of,
    update,
)

FEATURES = frozen(PARAMS)
ONE_EACH = replace(SHAPE, rows=2, samples=1)


def assert_close(found, wanted, *, rtol=1e-5):
    """Leaf by leaf, to `rtol` of the leaf's largest number."""
    for name, leaf in flat(wanted).items():
        atol = rtol * max(np.abs(leaf).max(), 1e-3)
        np.testing.assert_allclose(flat(found)[name], leaf, rtol=rtol, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def single():
    """Gradients and sums of a GRPO batch on one device, and the parameters after the step."""
    step = update()
    cut = batches(step, samples(), FEATURES)
    learner = step.learner(PARAMS)
    total = total_of(step, learner, cut)
    after, metrics = step.run(learner, cut)
    return total, jax.device_get(after.params), metrics


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(MeshSizes(data=8), marks=pytest.mark.slow),
        pytest.param(MeshSizes(data=1, fsdp=8), marks=pytest.mark.slow),
        pytest.param(MeshSizes(data=2, fsdp=2, tensor=2), marks=pytest.mark.slow),
        MeshSizes(data=1, fsdp=2, tensor=2, context=2),
    ],
    ids=str,
)
def test_every_mesh_gives_the_update_of_one_device(sizes, single):
    step = update(mesh=sizes)
    cut = batches(step, samples(), FEATURES)
    learner = step.learner(PARAMS)
    assert_close(total_of(step, learner, cut).gradients, single[0].gradients)
    after, metrics = step.run(learner, cut)
    np.testing.assert_allclose(metrics["loss"], single[2]["loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], single[2]["grad_norm"], rtol=1e-5)
    assert_close(jax.device_get(after.params), single[1], rtol=1e-4)  # Adam's first step is a sign


def test_packing_and_micro_batches_change_nothing(single):
    step = update()
    learner = step.learner(PARAMS)
    cut = batches(step, samples(), FEATURES, ONE_EACH)
    assert len(cut) == 3
    total = total_of(step, learner, cut)
    assert_close(total.gradients, single[0].gradients)
    assert_close(total.sums._asdict(), single[0].sums._asdict())


def test_further_micro_batches_and_updates_compile_nothing():
    step = update()
    learner = step.learner(PARAMS)
    cut = batches(step, samples(), FEATURES)
    learner, _ = step.run(learner, cut)
    compiled = step.accumulate._cache_size(), step.apply_trained._cache_size()
    step.run(learner, cut * 3)
    assert (step.accumulate._cache_size(), step.apply_trained._cache_size()) == compiled


def test_row_order_changes_nothing(single):
    step = update()
    cut = batches(step, samples()[::-1], FEATURES)
    assert_close(total_of(step, step.learner(PARAMS), cut).gradients, single[0].gradients)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -1e10])
def test_what_stands_at_masked_places_reaches_nothing(fill, single):
    step = update()
    (batch,) = batches(step, samples(), FEATURES)
    rows, targets = batch.rows, batch.rows.targets
    nowhere, unused = targets.samples.ids == 0, targets.weights == 0
    rows = rows._replace(
        ids=np.where(rows.segments > 0, rows.ids, 10**6),
        feature_index=np.where(rows.segments > 0, rows.feature_index, 10**6),
        sampled=np.where(nowhere, fill, rows.sampled).astype(np.float32),
        verdict_weights=np.where(rows.verdicts < 0, fill, 0).astype(np.float32),
        targets=targets._replace(
            old_log_probs=np.where(nowhere, fill, targets.old_log_probs).astype(np.float32),
            advantages=np.where(unused, fill, targets.advantages).astype(np.float32),
            weights=np.where(unused, fill, targets.weights).astype(np.float32),
        ),
    )
    total = total_of(step, step.learner(PARAMS), [batch._replace(rows=rows)])
    jax.tree.map(np.testing.assert_array_equal, total.gradients, single[0].gradients)
    for name, value in total.sums._asdict().items():
        np.testing.assert_array_equal(value, getattr(single[0].sums, name), err_msg=name)


def test_an_all_masked_micro_batch_adds_nothing(single):
    step = update()
    learner = step.learner(PARAMS)
    cut = [*batches(step, [], FEATURES), *batches(step, samples(), FEATURES)]
    total = total_of(step, learner, cut)
    jax.tree.map(np.testing.assert_array_equal, total.gradients, single[0].gradients)
    assert total.sums.max_ratio == single[0].sums.max_ratio


def test_frozen_parts_have_neither_gradient_nor_optimiser():
    step = update()
    learner = step.learner(PARAMS)
    assert set(learner.params) == {"text"}
    assert set(learner.frozen) == {"vision"}
    sizes = sum(leaf.size for leaf in jax.tree.leaves(learner.optimizer))
    trained = sum(leaf.size for leaf in jax.tree.leaves(learner.params))
    assert sizes < 2 * trained + 10
    jax.tree.map(np.testing.assert_array_equal, merged(learner.params, learner.frozen), PARAMS)


def test_a_tower_that_learns_has_the_loss_of_a_frozen_one_and_a_gradient(single):
    step = update(frozen=())
    shape = replace(SHAPE, image_tokens=16)
    total = total_of(step, step.learner(PARAMS), batches(step, samples(), PATCHES, shape))
    np.testing.assert_allclose(total.sums.loss, single[0].sums.loss, rtol=1e-5)
    trained, tower = split(total.gradients, (r"^vision/",))
    assert_close(trained, single[0].gradients)
    assert all(
        np.abs(leaf).max() > 0 for name, leaf in flat(tower).items() if "qkv/bias" not in name
    )


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named():
    step = update()
    the_samples = samples()
    the_samples[1] = replace(the_samples[1], advantage=float("nan"))
    with pytest.raises(NonFiniteGradient, match="Update 0 has a gradient") as error:
        step.run(step.learner(PARAMS), batches(step, the_samples, FEATURES))
    assert "text/norm/scale" in error.value.names
    learner = error.value.learner
    jax.tree.map(np.testing.assert_array_equal, merged(learner.params, learner.frozen), PARAMS)
    _, metrics = step.run(learner, batches(step, samples(), FEATURES))
    assert np.isfinite(metrics["loss"])


def test_recorded_log_probs_of_the_same_parameters_give_ratio_1():
    step = update()
    learner = step.learner(PARAMS)
    (batch,) = batches(step, samples(), FEATURES)
    exact = np.asarray(step.log_probs(learner, step.placed(batch)))
    targets = batch.rows.targets._replace(old_log_probs=exact)
    batch = batch._replace(rows=batch.rows._replace(targets=targets, sampled=exact))
    _, metrics = step.run(learner, [batch])
    np.testing.assert_allclose([metrics["max_ratio"], metrics["min_ratio"]], 1, atol=1e-5)
    assert metrics["max_sampler_gap"] < 1e-5
    assert metrics["clipped"] == 0


def test_verdicts_are_the_cross_entropy_of_yes_and_no_at_their_token():
    step = update("sft", verdict_ids=(11, 12))
    learner = step.learner(PARAMS)
    the_samples = samples(lengths=(12,) * 4)
    cut = batches(step, the_samples, FEATURES, verdict_weight=1.0)
    with_verdicts = total_of(step, learner, cut)
    forward = jax.jit(MODEL.forward)
    wanted, right = [], 0
    for one in the_samples:
        pictures = FEATURES({image.key: image.grid for image in one.images}, 4)
        index = np.full((1, 12), -1)
        index[0, 1:5] = np.arange(4)
        hidden = forward(
            PARAMS,
            one.ids[None],
            position_ids(one.ids, one.images, 2).ids[:, None],
            np.ones((1, 12), np.int32),
            pictures.arrays,
            index,
        )
        logits = np.asarray(MODEL.logits(PARAMS, hidden)[0, 5, jnp.array([11, 12])])
        label = int(one.verdicts[5])
        wanted.append(-logits[label] + np.logaddexp(*logits))
        right += int(np.argmax(logits) == label)
    np.testing.assert_allclose(with_verdicts.sums.verdict_loss, np.mean(wanted), rtol=1e-5)
    assert with_verdicts.sums.verdicts_right == right
    assert with_verdicts.sums.verdicts == len(the_samples)


def test_an_update_raises_the_likelihood_of_what_the_expert_wrote():
    step = update("sft", verdict_ids=(11, 12))
    learner = step.learner(PARAMS)
    cut = batches(step, samples(), FEATURES)
    losses = []
    for _ in range(4):
        learner, metrics = step.run(learner, cut)
        losses.append(metrics["loss"])
    assert losses == sorted(losses, reverse=True)
    assert int(learner.step) == 4
