"""A base: what a build writes, what it refuses, how it continues, and what reading it checks."""

import json
import shutil

import numpy as np
import pytest

from jaxagent.retrieval import knowledge_base as kb
from jaxagent.retrieval.encoders import Encoders
from jaxagent.retrieval.lexical import LexicalIndex
from jaxagent.types import Passage


class MeanColour:
    """Encodes an image as its mean colour, and counts its calls."""

    name, digest = "mean colour", "1"

    def __init__(self):
        self.num_images = 0

    def __call__(self, images):
        self.num_images += len(images)
        means = np.stack([image.reshape(-1, 3).mean(axis=0) + 1 for image in images])
        return (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)


class Letters:
    """Encodes a text as its counts of letters; stops for good after `calls` calls."""

    name = "letters"

    def __init__(self, digest="1", calls=1000):
        self.digest, self.calls = digest, calls

    def __call__(self, texts):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return self.queries(texts)

    def queries(self, texts):
        counts = np.array([[1 + text.lower().count(x) for x in "abcdefghij"] for text in texts])
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "rust": (200, 40, 0)}


def images(key):
    return np.full((4, 6, 3), COLOURS[key], np.uint8)


def entity(key, name=None):
    return kb.Entity(id=key, name=name or key.title(), images=(key,))


ENTITIES = [entity("red"), entity("green"), entity("blue")]
PASSAGES = [
    Passage(id=f"p{row}", title=title, text=text)
    for row, (title, text) in enumerate([("Red", "a bee"), ("Blue", "high"), ("Green", "faded")])
]


def encoders(text="letters"):
    return Encoders(MeanColour(), Letters() if text else None)


def build(folder, entities=ENTITIES, passages=PASSAGES, with_encoders=None, **options):
    return kb.build(
        folder, entities, passages, images=images, encoders=with_encoders or encoders(), **options
    )


def test_a_built_base_reads_back_with_its_rows_and_vectors(tmp_path):
    built = build(tmp_path / "base")
    opened = kb.read(tmp_path / "base", images=images, encoders=encoders())
    assert opened.entities == built.entities == {row.id: row for row in ENTITIES}
    assert opened.passages == tuple(PASSAGES)
    np.testing.assert_array_equal(opened.image_index.vectors, built.image_index.vectors)
    hits = opened.text_index.search(["Red. a bee", "Green. faded"], 1)
    assert hits.ids[:, 0].tolist() == [0, 2]
    np.testing.assert_allclose(hits.scores, 1, atol=1e-6)


def test_an_unreadable_image_is_listed_and_not_replaced(tmp_path, caplog):
    base = build(tmp_path, [entity("red"), entity("mauve"), entity("blue")])
    (missing,) = base.header["missing"]
    assert (missing["entity"], missing["image"]) == ("mauve", "mauve")
    assert "KeyError" in missing["reason"]
    assert base.image_keys == ("red", "blue")
    assert base.image_rows == {"red": (0,), "mauve": (), "blue": (1,)}
    assert "1 of 3 images could not be read" in caplog.text


def test_a_base_without_a_readable_image_is_refused(tmp_path):
    with pytest.raises(ValueError, match="None of the base's 1 images could be read"):
        build(tmp_path, [entity("mauve")])


def test_a_build_that_was_stopped_is_detected_and_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(kb, "PASSAGES_PER_BLOCK", 1)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, with_encoders=Encoders(MeanColour(), Letters(calls=2)))
    with pytest.raises(FileNotFoundError, match="stopped before the end. Run the same"):
        kb.read(tmp_path, images=images, encoders=encoders())
    # Two of the three passages were encoded, so one call is enough for the rest.
    base = build(tmp_path, with_encoders=Encoders(MeanColour(), Letters(calls=1)))
    assert base.text_index.index.vectors.shape == (3, 10)
    assert not (tmp_path / "draft").exists()


