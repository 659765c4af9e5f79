"""CLIP's preprocessing against transformers' and against pixels counted by hand."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer

from jaxagent.processing.clip import END, START, ClipImages, ClipTexts, TextError
from jaxagent.processing.images import ImageError

MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
TEXTS = ("a photo of a cat", "a photo of the Eiffel Tower, 1889", "it's the cat's photo; isn't it?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of CLIP's form, trained on `TEXTS`: every byte, merges, start and end last."""
    folder = tmp_path_factory.mktemp("clip")
    learned = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    learned.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(
            vocab_size=700,
            show_progress=False,
            end_of_word_suffix="</w>",
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    model = json.loads(learned.to_str())["model"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(merge) for merge in model["merges"]]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    tokens = [*dict.fromkeys(tokens), START, END]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    assert len(merges) > 20
    return folder


@pytest.fixture(scope="module")
def both(folder):
    """Our texts and transformers' tokenizer."""
    return ClipTexts.read(folder, 16), CLIPTokenizer.from_pretrained(folder)


def test_a_text_stands_between_its_tokens_and_is_filled_up_with_the_last(both):
    texts, _ = both
    start, end = (texts.tokenizer.token_to_id(token) for token in (START, END))
    ids = texts.ids(["a cat", "", "photo " * 40])
    assert ids.shape == (3, 16)
    assert ids.dtype == np.int32
    assert ids[0, 0] == start
    assert ids[1].tolist() == [start] + 15 * [end]
    # cut in the middle, and still ended
    assert (ids[2] == end).tolist() == 15 * [False] + [True]
    assert texts.ids([]).shape == (0, 16)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
@example("It's  THE cat's\tphoto,\n1889!!")
@example("Côte d'Ivoire ’s 日本語 🗼 \u00a0 e\u0301 ''s")
def test_ids_equal_those_of_transformers(both, text):
    texts, theirs = both
    if START in text or END in text:
        return
    expected = theirs(text, padding="max_length", truncation=True, max_length=16).input_ids
    assert texts.ids([text])[0].tolist() == expected


def test_the_names_of_the_tokens_are_plain_text(both):
    texts, _ = both
    end = texts.tokenizer.token_to_id(END)
    ids = texts.ids([f"{END} a"])[0]
    assert end not in ids[:4]


def test_a_folder_without_a_clip_tokenizer_is_refused(folder, tmp_path):
    with pytest.raises(TextError, match="lacks vocab.json and merges.txt"):
        ClipTexts.read(tmp_path, 77)
    (tmp_path / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
    vocab = json.loads((folder / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {"larger": len(vocab)}))
    with pytest.raises(TextError, match="largest id"):
        ClipTexts.read(tmp_path, 77)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(TextError, match="no tokenizer's"):
        ClipTexts.read(tmp_path, 77)


def test_an_image_of_the_tower_side_is_only_normalised():
    rgb = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    pixels = ClipImages(6).pixels([rgb])
    expected = ((rgb / 255 - MEAN) / STD).transpose(2, 0, 1)
    np.testing.assert_allclose(pixels, expected[None], atol=1e-6)
    assert pixels.dtype == np.float32


@pytest.mark.parametrize(("height", "width"), [(8, 24), (24, 8), (7, 9), (300, 4)])
def test_the_middle_of_any_image_fills_the_tower(height, width):
    # red before the middle, green in it, blue behind: the crop of the long axis is green
    rgb = np.zeros((height, width, 3), np.uint8)
    axis = 0 if height > width else 1
    side, length = min(height, width), max(height, width)
    lines = np.arange(length)
    thirds = np.where(lines < (length - side) / 2, 0, np.where(lines < (length + side) / 2, 1, 2))
    colours = 255 * np.eye(3, dtype=np.uint8)[thirds]
    rgb[:] = colours[:, None] if axis == 0 else colours[None]
    pixels = ClipImages(8).pixels([rgb])
    assert pixels.shape == (1, 3, 8, 8)
    centre = pixels[0, :, 3:5, 3:5].transpose(1, 2, 0) * STD + MEAN
    np.testing.assert_allclose(centre, np.broadcast_to([0, 1, 0], (2, 2, 3)), atol=0.02)


def test_images_of_different_sizes_share_a_batch():
    images = [np.full((9, 5, 3), 7, np.uint8), np.full((224, 224, 3), 9, np.uint8)]
    pixels = ClipImages(8).pixels(images)
    for made, image in zip(pixels, images, strict=True):
        np.testing.assert_array_equal(made, ClipImages(8).pixels([image])[0])
    assert ClipImages(8).pixels([]).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    "rgb",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, 201, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(rgb):
    with pytest.raises(ImageError, match="cannot be read|too long and thin"):
        ClipImages(8).pixels([rgb])


def test_a_lone_surrogate_in_a_text_is_a_question_mark(both):
    texts, _ = both
    odd = texts.ids(["a \ud800 cat", "\udfff"])
    np.testing.assert_array_equal(odd, texts.ids(["a ? cat", "?"]))
    assert (odd != texts.ids(["a cat", ""])).any(axis=1).all()
