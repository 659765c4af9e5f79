"""Pixels to patches."""

import json

import numpy as np
import pytest

from jaxagent.processing.images import ImageError, ImageProcessor
from tests import tiny


@pytest.fixture(scope="module")
def processor():
    return ImageProcessor.read(tiny.policy_folder())


def test_patches_lie_in_the_order_of_their_blocks(processor):
    # a 16 x 16 image whose patches of 4 x 4 pixels are numbered row by row
    numbers = np.arange(16, dtype=np.uint8).reshape(4, 4).repeat(4, 0).repeat(4, 1)
    rgb = np.stack([numbers, numbers + 100, numbers + 200], axis=-1)
    values, grid = processor.patches(rgb)
    assert grid == (1, 4, 4)
    assert values.shape == (16, 3 * 2 * 4 * 4)
    by_channel = np.rint((values.reshape(16, 3, 2, 16) + 1) * 127.5)
    np.testing.assert_array_equal(
        by_channel[:, 0, 0, 0], [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    )
    np.testing.assert_array_equal(by_channel[3, :, 1, 7], [5, 105, 205])


@pytest.mark.parametrize("shape", [(16, 16), (40, 24), (3, 90), (500, 400), (1, 1)])
def test_the_grid_is_known_without_the_pixels(processor, shape):
    patches = processor.patches(tiny.image(0, *shape))
    assert patches.grid == processor.grid(*shape)
    assert len(patches.values) == np.prod(patches.grid)
    assert processor.num_tokens(patches.grid) * 4 == len(patches.values)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((0, 8, 3), np.uint8),
    ],
)
def test_what_is_no_rgb_image_of_bytes_is_refused(processor, pixels):
    with pytest.raises(ImageError, match="convert it to RGB bytes"):
        processor.patches(pixels)


def test_an_image_too_long_and_thin_is_refused(processor):
    with pytest.raises(ImageError, match="at most 200 times"):
        processor.patches(np.zeros((1, 201, 3), np.uint8))


def test_a_folder_without_preprocessing_is_refused(tmp_path):
    with pytest.raises(ImageError, match="preprocessor_config.json is not there"):
        ImageProcessor.read(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("no")
    with pytest.raises(ImageError, match="is not JSON"):
        ImageProcessor.read(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ImageError, match=r"is \[\]; it must be an object of fields"):
        ImageProcessor.read(tmp_path)


def test_older_names_of_the_bounds_are_read(tmp_path):
    fields = {"min_pixels": 64 * 64, "max_pixels": 64 * 64, "patch_size": 14, "merge_size": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    assert ImageProcessor.read(tmp_path).grid(300, 300) == (1, 4, 4)