def test_a_build_that_was_stopped_while_its_header_was_written_goes_on(tmp_path):
    build(tmp_path)
    (tmp_path / "header.json").unlink()
    (tmp_path / "header.json.draft").write_text('{"format": "jaxag')
    assert build(tmp_path).passages == tuple(PASSAGES)
    assert not (tmp_path / "header.json.draft").exists()


def test_a_finished_base_is_opened_and_not_built_again(tmp_path):
    build(tmp_path)
    again = encoders()
    build(tmp_path, with_encoders=again)
    assert again.image.num_images == 0


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    build(tmp_path / "base")
    with pytest.raises(ValueError, match="num_entities is 3, expected 2"):
        build(tmp_path / "base", ENTITIES[:2])
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="such as 'base'"):
        build(tmp_path)


def test_repeated_ids_are_refused(tmp_path):
    with pytest.raises(ValueError, match="The entity id 'red' stands twice"):
        build(tmp_path, [entity("red"), entity("red")])
    with pytest.raises(ValueError, match="The passage id 'p0' stands twice"):
        build(tmp_path, passages=[PASSAGES[0], PASSAGES[0]])


def test_names_are_made_unique_and_never_mean_reject(tmp_path):
    base = build(tmp_path, [entity("red", "Rose"), entity("blue", "rose "), entity("rust", "none")])
    assert [row.name for row in base.entities.values()] == ["Rose", "rose (2)", "none (entity)"]


def test_rows_changed_on_disk_are_refused(tmp_path):
    build(tmp_path)
    path = tmp_path / "passages.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[::-1]) + "\n")
    with pytest.raises(ValueError, match="passage_order is"):
        kb.read(tmp_path, images=images, encoders=encoders())
    path.write_text("{broken\n")
    with pytest.raises(ValueError, match="Line 1 of .*passages.jsonl is not JSON"):
        kb.read(tmp_path, images=images, encoders=encoders())
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"passages\.jsonl is missing"):
        kb.read(tmp_path, images=images, encoders=encoders())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is no JSON object"),
        ("{}", "lacks image_encoder, text_encoder, missing"),
        ('{"image_encoder": {}, "text_encoder": null, "missing": 3}', "lacks missing or has"),
    ],
)
def test_a_broken_header_says_what_to_delete(tmp_path, text, said):
    (tmp_path / "header.json").write_text(text)
    for use in (kb.read_header, build):
        with pytest.raises(ValueError, match=f"{said}.*Delete the folder {tmp_path} and build"):
            use(tmp_path)


def test_a_base_whose_index_was_deleted_is_built_again(tmp_path):
    built = build(tmp_path)
    shutil.rmtree(tmp_path / "image_index")
    again = build(tmp_path)
    np.testing.assert_array_equal(again.image_index.vectors, built.image_index.vectors)


def test_a_base_of_another_encoder_is_refused(tmp_path):
    build(tmp_path)
    with pytest.raises(ValueError, match="text_encoder is .*'1'.*expected .*'2'"):
        kb.read(tmp_path, images=images, encoders=Encoders(MeanColour(), Letters("2")))


def test_without_a_text_encoder_text_is_searched_by_words(tmp_path, caplog):
    base = build(tmp_path / "words", with_encoders=encoders(text=None))
    assert base.header["text_encoder"] is None
    assert isinstance(base.text_index, LexicalIndex)
    build(tmp_path / "vectors")
    opened = kb.read(tmp_path / "vectors", images=images, encoders=encoders(text=None))
    assert isinstance(opened.text_index, LexicalIndex)
    assert "searched by words" in caplog.text


def test_the_header_counts_what_was_built_and_names_what_built_it(tmp_path):
    told = []
    build(tmp_path, progress=lambda *news: told.append(news))
    header = json.loads((tmp_path / "header.json").read_text())
    assert (header["num_entities"], header["num_passages"]) == (3, 3)
    assert header["image_encoder"] == {"name": "mean colour", "digest": "1"}
    assert header["software"]["numpy"] == np.__version__
    assert told == [("images", 3, 3), ("passages", 3, 3)]
