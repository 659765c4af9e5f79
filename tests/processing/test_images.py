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
    assert processor.grid(1, 200) == processor.patches(np.zeros((1, 200, 3), np.uint8)).grid


def test_an_image_without_pixels_has_no_grid(processor):
    with pytest.raises(ImageError, match="An image of 0 x 5 pixels has none"):
        processor.grid(0, 5)


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


def written(folder, fields, *, file="preprocessor_config.json"):
    """The folder with these fields of preprocessing."""
    (folder / file).write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"do_resize": False}, "has False as do_resize; it must be True"),
        ({"do_pad": True}, "has True as do_pad; it must be False"),
        ({"do_center_crop": True, "crop_size": 9}, "has True as do_center_crop; it must be False"),
        ({"max_tiles": 6}, "has 6 as max_tiles; it must be absent"),
        ({"auto_map": {"a": "b"}}, "as auto_map; it must be absent"),
        ({"data_format": "channels_last"}, "as data_format; it must be 'channels_first'"),
        ({"image_processor_type": "CLIPImageProcessor"}, "as image_processor_type; it must be 'Qw"),
        ({"patch_size": 0}, "has 0 as patch_size; it must be a whole number above 0"),
        ({"merge_size": "2"}, "has '2' as merge_size; it must be a whole number above 0"),
        ({"image_mean": [0.5]}, r"has \[0.5\] as image_mean; it must be three numbers"),
        ({"image_std": [1, 0, 1]}, r"has \[1, 0, 1\] as image_std; it must be three numbers"),
        ({"do_normalize": "yes"}, "has 'yes' as do_normalize; it must be true or false"),
        ({"rescale_factor": True}, "has True as rescale_factor; it must be a number"),
        ({"resample": 9}, "has 9 as resample; it must be one of Pillow's filters"),
        ({"size": {"height": 9, "width": 9}}, "bounds the pixels of an image by None and None"),
        ({"size": {"min_pixels": 9, "max_pixels": 9}}, "by None and None; two whole numbers"),
        ({"size": {"shortest_edge": 64}}, "bounds the pixels of an image by 64 and None"),
        ({"size": "large"}, "has fields that do not fit together"),
        ({"min_pixels": 5000, "max_pixels": 4000}, "by 5000 and 4000; two whole numbers"),
    ],
)
def test_a_field_that_would_change_the_patches_is_refused(tmp_path, fields, message):
    with pytest.raises(ImageError, match=f"^{tmp_path}/preprocessor_config.json .*{message}"):
        ImageProcessor.read(written(tmp_path, fields))


def test_switches_that_keep_the_grid_are_followed(tmp_path):
    fields = {"min_pixels": 3136, "max_pixels": 3136, "do_normalize": False}
    rgb = np.full((56, 56, 3), 51, np.uint8)
    scaled = ImageProcessor.read(written(tmp_path, fields)).patches(rgb).values
    np.testing.assert_array_equal(scaled, np.float32(0.2))
    fields |= {"rescale_factor": 1 / 51, "temporal_patch_size": 3}
    scaled = ImageProcessor.read(written(tmp_path, fields)).patches(rgb).values
    assert scaled.shape == (16, 3 * 3 * 14 * 14)
    np.testing.assert_array_equal(scaled, np.float32(1))


def test_one_file_for_all_processors_comes_first(tmp_path):
    small, large = ({"min_pixels": n * n, "max_pixels": n * n} for n in (56, 112))
    written(tmp_path, large)
    written(tmp_path, {"processor_class": "Qwen2VLProcessor"}, file="processor_config.json")
    assert ImageProcessor.read(tmp_path).grid(112, 112) == (1, 8, 8)
    written(tmp_path, {"image_processor": small}, file="processor_config.json")
    assert ImageProcessor.read(tmp_path).grid(112, 112) == (1, 4, 4)
    written(tmp_path, {"image_processor": [1]}, file="processor_config.json")
    with pytest.raises(ImageError, match=r"processor_config.json has \[1\] as image_processor"):
        ImageProcessor.read(tmp_path)
