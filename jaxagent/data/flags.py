"""The flags benchmark as a TFDS data set, written and read without TensorFlow.

Three configs of one builder, each an array_record file a split:

    flags/questions   the five splits of `questions.SPLITS`; field names follow InfoSeek's files
    flags/passages    split "base"
    flags/drawings    split "base": an entity's drawings by both artists, as PNG bytes

Images are stored encoded, as bytes: TFDS's own image feature needs TensorFlow to encode. Query
views are not stored at all, a view's key is enough to render it.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxagent.data.drawings import ARTISTS, Drawings, drawing_file
from jaxagent.data.factbook import FACTBOOK
from jaxagent.types import Passage, Question

Row = dict[str, Any]
VERSION = "1.0.0"

_texts = tfds.features.Sequence(tfds.features.Text())
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "questions": {
        "data_id": tfds.features.Text(),
        "image_id": _texts,
        "question": tfds.features.Text(),
        "question_type": tfds.features.Text(),
        "family": tfds.features.Text(),
        "answer": _texts,
        # InfoSeek's range of a numerical answer, empty for the other types. As text, because
        # records keep numbers in 32 bits.
        "answer_range": _texts,
        "entity_id": _texts,
        "relation": tfds.features.Text(),
        "evidence": _texts,
        "data_split": tfds.features.Text(),
        "ambiguous": tfds.features.Scalar(dtype=np.bool_),
    },
    "passages": {
        "id": tfds.features.Text(),
        "title": tfds.features.Text(),
        "text": tfds.features.Text(),
    },
    "drawings": {
        "entity_id": tfds.features.Text(),
        "artist": tfds.features.Text(),
        "png": tfds.features.Tensor(shape=(), dtype=np.object_),
    },
}
"""The fields of each config's rows."""


class Flags(tfds.core.GeneratorBasedBuilder):
    """The builder; `rows` gives a split's rows and is needed only to build."""

    VERSION = tfds.core.Version(VERSION)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in FEATURES]
    # TFDS looks beside a builder's code for checksums of downloads, through importlib_resources,
    # which it does not declare. Nothing is downloaded here.
    code_path = None

    def __init__(self, *, rows: Mapping[str, Callable[[], Iterable[Row]]] | None = None, **kwargs):
        self._rows = rows or {}
        super().__init__(file_format="array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(dict(FEATURES[self.builder_config.name])),
            license="; ".join(artist.credit for artist in ARTISTS.values())
            + f"; text: The World Factbook, public domain, from {FACTBOOK.project}",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(rows) for split, rows in self._rows.items()}

    def _generate_examples(self, rows: Callable[[], Iterable[Row]]) -> Iterator[tuple[int, Row]]:
        yield from enumerate(rows())


def write_rows(
    folder: Path, config: str, rows: Mapping[str, Callable[[], Iterable[Row]]]
) -> Mapping[str, int]:
    """Writes the splits of a config below `folder` and gives their numbers of rows.

    TFDS writes into an `incomplete.` folder and renames it, so a config is whole or absent.
    """
    tfds.disable_progress_bar()
    builder = Flags(data_dir=str(folder), config=config, rows=rows)
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints where it downloads to
        builder.download_and_prepare()
    return {split: info.num_examples for split, info in builder.info.splits.items()}


@functools.lru_cache(maxsize=16)
def open_source(folder: Path, config: str, split: str):
    """A split's rows as a random-access data source, which Grain takes as it is.

    Raises:
        FileNotFoundError: the data set is not there, or not whole.
        ValueError: it has no such split; the message lists those it has.
    """
    builder = Flags(data_dir=str(folder), config=config)
    if not builder.info.splits:
        raise FileNotFoundError(
            f"No data set flags/{config} in {folder}: the benchmark was not built there, or its "
            "build was stopped. Build it with: jaxagent kb build"
        )
    if split not in builder.info.splits:
        raise ValueError(
            f"{split!r} is no split of flags/{config} in {folder}. "
            f"It has {', '.join(builder.info.splits)}."
        )
    return builder.as_data_source(split=split)


def question_row(question: Question) -> Row:
    """A question as it is stored."""
    return {
        "data_id": question.data_id,
        "image_id": list(question.images),
        "question": question.text,
        "question_type": question.kind,
        "family": question.family,
        "answer": list(question.answers),
        "answer_range": [repr(end) for end in question.answer_range or ()],
        "entity_id": list(question.entities),
        "relation": question.relation,
        "evidence": list(question.evidence),
        "data_split": question.split,
        "ambiguous": question.ambiguous,
    }


def stored_question(row: Row) -> Question:
    """The question that `question_row` stored."""
    ends = tuple(float(end) for end in _text_list(row["answer_range"]))
    return Question(
        data_id=_text(row["data_id"]),
        images=_text_list(row["image_id"]),
        text=_text(row["question"]),
        kind=_text(row["question_type"]),
        family=_text(row["family"]),
        answers=_text_list(row["answer"]),
        answer_range=ends or None,
        entities=_text_list(row["entity_id"]),
        relation=_text(row["relation"]),
        evidence=_text_list(row["evidence"]),
        split=_text(row["data_split"]),
        ambiguous=bool(row["ambiguous"]),
    )


def passage_row(passage: Passage) -> Row:
    """A passage as it is stored."""
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def drawing_rows(drawings: Drawings) -> Iterator[Row]:
    """The files of all drawings."""
    for entity in drawings.entities:
        for artist in drawings.artists:
            png = drawing_file(drawings.folder, artist, entity).read_bytes()
            yield {"entity_id": entity, "artist": artist, "png": png}


def read_questions(folder: Path, split: str) -> list[Question]:
    """A split's questions, in the order they were written (random, and always the same)."""
    return [stored_question(row) for row in open_source(Path(folder), "questions", split)]


def read_passages(folder: Path) -> list[Passage]:
    """All passages of the base."""
    rows = open_source(Path(folder), "passages", "base")
    return [Passage(**{name: _text(value) for name, value in row.items()}) for row in rows]


def _text(value: bytes | str) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _text_list(values: Iterable[bytes | str]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)
