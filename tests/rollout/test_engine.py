from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.rope import position_ids
from jaxagent.rollout import slots
from jaxagent.rollout.sampling import Sampling, support
from jaxagent.rollout.slots import NonFiniteLogits
from jaxagent.types import ImageRef
from tests import tiny
from tests.rollout import fakes

OBSERVATIONS = {
    1: ("1 ", ImageRef("tall:1"), " Chad 2 ", ImageRef("b:2"), ImageRef("wide"), " Romania"),
    2: ("Romania. Capital: <|im_end|> </answer>",),
}


def observe(dialogue, num):
    return OBSERVATIONS.get(num)


QUESTIONS = [
    fakes.question("q0", "a"),
    fakes.question("q1", "b", text="When?"),
    fakes.question("q2", "tall", "wide", text="Which is larger, by area, in square kilometres?"),
    fakes.question("q3", "big"),
]
METHOD = fakes.method(observe, stops=("</answer>", "e"), tool="search")


@pytest.fixture(scope="module")
def rollout():
    """Two samples of four questions through four slots; random turns that an `e` often ends."""
    return fakes.run(fakes.engine(METHOD), QUESTIONS, samples=2)


def every(rollout):
    return [trajectory for group in rollout.trajectories for trajectory in group]


def written_runs(trajectory) -> list[list[int]]:
    """The ids of each turn of the policy."""
    edges = np.flatnonzero(np.diff(np.r_[0, trajectory.written.astype(int), 0]))
    return [trajectory.ids[a:b].tolist() for a, b in edges.reshape(-1, 2)]


def full_log_probs(trajectory, sampling: Sampling, *, pixels: str = "true") -> np.ndarray:
    """Log-probs of each token but the first, by one forward pass over the whole sequence.

    `pixels` "none" leaves the images' placeholder embeddings in place.
    """
    policy, params = tiny.policy()
    length = fakes.CONFIG.context
    ids = np.zeros((1, length), np.int32)
    ids[0, : len(trajectory.ids)] = trajectory.ids
    positions = np.zeros((3, 1, length), np.int32)
    merge = policy.image_processor.merge
    positions[:, 0, : len(trajectory.ids)] = position_ids(
        trajectory.ids, trajectory.images, merge
    ).ids
    index = np.full((1, length), -1, np.int32)
    features = np.zeros((3, 64, policy.model.config.text.width), np.float32)  # tokens, deepstack
    first = 0
    for image in trajectory.images:
        patches = policy.image_processor.patches(fakes.images(image.key))
        assert patches.grid == image.grid
        tokens, deepstack = _encoded(params, patches.values[None], patches.grid)
        last = first + tokens.shape[1]
        features[:, first:last] = [tokens[0], *deepstack[:, 0]]
        if pixels == "true":
            index[0, image.start : image.start + last - first] = np.arange(first, last)
        first = last
    log_probs = _log_probs(
        params, ids, positions, ImageFeatures(features[:1], features[1:, None]), index, sampling
    )
    return np.asarray(log_probs)[np.arange(length - 1), ids[0, 1:]][: len(trajectory.ids) - 1]


@partial(jax.jit, static_argnums=2)
def _encoded(params, patches, grid):
    return tiny.policy().policy.model.encode_images(params, patches, grid)


@partial(jax.jit, static_argnums=5)
def _log_probs(params, ids, positions, features, index, sampling):
    policy = tiny.policy().policy
    hidden = policy.model.forward(params, ids, positions, jnp.ones_like(ids), features, index)
    logits = policy.model.logits(params, hidden[0])
    banned = jnp.zeros(logits.shape[1], bool).at[jnp.array(policy.chat.banned_ids)].set(True)
    return jax.nn.log_softmax(support(logits, sampling, banned=banned))


def assert_same(one, other):
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.log_probs, other.log_probs)
    assert one.dialogue == other.dialogue


