"""Query views: functions of their keys, and of nothing else."""

import numpy as np
import pytest

from jaxagent.data.views import (
    LEVELS,
    FlagImages,
    augmented_view,
    drawn_pose,
    homography,
    is_ambiguous,
    parsed_view_key,
    view_key,
    view_stream,
)


@pytest.fixture(scope="module")
def images(benchmark):
    return FlagImages(benchmark.folder)


def views(level: str, number: int = 40) -> list[str]:
    return [view_key("fr", "twemoji", level, seed) for seed in range(number)]


def test_a_view_is_a_function_of_its_key_alone(benchmark, images):
    keys = [view_key(country, "twemoji", "L3", 5) for country in ("fr", "np", "td")]
    again = FlagImages(benchmark.folder)
    for key in reversed(keys):
        again(key)
    for key in keys:
        np.testing.assert_array_equal(images(key), again(key))
        assert images(key).shape == (64, 64, 3)


def test_another_seed_level_or_artist_gives_another_view(images):
    keys = [
        *views("L2", 3),
        view_key("fr", "twemoji", "L3", 0),
        view_key("fr", "openmoji", "L2", 0),
    ]
    pixels = {images(key).tobytes() for key in keys}
    assert len(pixels) == len(keys)


def test_a_clean_view_shows_the_drawing_as_the_base_would(images, benchmark):
    clean = images("view:fr:openmoji:L0:1").astype(int)
    assert np.abs(clean - images("kb:fr").astype(int)).mean() < 4


def test_harder_levels_are_farther_from_the_clean_view(images):
    clean = images("view:fr:twemoji:L0:0").astype(float)
    distances = [
        np.mean([np.abs(images(key) - clean).mean() for key in views(level, 12)])
        for level in ("L1", "L3")
    ]
    assert distances[0] < distances[1]


def test_the_base_shows_the_base_artists_drawing(images, benchmark):
    assert benchmark.config.base == "openmoji"
    np.testing.assert_array_equal(images("draw:fr:openmoji")[48, 20], images("kb:fr")[32, 8])
    assert (images("draw:fr:twemoji")[48, 20] != images("kb:fr")[32, 8]).any()


def test_a_flag_that_is_not_oblong_stands_on_grey(images):
    square = images("kb:ch")
    assert (square[:, 0] == 208).all()
    assert (square[0, 32] != 208).any()


def test_pixels_cannot_be_changed_behind_the_cache(images):
    with pytest.raises(ValueError, match="read-only"):
        images("kb:fr")[0, 0] = 0


def test_a_homography_takes_the_corners_to_the_unit_square():
    corners = np.array([[0.2, 0.1], [1.3, 0.2], [1.2, 0.9], [0.1, 0.8]])
    mapped = homography(corners) @ np.concatenate([corners, np.ones((4, 1))], 1).T
    np.testing.assert_allclose(mapped[:2] / mapped[2], [[0, 1, 1, 0], [0, 0, 1, 1]], atol=1e-9)


def test_a_view_is_ambiguous_when_it_keeps_less_than_60_percent():
    for key in views("L3"):
        pose = drawn_pose(view_stream(key), LEVELS["L3"], 1.5)
        assert is_ambiguous(key) == (pose.kept < 0.6)
    assert not any(is_ambiguous(key) for key in [*views("L0"), *views("L1"), *views("L2")])
    assert 5 < sum(is_ambiguous(key) for key in views("L3")) < 30


def test_ambiguity_does_not_depend_on_the_flags_shape():
    key = view_key("np", "twemoji", "L3", 9)
    kept = [drawn_pose(view_stream(key), LEVELS["L3"], aspect).kept for aspect in (0.8, 1.0, 1.5)]
    assert len(set(kept)) == 1


def test_a_size_given_is_the_size_of_the_view(benchmark, images):
    drawing = images.drawing("fr", "twemoji")
    rng = np.random.default_rng(0)
    assert augmented_view(drawing, LEVELS["L2"], rng, size=96).shape == (96, 96, 3)


def test_a_keys_parts_come_back():
    assert parsed_view_key(view_key("fr", "twemoji", "L2", 17)) == ("fr", "twemoji", "L2", 17)


@pytest.mark.parametrize(
    "key",
    [
        "", "kb", "kb:zz", "kb:ro", "draw:fr", "draw:fr:giotto", "draw:zz:twemoji", "view:fr",
        "view:fr:twemoji:L9:1", "view:fr:twemoji:L2:x", "view:zz:twemoji:L2:1", "photo:fr",
    ],
)  # fmt: skip
def test_an_unknown_key_raises_key_error(images, key):
    if key == "kb:ro":  # a drawing that is there, though its entity was left out
        assert images(key).shape == (64, 64, 3)
        return
    with pytest.raises(KeyError):
        images(key)


def test_a_drawing_that_became_unreadable_raises_os_error(benchmark, tmp_path):
    import shutil

    shutil.copytree(benchmark.folder / "drawings", tmp_path / "drawings")
    (tmp_path / "drawings" / "openmoji" / "fr.png").write_bytes(b"gone")
    with pytest.raises(OSError, match="cannot identify"):
        FlagImages(tmp_path)("kb:fr")
