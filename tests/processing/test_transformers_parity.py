"""Patches, grids and chats of the three families, against transformers and literal transcriptions.

`FOLDERS` are the forms in which the families' preprocessing is published: the numbers at the top
(Qwen2-VL), the same dumped with every default (Qwen2.5-VL as transformers 4 saved it), areas under
`size` (Qwen3-VL), that with nulls, and one file for all processors (transformers 5).
"""

import json
import math
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image

from jaxagent.processing.image_files import read_rgb
from jaxagent.processing.images import ImageError, ImageProcessor
from jaxagent.types import ImageRef
from tests import tiny

CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN2 = CLIP | {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
}
QWEN2_5 = QWEN2 | {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "processor_class": "Qwen2_5_VLProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"max_pixels": 12845056, "min_pixels": 3136},
}
QWEN3 = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
QWEN3_NULLS = QWEN3 | {
    "do_resize": True,
    "do_center_crop": None,
    "crop_size": None,
    "do_pad": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "device": None,
    "disable_grouping": None,
    "input_data_format": None,
    "return_tensors": None,
}
FOLDERS = {
    "qwen2": ("preprocessor_config.json", QWEN2),
    "qwen2.5": ("preprocessor_config.json", QWEN2_5),
    "qwen3": ("preprocessor_config.json", QWEN3),
    "qwen3 with nulls": ("preprocessor_config.json", QWEN3_NULLS),
    "qwen3 of transformers 5": (
        "processor_config.json",
        {"image_processor": QWEN3, "processor_class": "Qwen3VLProcessor"},
    ),
}
LIMITS = {14: (56 * 56, 28 * 28 * 16384), 16: (256 * 256, 4096 * 4096)}
"""By patch size, the smallest and the largest area in pixels."""
families = pytest.mark.parametrize("family", FOLDERS)


@pytest.fixture(scope="module")
def processors(tmp_path_factory):
    """Ours and transformers' reading of each published form."""
    made = {}
    for family, (file, fields) in FOLDERS.items():
        folder = tmp_path_factory.mktemp("folder")
        (folder / file).write_text(json.dumps(fields))
        theirs = AutoImageProcessor.from_pretrained(folder, backend="pil")
        made[family] = (ImageProcessor.read(folder), theirs)
    return made


def numbers(family):
    """The published numbers of a family."""
    fields = FOLDERS[family][1]
    return fields.get("image_processor", fields)


def literal_grid(height, width, *, patch):
    """The nearest multiples of two patches, or those that the bounds allow."""
    side = 2 * patch
    smallest, largest = LIMITS[patch]
    rows, columns = round(height / side) * side, round(width / side) * side
    if rows * columns > largest:
        shrink = math.sqrt(height * width / largest)
        rows = max(side, math.floor(height / shrink / side) * side)
        columns = max(side, math.floor(width / shrink / side) * side)
    elif rows * columns < smallest:
        grow = math.sqrt(smallest / (height * width))
        rows = math.ceil(height * grow / side) * side
        columns = math.ceil(width * grow / side) * side
    return 1, rows // patch, columns // patch