def test_the_ids_are_the_pieces_one_after_the_other(rollout):
    chat = tiny.policy().policy.chat
    grid = fakes.engine(METHOD).features.grid
    for trajectory in every(rollout):
        question = trajectory.question
        turns = written_runs(trajectory)
        assert len(turns) == 3
        parts = (*map(ImageRef, question.images), question.text)
        pieces = [chat.prompt(METHOD.system, parts, image_grid=grid)]
        for num, turn in enumerate(turns[:-1], start=1):
            ended = turn[-1] == chat.end_id
            pieces.append(chat.observation(OBSERVATIONS[num], ended=ended, image_grid=grid))
        expected = [
            id for piece, turn in zip(pieces, turns, strict=True) for id in (*piece.ids, *turn)
        ]
        assert trajectory.ids.tolist() == expected
        assert [image.key for image in trajectory.images] == [
            image.key for piece in pieces for image in piece.images
        ]


def test_what_the_cache_was_fed_is_what_training_sees(monkeypatch):
    fed = np.zeros((fakes.CONFIG.slots, fakes.CONFIG.context + 64), np.int32)

    def appended(model, params, cache, chunks, **fields):
        for row, start, ids in zip(chunks.rows, chunks.start, chunks.ids, strict=True):
            if row < len(fed):
                fed[row, start : start + len(ids)] = ids
        return original_appended(model, params, cache, chunks, **fields)

    def copied(cache, sources, targets, **fields):
        taken = fed[sources]
        for row, ids in zip(targets, taken, strict=True):
            if row < len(fed):
                fed[row] = ids
        return original_copied(cache, sources, targets, **fields)

    def decoded(model, params, cache, speakers, key, banned, **fields):
        out = original_decoded(model, params, cache, speakers, key, banned, **fields)
        for row, start, last, new in zip(
            speakers.rows, speakers.start, speakers.ids, np.asarray(out.drawn.ids), strict=True
        ):
            if row < len(fed):
                fed[row, start : start + len(new)] = [last, *new[:-1]]
        return out

    original_appended, original_copied = slots.appended, slots.copied
    original_decoded = slots.decoded
    monkeypatch.setattr(slots, "appended", appended)
    monkeypatch.setattr(slots, "copied", copied)
    monkeypatch.setattr(slots, "decoded", decoded)
    rollout = fakes.run(fakes.engine(METHOD), QUESTIONS[:2], samples=2)
    for slot, trajectory in enumerate(every(rollout)):
        num = len(trajectory.ids) - 1
        np.testing.assert_array_equal(fed[slot, :num], trajectory.ids[:num])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_p=0.9, top_k=50)])
def test_log_probs_of_many_turns_equal_one_forward_pass(sampling, rollout):
    if sampling != fakes.CONFIG.sampling:
        config = replace(fakes.CONFIG, sampling=sampling)
        rollout = fakes.run(fakes.engine(METHOD, config), QUESTIONS)
    for trajectory in every(rollout)[:4]:
        expected = full_log_probs(trajectory, sampling)
        written = trajectory.written[1:]
        np.testing.assert_allclose(
            trajectory.log_probs[1:][written], expected[written], atol=1e-4, rtol=1e-4
        )
        assert (trajectory.log_probs[~trajectory.written] == 0).all()


def test_other_pixels_give_other_log_probs_in_sampler_and_trainer(rollout):
    seen = rollout.trajectories[0][0]
    other = fakes.run(fakes.engine(METHOD), [replace(QUESTIONS[0], images=("b:7",))])
    first = np.flatnonzero(seen.written)[0]
    there = other.trajectories[0][0]
    assert np.flatnonzero(there.written)[0] == first
    renamed = replace(seen, images=(replace(seen.images[0], key="b:7"), *seen.images[1:]))
    true, changed, blind = (
        full_log_probs(trajectory, Sampling(), pixels=pixels)[first - 1 :]
        for trajectory, pixels in ((seen, "true"), (renamed, "true"), (seen, "none"))
    )
    assert abs(true[0] - changed[0]) > 0.01
    assert abs(true[0] - blind[0]) > 0.01
    assert there.ids[first] != seen.ids[first] or there.log_probs[first] != seen.log_probs[first]


def test_an_image_that_is_missing_is_named():
    with pytest.raises(KeyError, match="lost"):
        fakes.run(fakes.engine(METHOD), [fakes.question("q", "lost:1")])


def test_slots_other_rows_and_their_order_change_no_bit(rollout):
    backwards = fakes.run(fakes.engine(METHOD), QUESTIONS[::-1], samples=2)
    for group, same in zip(rollout.trajectories, backwards.trajectories[::-1], strict=True):
        for one, other in zip(group, same, strict=True):
            assert_same(one, other)
    alone = fakes.run(fakes.engine(METHOD), QUESTIONS[2:3])
    assert_same(alone.trajectories[0][0], rollout.trajectories[2][0])


