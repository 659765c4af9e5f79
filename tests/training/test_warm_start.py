"""What the warm start reads, and that it brings views to their base images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.data.fiction import untwisted_key
from jaxagent.data.views import parsed_view_key
from jaxagent.training.warm_start import (
    WarmStart,
    levelled,
    tower_vectors,
    warm_start_pairs,
    warm_started,
)
from tests import tiny

ENTITIES = ("td", "ml", "pe", "fr", "id", "jp")
TRAINED = frozenset({"td", "ml", "pe"})
GRID = (1, 4, 4)


def drawn(config: WarmStart, steps: int) -> list[tuple[str, str]]:
    pairs = warm_start_pairs(ENTITIES, TRAINED, ("base", "query"), config)
    return [pair for step in range(steps) for pair in pairs(0, step)]


def test_no_query_drawing_of_an_entity_outside_training_is_ever_read():
    views = [parsed_view_key(untwisted_key(view)) for view, _ in drawn(WarmStart(batch=4), 300)]
    by_query = {view.entity for view in views if view.artist == "query"}
    assert by_query == TRAINED
    assert {view.entity for view in views if view.artist == "base"} == set(ENTITIES)


def test_both_images_of_a_pair_show_one_entity_under_one_twist():
    for view, base in drawn(WarmStart(batch=4), 50):
        assert view.rpartition("/")[0] == base.rpartition("/")[0]
        assert parsed_view_key(untwisted_key(view)).entity == untwisted_key(base)[3:]


def test_a_batch_shows_an_entity_at_most_once_and_is_the_same_when_asked_again():
    pairs = warm_start_pairs(ENTITIES, TRAINED, ("base", "query"), WarmStart(batch=6))
    first = pairs(3, 5)
    assert len({untwisted_key(base) for _, base in first}) == 6
    assert pairs(3, 5) == first
    assert pairs(4, 5) != first
    with pytest.raises(ValueError, match="batch is 7"):
        warm_start_pairs(ENTITIES, TRAINED, ("base", "query"), WarmStart(batch=7))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"levels": ("L1", "L9")}, "warm_start.levels holds 'L9'. Allowed: L0, L1, L2, L3"),
        ({"levels": ()}, r"warm_start.levels is \(\); give at least one of L0, L1, L2, L3"),
        ({"views": 0}, "warm_start.views is 0; it must be 1 to 1000"),
        ({"views": 1001}, "warm_start.views is 1001; .* no two splits share a view"),
    ],
)
def test_views_that_there_are_not_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        WarmStart(**fields)


def test_views_come_nearer_to_their_own_base_image():
    model = tiny.model()
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    known = {f"kb:{one}": rng.normal(size=(16, 96)).astype(np.float32) for one in ENTITIES}

    def patches(key: str):
        noise = np.random.default_rng(len(key)).normal(size=(16, 96)).astype(np.float32)
        own = known[f"kb:{key.split(':')[1]}"]
        return own if key.startswith("kb:") else own * np.float32(0.2) + noise

    config = WarmStart(steps=30, batch=6, learning_rate=3e-3, twisted=0.0)
    pairs = warm_start_pairs(ENTITIES, TRAINED, ("base", "query"), config)
    after = warm_started(model, params, pairs, patches, GRID, config)
    assert jax.tree.all(jax.tree.map(np.array_equal, after["text"], params["text"]))

    def margin(params) -> float:
        keys = [f"view:{one}:query:L1:1" for one in ENTITIES] + list(known)
        vectors = tower_vectors(model, params, {key: patches(key) for key in keys}, GRID)
        views, bases = np.split(np.stack([vectors[key] for key in keys]), 2)
        scores = views @ bases.T
        return float(np.mean(np.diag(scores)) - scores.mean())

    assert margin(after) > margin(params) + 0.2


def test_levelled_features_are_as_large_as_embeddings_and_point_where_they_did():
    model = tiny.model()
    params = tiny.params(model)
    patches = np.random.default_rng(0).normal(size=(5, 16, 96)).astype(np.float32)
    level = levelled(model, params, patches, GRID)
    before, after = (
        model.encode_images(one, jnp.asarray(patches), GRID) for one in (params, level)
    )
    size = float(jnp.sqrt(jnp.mean(params["text"]["embed"]["table"] ** 2)))
    for got, was in zip(
        (after.tokens, *after.deepstack), (before.tokens, *before.deepstack), strict=True
    ):
        np.testing.assert_allclose(jnp.sqrt(jnp.mean(got**2)), size, rtol=1e-4)
        np.testing.assert_allclose(got / size, was / jnp.sqrt(jnp.mean(was**2)), atol=1e-4)
