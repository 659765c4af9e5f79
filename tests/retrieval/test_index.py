"""Indices: what they return, what they refuse, and what comes back from disk."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.retrieval import scann_index
from jaxagent.retrieval.index import IndexConfig, build_index, open_index, save_index

EXACT = IndexConfig(kind="exact")
SCANN = IndexConfig(kind="scann")
TREE = IndexConfig(kind="scann", brute_force_below=0)
needs_scann = pytest.mark.skipif(not scann_index.installed(), reason="ScaNN is not installed")
KINDS = [
    pytest.param(EXACT, id="exact"),
    pytest.param(SCANN, id="scann", marks=needs_scann),
    pytest.param(TREE, id="scann tree", marks=needs_scann),
]


def unit(rows, width=16, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def angles(*degrees):
    turns = np.radians(np.array(degrees))
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def names(rows):
    return [f"row {row}" for row in range(rows)]


@pytest.mark.parametrize("config", KINDS[:2])
def test_hits_are_the_nearest_rows_best_first(config):
    hits = build_index(angles(0, 90, 30, 180), config).search(angles(10, 100), 3)
    assert hits.ids.tolist() == [[0, 2, 1], [1, 2, 3]]
    np.testing.assert_allclose(hits.scores[0], np.cos(np.radians([10, 20, 80])), atol=1e-6)


@pytest.mark.parametrize("config", KINDS[:2])
def test_each_query_skips_its_own_excluded_rows(config):
    index = build_index(angles(0, 90, 30, 180), config)
    hits = index.search(angles(10, 10), 2, exclude=[{0}, {1, 2}])
    assert hits.ids.tolist() == [[2, 1], [0, 3]]


@pytest.mark.parametrize("config", KINDS[:2])
def test_places_that_the_base_cannot_fill_hold_minus_one(config):
    index = build_index(angles(0, 90), config)
    hits = index.search(angles(10, 10), 4, exclude=[(), {0, 1}])
    assert hits.ids.tolist() == [[0, 1, -1, -1], [-1, -1, -1, -1]]
    assert hits.scores[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("config", KINDS)
def test_equal_vectors_score_equally_and_stand_in_row_order(config):
    base = unit(300)
    base[[7, 100, 255]] = base[42]
    hits = build_index(base, config).search(base[[42, 42]], 5, exclude=[(), {100}])
    assert hits.ids[0, :4].tolist() == [7, 42, 100, 255]
    assert len(set(hits.scores[0, :4].tolist())) == 1
    assert hits.ids[1, :3].tolist() == [7, 42, 255]


@pytest.mark.parametrize("config", KINDS)
def test_a_query_has_the_same_hits_in_any_batch(config):
    index = build_index(unit(500), config)
    queries = unit(70, seed=1)
    together = index.search(queries, 6)
    for row in (0, 13, 69):
        alone = index.search(queries[row : row + 1], 6)
        assert alone.ids[0].tolist() == together.ids[row].tolist()
        assert alone.scores[0].tolist() == together.scores[row].tolist()


@pytest.mark.parametrize("config", KINDS)
def test_batches_served_in_turn_never_overlap_and_use_up_the_base(config):
    index = build_index(unit(60), config)
    query = unit(1, seed=2)
    served = []
    for _ in range(7):
        ids = index.search(query, 10, exclude=[served]).ids[0]
        served.extend(ids[ids >= 0].tolist())
    assert sorted(served) == list(range(60))
    if config is not TREE:
        assert served == index.search(query, 60).ids[0].tolist()


@needs_scann
def test_more_leaves_than_vectors_are_refused_with_both():
    config = replace(TREE, leaves=1000)
    with pytest.raises(
        ValueError, match="cannot index 60 vectors in 1000 leaves(.|\n)*Give at most"
    ):
        build_index(unit(60), config)


@needs_scann
def test_scann_finds_at_least_95_percent_of_the_exact_neighbours():
    rng = np.random.default_rng(0)
    # Text vectors lie near a subspace: 24 directions explain most of a row.
    base = rng.normal(size=(4000, 24)) @ rng.normal(size=(24, 96)) + 0.5 * rng.normal(
        size=(4000, 96)
    )
    base = (base / np.linalg.norm(base, axis=1, keepdims=True)).astype(np.float32)
    queries = base[:200] + 0.05 * unit(200, 96, seed=3)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    exact = build_index(base, EXACT).search(queries, 10).ids
    found = build_index(base, SCANN).search(queries, 10).ids
    shared = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) / 10 >= 0.95


@needs_scann
def test_building_a_scann_tree_twice_gives_the_same_hits():
    base, queries = unit(1500, 32), unit(50, 32, seed=4)
    first, second = (build_index(base, SCANN).search(queries, 10) for _ in range(2))
    np.testing.assert_array_equal(first.ids, second.ids)
    np.testing.assert_array_equal(first.scores, second.scores)


def test_without_scann_the_exact_index_is_built_with_a_message(monkeypatch, caplog):
    monkeypatch.setattr(scann_index, "installed", lambda: False)
    index = build_index(unit(20), SCANN)
    assert index.config.kind == "exact"
    assert "ScaNN is not installed" in caplog.text


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (2 * unit(3), "row 0 has length 2"),
        (np.full((1, 4), np.nan, np.float32), "length nan"),
        (np.zeros((0, 4), np.float32), "holds no vectors"),
    ],
)
def test_a_base_of_other_than_unit_vectors_is_refused(vectors, message):
    with pytest.raises(ValueError, match=message):
        build_index(vectors, EXACT)


def test_wrong_queries_are_refused():
    index = build_index(unit(5), EXACT)
    with pytest.raises(ValueError, match="8 dimensions and the base 16"):
        index.search(unit(1, 8), 1)
    with pytest.raises(ValueError, match="not of unit length"):
        index.search(3 * unit(1), 1)
    with pytest.raises(ValueError, match="2 exclusion lists came with 1 queries"):
        index.search(unit(1), 1, exclude=[(), ()])
    with pytest.raises(ValueError, match="`top` is 0"):
        index.search(unit(1), 0)


@pytest.mark.parametrize("config", KINDS)
def test_a_saved_index_opens_elsewhere_with_the_same_hits(tmp_path, config):
    base, queries = unit(200), unit(9, seed=5)
    index = build_index(base, config)
    save_index(tmp_path / "a", index, names(200), made_by={"name": "test"})
    shutil.move(tmp_path / "a", tmp_path / "b")
    opened = open_index(tmp_path / "b", names(200), made_by={"name": "test"})
    assert opened.config == config
    for before, after in zip(index.search(queries, 7), opened.search(queries, 7), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.fixture
def saved(tmp_path):
    save_index(tmp_path, build_index(unit(6), EXACT), names(6), made_by={"name": "test"})
    return tmp_path


def test_opening_with_other_rows_is_refused(saved):
    with pytest.raises(ValueError, match="order is .* expected"):
        open_index(saved, names(6)[::-1])
    with pytest.raises(ValueError, match="made_by is {'name': 'test'}, expected {'name': 'other'}"):
        open_index(saved, names(6), made_by={"name": "other"})


def test_opening_other_vectors_than_the_header_counts_is_refused(saved):
    np.save(saved / "vectors.npy", unit(5))
    with pytest.raises(ValueError, match="count is 6, expected 5"):
        open_index(saved, names(6))


def test_an_unfinished_or_broken_folder_says_what_to_do(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no index at"):
        open_index(tmp_path / "nowhere", names(6))
    header = (saved / "header.json").read_text()
    assert json.loads(header)["count"] == 6
    for text, said in (
        (header[:20], "is not JSON"),
        ("[]", "is no JSON object"),
        ("{}", "lacks config"),
        ('{"config": {"leafs": 1}}', "has a config of another form .*'leafs'"),
    ):
        (saved / "header.json").write_text(text)
        with pytest.raises(ValueError, match=f"{said}.*Delete the folder {saved} and build"):
            open_index(saved, names(6))
    (saved / "header.json").unlink()
    with pytest.raises(FileNotFoundError, match="stopped before the end"):
        open_index(saved, names(6))
    (saved / "header.json").write_text(header)
    (saved / "vectors.npy").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read"):
        open_index(saved, names(6))