def test_rows_that_call_tools_get_their_own_images():
    calls = {"q1": 1, "q2": 2}

    def some(dialogue, num):
        name = dialogue.question.data_id
        if num > calls.get(name, 0):
            return None
        return (ImageRef(f"tall:{name[1:]}{num}"), " found")

    method = fakes.method(some, tool="search")
    together = fakes.run(fakes.engine(method), QUESTIONS)
    for question, (trajectory,) in zip(QUESTIONS, together.trajectories, strict=True):
        name = question.data_id
        own = [f"tall:{name[1:]}{num}" for num in range(1, calls.get(name, 0) + 1)]
        assert [image.key for image in trajectory.images] == [*question.images, *own]
        alone = fakes.run(fakes.engine(method), [question]).trajectories[0][0]
        assert_same(trajectory, alone)


def test_marker_tokens_are_never_sampled():
    policy, params = tiny.policy()
    table = params["text"]["embed"]["table"]
    loud = table.at[jnp.array(policy.chat.banned_ids)].multiply(30)
    params = {**params, "text": {**params["text"], "embed": {"table": loud}}}
    out = fakes.engine(METHOD).run(params, QUESTIONS, samples=1, seed=0, step=0, version=0)
    for trajectory in every(out):
        assert not np.isin(trajectory.ids[trajectory.written], policy.chat.banned_ids).any()


def test_a_group_shares_its_prompt_and_nothing_is_fed_twice(rollout):
    engine = fakes.engine(METHOD)
    refilled = fakes.run(engine, QUESTIONS[1:], samples=3)  # nine dialogues through four slots
    assert refilled.metrics["prefill_ratio"] == 1.0
    assert rollout.metrics["prefill_ratio"] == 1.0
    assert refilled.metrics["images_encoded"] == 6
    again = fakes.run(engine, QUESTIONS[1:], samples=3)
    assert again.metrics["images_encoded"] == 0
    assert again.metrics["compilations"] == 0
    for group, same in zip(refilled.trajectories, again.trajectories, strict=True):
        assert len({trajectory.ids.tobytes() for trajectory in group}) == 3
        for one, other in zip(group, same, strict=True):
            assert_same(one, other)


def test_another_step_or_seed_samples_other_tokens(rollout):
    ids = rollout.trajectories[0][0].ids.tolist()
    engine = fakes.engine(METHOD)
    assert fakes.run(engine, QUESTIONS[:1], step=1).trajectories[0][0].ids.tolist() != ids
    assert fakes.run(engine, QUESTIONS[:1], seed=1).trajectories[0][0].ids.tolist() != ids
    assert fakes.run(engine, QUESTIONS[:1]).trajectories[0][0].ids.tolist() == ids


def test_nothing_of_an_older_version_is_read():
    policy, params = tiny.policy()
    newer = tiny.params(policy.model, seed=1)
    used, fresh = fakes.engine(METHOD), fakes.engine(METHOD)
    fakes.run(used, QUESTIONS, samples=2)
    fields = {"samples": 2, "seed": 0, "step": 0, "version": 1}
    after = used.run(newer, QUESTIONS, **fields)
    for one, other in zip(every(after), every(fresh.run(newer, QUESTIONS, **fields)), strict=True):
        assert_same(one, other)


def test_more_replicas_than_devices_are_refused():
    config = replace(fakes.CONFIG, replicas=9, slots=9)
    with pytest.raises(ValueError, match="replicas is 9, but this host has 8 device"):
        fakes.engine(METHOD, config)


def test_damaged_weights_stop_the_run():
    params = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), tiny.policy().params)
    with pytest.raises(NonFiniteLogits, match="not finite"):
        fakes.engine(METHOD).run(params, QUESTIONS, samples=1, seed=0, step=0, version=0)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"replicas": 2, "slots": 8}, {"kernel": "batch"}])
def test_replicas_and_kernels_agree(change, rollout):
    out = fakes.run(fakes.engine(METHOD, replace(fakes.CONFIG, **change)), QUESTIONS, samples=2)
    assert out.metrics["prefill_ratio"] == 1.0
    for one, other in zip(every(out), every(rollout), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