def literal_patches(rgb, *, patch, mean, std):
    """Patch by patch, value by value: blocks of 2 x 2 patches, then channel, frame, row, column."""
    rows, columns = rgb.shape[0] // patch, rgb.shape[1] // patch
    scaled = (rgb.astype(np.float64) / 255).astype(np.float32)
    pixels = (scaled - np.array(mean, np.float32)) / np.array(std, np.float32)
    made = []
    for block_row in range(rows // 2):
        for block_column in range(columns // 2):
            for row in (2 * block_row, 2 * block_row + 1):
                for column in (2 * block_column, 2 * block_column + 1):
                    values = []
                    for channel in range(3):
                        for _frame in range(2):
                            for y in range(row * patch, (row + 1) * patch):
                                for x in range(column * patch, (column + 1) * patch):
                                    values.append(pixels[y, x, channel])
                    made.append(values)
    return np.array(made)


def noise(height, width, seed=0):
    """Random pixels that vary slowly enough for the resizing to keep some of them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))


SIZES = [(1, 1), (1, 200), (200, 1), (3, 90), (28, 28), (56, 84), (64, 96), (300, 260), (301, 777)]


@families
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_patches_equal_transformers_bit_for_bit(processors, family, size):
    ours, theirs = processors[family]
    rgb = noise(*size)
    made = ours.patches(rgb)
    expected = theirs(images=[Image.fromarray(rgb)], return_tensors="np")
    assert made.values.dtype == np.float32
    np.testing.assert_array_equal(made.values, expected["pixel_values"])
    np.testing.assert_array_equal([made.grid], expected["image_grid_thw"])
    assert ours.num_tokens(made.grid) * 4 == len(made.values)


@families
@pytest.mark.parametrize("size", [(1, 1), (40, 24), (56, 84), (256, 288), (100, 300)], ids=str)
def test_patches_equal_a_literal_transcription(processors, family, size):
    ours, _ = processors[family]
    fields = numbers(family)
    patch, rgb = fields["patch_size"], noise(*size)
    _, rows, columns = literal_grid(*size, patch=patch)
    resized = Image.fromarray(rgb).resize((columns * patch, rows * patch), Image.Resampling.BICUBIC)
    expected = literal_patches(
        np.asarray(resized), patch=patch, mean=fields["image_mean"], std=fields["image_std"]
    )
    made = ours.patches(rgb)
    assert made.grid == (1, rows, columns)
    np.testing.assert_array_equal(made.values, expected)


@families
def test_a_huge_image_is_cut_to_the_largest_area(processors, family, monkeypatch):
    ours, theirs = processors[family]
    patch = numbers(family)["patch_size"]
    largest = LIMITS[patch][1]
    _, rows, columns = ours.grid(30_000, 20_000)
    assert 0.98 * largest < rows * columns * patch**2 <= largest
    few = {"shortest_edge": 3136, "longest_edge": 100_000}  # the same rule, in the time of a test
    for processor in (ours.processor, theirs):
        monkeypatch.setattr(processor, "size", type(processor.size)(**few))
    made = ours.patches(noise(900, 1300))
    expected = theirs(images=[Image.fromarray(noise(900, 1300))], return_tensors="np")
    np.testing.assert_array_equal(made.values, expected["pixel_values"])
    assert made.grid == ours.grid(900, 1300)
    assert 80_000 < len(made.values) * patch**2 <= 100_000


SIDE = st.integers(1, 400) | st.integers(1, 60_000)


@families
@settings(max_examples=300, deadline=None)
@given(height=SIDE, width=SIDE)
def test_the_grid_of_any_size_is_transformers(processors, family, height, width):
    ours, theirs = processors[family]
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ImageError, match="too long and thin"):
            ours.grid(height, width)
        return
    grid = ours.grid(height, width)
    assert grid == literal_grid(height, width, patch=numbers(family)["patch_size"])
    assert grid[1] * grid[2] == theirs.get_number_of_image_patches(height, width)


@families
@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 300), width=st.integers(1, 300))
def test_the_grid_is_that_of_the_patches(processors, family, height, width):
    ours, theirs = processors[family]
    if max(height, width) > 200 * min(height, width):
        return
    rgb = noise(height, width)
    made = ours.patches(rgb)
    assert made.grid == ours.grid(height, width)
    assert len(made.values) == made.grid[1] * made.grid[2]
    expected = theirs(images=[rgb], input_data_format="channels_last", return_tensors="np")
    assert tuple(expected["image_grid_thw"][0]) == made.grid


@families
def test_what_transformers_saves_is_read_the_same(processors, family, tmp_path):
    ours, theirs = processors[family]
    theirs.save_pretrained(tmp_path)
    again = ImageProcessor.read(tmp_path)
    np.testing.assert_array_equal(
        again.patches(noise(90, 70)).values, ours.patches(noise(90, 70))[0]
    )
    assert again.processor.to_dict() == ours.processor.to_dict()


def test_a_false_bicubic_or_order_would_show(processors):
    ours, _ = processors["qwen2"]
    rgb = noise(301, 223)
    made = ours.patches(rgb)
    _, rows, columns = made.grid
    make = partial(literal_patches, patch=14, mean=CLIP["image_mean"], std=CLIP["image_std"])

    def resized(kernel):
        image = Image.fromarray(rgb).resize((columns * 14, rows * 14), kernel)
        return np.asarray(image)

    right = resized(Image.Resampling.BICUBIC)
    wrong = {
        "bilinear": make(resized(Image.Resampling.BILINEAR)),
        "channels swapped": make(right[..., ::-1]),
        "mean of the other family": make(right, mean=[0.5] * 3),
        "rows of patches": make(right)[np.arange(len(made.values)) ^ 1],
    }
    np.testing.assert_array_equal(made.values, make(right))
    for what, values in wrong.items():
        assert np.abs(values - made.values).max() > 1e-2, what


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "CMYK"])
def test_modes_become_rgb_as_transformers_makes_them(mode, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    image = Image.fromarray(pixels).convert("RGB").convert(mode) if mode == "P" else None
    if image is None:
        bands = len(Image.new(mode, (1, 1)).getbands())
        image = Image.fromarray(pixels[..., :bands].squeeze(), mode)
    path = tmp_path / "image"
    image.save(path, "TIFF" if mode == "CMYK" else "PNG")
    with Image.open(path) as opened:
        np.testing.assert_array_equal(read_rgb(path), convert_to_rgb(opened, return_numpy=True))


def test_photos_are_turned_as_transformers_turns_them(tmp_path):
    path = tmp_path / "photo.jpg"
    for orientation in range(1, 9):
        block = Image.Exif()
        block[0x0112] = orientation
        Image.fromarray(noise(50, 30)).save(path, exif=block)
        np.testing.assert_array_equal(read_rgb(path), np.asarray(load_image(str(path))))


def literal_chat(system, turns):
    """The text of Qwen's chats as documented, each image `<|image_pad|>` times its tokens.

    `turns` alternate between the parts of a user and what the policy said.
    """
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    for number, turn in enumerate(turns):
        if number % 2:
            text += f"<|im_start|>assistant\n{turn}<|im_end|>\n"
            continue
        parts = [
            part
            if isinstance(part, str)
            else f"<|vision_start|>{'<|image_pad|>' * TOKENS[part.key]}<|vision_end|>"
            for part in turn
        ]
        text += f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


GRIDS = {"a": (1, 4, 4), "b": (1, 2, 6), "c": (1, 2, 2)}
TOKENS = {"a": 4, "b": 3, "c": 1}
WORDS = st.text("ab N'\n1987.,é旗", min_size=1, max_size=12)
PARTS = st.lists(WORDS | st.sampled_from(sorted(GRIDS)).map(ImageRef), max_size=5).map(tuple)
SAID = WORDS.map(lambda words: f"<answer>{words}")


@cache
def hf_tokenizer():
    """The tiny folder's tokenizer as transformers reads it."""
    return AutoTokenizer.from_pretrained(tiny.policy_folder())


@settings(max_examples=200, deadline=None)
@given(
    system=st.just("") | WORDS,
    first=PARTS,
    later=st.lists(st.tuples(SAID, PARTS, st.booleans()), max_size=3),
)
def test_appended_turns_equal_the_whole_chat_tokenised(system, first, later):
    chat = tiny.policy().policy.chat
    prompt = chat.prompt(system, first, image_grid=GRIDS.get)
    ids, written = list(prompt.ids), [False] * len(prompt.ids)
    starts = [(span.key, span.start) for span in prompt.images]
    for said, parts, ended in later:
        own = chat.plain(said) + [chat.end_id] * ended
        seen = chat.observation(parts, ended=ended, image_grid=GRIDS.get)
        starts += [(span.key, span.start + len(ids) + len(own)) for span in seen.images]
        ids += own + seen.ids
        written += [True] * len(own) + [False] * len(seen.ids)
    turns = [first, *(turn for said, parts, _ in later for turn in (said, parts))]
    text = literal_chat(system, turns)
    assert ids == hf_tokenizer()(text, add_special_tokens=False)["input_ids"]

    refs = [part.key for parts in turns[::2] for part in parts if isinstance(part, ImageRef)]
    assert [key for key, _ in starts] == refs
    opening = [at + 1 for at, id in enumerate(ids) if chat.decode([id]) == "<|vision_start|>"]
    assert [start for _, start in starts] == opening
    for key, start in starts:
        run = ids[start : start + TOKENS[key]]
        assert run == [chat.image_id] * TOKENS[key]
        assert chat.decode([ids[start + TOKENS[key]]]) == "<|vision_end|>"
    assert ids.count(chat.image_id) == sum(TOKENS[key] for key in refs)

    newline = chat.plain("\n")
    for at, id in enumerate(ids):
        if id == chat.end_id:
            assert ids[at + 1 : at + 2] == newline
            assert not written[at + 1]
            assert chat.decode(ids[at + 2 : at + 3]) == "<|im_start|>"
