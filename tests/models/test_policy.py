"""Laws of the towers: packed = separate, prefill + decode = forward, padding is nothing."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.attention import KVCache, Place, append, cache_mask, segment_mask
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.weights.folder import read_policy
from tests import tiny
from tests.models import families, twins
from tests.models.test_config import EIGHT_B

LAYER = 1e-5
LENGTH = 24
GRID = (1, 4, 4)


QWEN2 = {"deepstack": 0, "qk_norm": False, "qkv_bias": True, "rope_interleaved": False}


@pytest.fixture(scope="module", params=[{}, QWEN2], ids=["qwen3", "qwen2"])
def model(request):
    return tiny.model(**request.param)


@pytest.fixture(scope="module")
def params(model):
    return tiny.params(model)


@pytest.fixture(scope="module")
def features(model, params):
    patches = np.random.default_rng(0).standard_normal((3, 16, 96), dtype=np.float32)
    return jax.jit(model.encode_images, static_argnums=2)(params, jnp.asarray(patches), GRID)


@pytest.fixture(scope="module")
def forward(model):
    return jax.jit(model.forward)


class Row:
    """A row of 24 tokens with images at 3 and 12, and its parts."""

    ids = np.random.default_rng(1).integers(9, 60, (1, LENGTH))
    positions = np.random.default_rng(2).integers(0, 40, (3, 1, LENGTH))
    segments = np.ones((1, LENGTH), np.int32)
    index = np.full((1, LENGTH), -1)
    index[0, 3:7] = np.arange(4, 8)
    index[0, 12:16] = np.arange(0, 4)


def test_packed_rows_equal_separate_rows(params, forward, features):
    whole = np.where(np.arange(LENGTH) < 10, 1, 2)[None]
    whole[0, 20:] = 0
    packed = forward(params, Row.ids, Row.positions, whole, features, Row.index)

    def alone(start, end):
        def rolled(array, fill=0):
            moved = np.full_like(array, fill)
            moved[..., : end - start] = array[..., start:end]
            return moved

        return forward(
            params,
            rolled(Row.ids),
            rolled(Row.positions),
            rolled(Row.segments),
            features,
            rolled(Row.index, -1),
        )[:, : end - start]

    np.testing.assert_allclose(packed[:, :10], alone(0, 10), atol=LAYER)
    np.testing.assert_allclose(packed[:, 10:20], alone(10, 20), atol=LAYER)


def test_prefill_observation_and_decode_equal_the_forward_pass(model, params, forward, features):
    whole = forward(params, Row.ids, Row.positions, Row.segments, features, Row.index)[0]
    extend = jax.jit(model.extend, static_argnames="length")
    cache = model.new_cache(3, LENGTH, jnp.float32)
    cache = KVCache(cache.pages + 7.0)  # whatever an earlier dialogue left is never seen
    hidden = []
    # a prompt padded from 9 to 12 tokens, three decoded tokens, an observation with an image
    for start, end, padded in ((0, 9, 12), (9, 10, 1), (10, 11, 1), (11, 12, 1), (12, 24, 12)):
        chunk = np.arange(start, start + padded)
        chunk = np.where(chunk < end, chunk, 0)
        hidden_chunk, cache = extend(
            params,
            cache,
            Row.ids[:, chunk],
            Row.positions[:, :, chunk],
            jnp.asarray([1]),
            jnp.asarray([start]),
            features,
            Row.index[:, chunk],
        )
        hidden.append(hidden_chunk[0, : end - start])
    np.testing.assert_allclose(np.concatenate(hidden), whole, atol=LAYER)


def test_rows_decode_alike_wherever_they_stand_and_however_far_is_read(model, params):
    extend = jax.jit(model.extend, static_argnames="length")
    numbers = np.random.default_rng(3)
    pages = numbers.standard_normal(model.new_cache(4, LENGTH, jnp.float32).pages.shape)
    cache = KVCache(jnp.asarray(pages, jnp.float32))
    ids, start = numbers.integers(9, 60, (4, 1)), np.array([3, 11, 7, 0])
    positions = np.broadcast_to(start[None, :, None], (3, 4, 1))
    everyone, written = extend(params, cache, ids, positions, None, start)
    order = np.array([2, 0])
    some, written_some = extend(
        params, cache, ids[order], positions[:, order], jnp.asarray(order), start[order]
    )
    np.testing.assert_allclose(some, everyone[order], atol=LAYER)
    np.testing.assert_allclose(written_some.pages[:, order], written.pages[:, order], atol=LAYER)
    shorter, _ = extend(params, cache, ids, positions, None, start, length=12)
    np.testing.assert_allclose(shorter, everyone, atol=LAYER)


def test_what_lies_behind_a_page_is_dropped():
    cache = KVCache(jnp.zeros((1, 2, 4, 2, 1)))
    new = jnp.asarray([[1.0, 2.0, 3.0]])[:, :, None, None]
    written = append(cache, jnp.asarray(0), new, -new, Place(jnp.asarray([1]), jnp.asarray([2])))
    np.testing.assert_array_equal(written.pages[0, 1, :, 0, 0], [0, 0, 1, 2])
    np.testing.assert_array_equal(written.pages[0, 1, :, 1, 0], [0, 0, -1, -2])
    assert not written.pages[0, 0].any()


def test_padding_reaches_neither_value_nor_gradient(model, params, forward, features):
    segments = np.where(np.arange(LENGTH) < 16, 1, 0)[None]
    clean = forward(params, Row.ids, Row.positions, segments, features, Row.index)
    # an unknown id, and a feature row full of NaN that only padding points at
    poisoned = ImageFeatures(
        features.tokens.at[2].set(jnp.nan), features.deepstack.at[:, 2].set(jnp.nan)
    )
    ids, index = Row.ids.copy(), Row.index.copy()
    ids[0, 16:], index[0, 16:20] = 10**6, np.arange(8, 12)
    dirty = forward(params, ids, Row.positions, segments, poisoned, index)
    np.testing.assert_array_equal(dirty[:, :16], clean[:, :16])

    @jax.jit
    def gradients(params, features):
        def loss(params, features):
            row = map(jnp.asarray, (ids, Row.positions, segments))
            hidden = model.forward(params, *row, features, jnp.asarray(index))
            return jnp.sum(hidden[:, :16] ** 3)

        return jax.grad(loss, argnums=(0, 1))(params, features)

    for leaf in jax.tree.leaves(gradients(params, poisoned)):
        assert np.isfinite(leaf).all()


def test_another_image_or_none_changes_what_is_said(params, forward, features):
    said = forward(params, Row.ids, Row.positions, Row.segments, features, Row.index)
    other = ImageFeatures(features.tokens[::-1], features.deepstack[:, ::-1])
    swapped = forward(params, Row.ids, Row.positions, Row.segments, other, Row.index)
    none = np.full_like(Row.index, -1)
    dropped = forward(params, Row.ids, Row.positions, Row.segments, features, none)
    assert jnp.abs(said - swapped).max() > 0.1
    assert jnp.abs(said - dropped).max() > 0.1
    assert jnp.abs(swapped - dropped).max() > 0.1


def cast(shapes, dtype):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)


@pytest.mark.parametrize(
    "changes",
    [
        QWEN2,
        {"deepstack": 2, "layers": 2, "tied": False},
    ],
)
def test_other_members_of_the_family_run_in_both_precisions(changes):
    # Qwen2's text tower, and one whose every layer takes deepstack features
    model = tiny.model(**changes)
    for dtype in (jnp.float32, jnp.bfloat16):
        half = cast(model.shapes(), dtype)
        found = jax.eval_shape(model.forward, half, Row.ids, Row.positions, Row.segments)
        assert (found.shape, found.dtype) == ((1, LENGTH, 32), dtype)
        assert jax.eval_shape(model.logits, half, found).dtype == jnp.float32


def test_tracing_the_8b_model_takes_less_than_ten_seconds():
    model = Model(PolicyConfig.from_hf(EIGHT_B))
    spec = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)

    def loss(params, ids, positions, segments, patches, index):
        features = model.encode_images(params, patches, (1, 28, 28))
        hidden = model.forward(params, ids, positions, segments, features, index)
        return jnp.sum(hidden)

    began = time.process_time()
    jax.jit(jax.grad(loss)).trace(
        model.shapes(),
        spec((2, 4096)),
        spec((3, 2, 4096)),
        spec((2, 4096)),
        jax.ShapeDtypeStruct((4, 784, 1536), jnp.float32),
        spec((2, 4096)),
    )
    assert time.process_time() - began < 10


def test_masks_are_as_drawn():
    np.testing.assert_array_equal(
        segment_mask(jnp.asarray([[1, 1, 2, 2, 0]]))[0],
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]],
    )
    np.testing.assert_array_equal(
        cache_mask(jnp.asarray([2]), 2, 5)[0], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    )


@pytest.mark.parametrize("name", families.ONE_OF_EACH.values())
def test_loading_a_folder_and_one_forward_pass_take_less_than_twenty_seconds(name):
    folder = families.folder(name)
    jax.clear_caches()
    began = time.process_time()
    config, params = read_policy(folder)
    model = Model(config)
    one = twins.context(model, (3, (1, 4, 4), 8), seed=0)
    assert np.isfinite(twins.logits(model, params, twins.batch(model, [one]))).all()
    assert time.process_time() - began < 20
