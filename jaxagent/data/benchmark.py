"""The flags benchmark built into a folder, and what others take from it.

    <folder>/drawings/       the flags as PNG files, with their ATTRIBUTION (`drawings`)
             data/flags/     questions, passages and drawings as a TFDS data set (`flags`)
             benchmark.json  config, package versions, counts, what was left out; written last

Drawings and data sets are whole or absent, and a draft of the header lies there until all are done.
So a stopped build shows: the next one says so, keeps what is whole and makes the rest, or refuses
when its config or packages are others.
"""

import functools
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxagent.data import flags
from jaxagent.data.config import FlagsConfig
from jaxagent.data.drawings import ARTISTS, Drawings, render_drawings, renderer
from jaxagent.data.factbook import FACTBOOK, passages, read_countries
from jaxagent.data.lookalikes import same_flags
from jaxagent.data.questions import SPLITS, entity_splits, make_questions
from jaxagent.data.relations import RELATIONS, search_phrase
from jaxagent.json_lines import write_json
from jaxagent.types import Passage, Progress, Question, Split, silent

VERSION = 1
HEADER, DRAFT, DATA = "benchmark.json", "benchmark.draft.json", "data"
FIELDS = ("config", "entities", "same_flag", "undrawn", "unreadable", "counts")
"""What a header is read for."""


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A country in the base: `image` is the key of its base image, `split` where it is asked about.

    An entity whose drawing cannot be read has no split; nothing is asked about it.
    """

    id: str
    name: str
    image: str
    split: Split | None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark that lies in `folder`.

    Attributes:
        same_flag: entities left out because another one flies the same flag -> that one.
        undrawn: countries left out because an artist has not drawn them.
        unreadable: drawings in the folder that cannot be read.
        counts: questions by split and family, and of ambiguous ones by split.
    """

    folder: Path
    config: FlagsConfig
    entities: tuple[Entity, ...]
    passages: tuple[Passage, ...]
    same_flag: Mapping[str, str]
    undrawn: tuple[str, ...]
    unreadable: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]

    def summary(self) -> str:
        """What was built and what was left out, for people."""
        rows = [
            f"{len(self.entities)} entities, {len(self.passages)} passages",
            *(
                f"{split}: {sum(row.get(family, 0) for family in self.config.families)} questions ("
                + ", ".join(f"{row.get(family, 0)} {family}" for family in self.config.families)
                + f"), {row['ambiguous']} with less than 60 % of a flag's sides in view"
                for split, row in self.counts.items()
            ),
        ]
        if self.same_flag:
            pairs = ", ".join(f"{left} (as {kept})" for left, kept in self.same_flag.items())
            rows.append(f"Left out, the same flag as another: {pairs}")
        if self.undrawn:
            rows.append(f"Left out, not drawn by both artists: {', '.join(self.undrawn)}")
        if self.unreadable:
            rows.append(f"Unreadable drawings, not replaced: {', '.join(self.unreadable)}")
        return "\n".join(rows)


def build_benchmark(
    folder: Path, config: FlagsConfig | None = None, progress: Progress = silent
) -> Benchmark:
    """The benchmark built into `folder`, or the one that lies there whole for the same config.

    Raises:
        FileNotFoundError: a package that it is built from is not installed; nothing is written.
        ValueError: the folder holds a benchmark of another config or of other packages, or no
            benchmark can be of this config.
    """
    folder, config = Path(folder), config or FlagsConfig()
    made_from = {"version": VERSION, "config": config.as_json(), "packages": _versions(config)}
    if (folder / HEADER).exists():
        _check_same(folder / HEADER, made_from)
        return open_benchmark(folder)
    renderer()  # asked for, as the packages are, before anything is written
    countries = read_countries(progress, only=config.countries)
    _begin(folder, made_from)
    drawings = render_drawings(
        folder,
        [country.id for country in countries],
        base=config.base,
        query=config.query,
        progress=progress,
    )
    same = same_flags(drawings, countries)
    unreadable = {name.partition("/")[2] for name in drawings.unreadable}
    there = unreadable.union(drawings.entities) - set(same)
    countries = tuple(country for country in countries if country.id in there)
    try:
        splits = entity_splits([c.id for c in countries if c.id not in unreadable], config)
    except ValueError:
        (folder / DRAFT).unlink()  # the folder holds drawings alone, and takes another config
        raise
    texts = passages(
        countries, max_words=config.max_words, with_flag=config.flag_text == "included"
    )
    questions = make_questions(countries, {text.id: text for text in texts}, config, splits)
    _write_data(folder, drawings, texts, questions, progress)
    entities = [
        {"id": c.id, "name": c.name, "image": f"kb:{c.id}", "split": splits.get(c.id)}
        for c in countries
    ]
    header = made_from | {
        "counts": _counts(questions),
        "same_flag": same,
        "undrawn": drawings.undrawn,
        "unreadable": drawings.unreadable,
        "entities": entities,
    }
    write_json(folder / HEADER, header)
    (folder / DRAFT).unlink()
    return open_benchmark(folder)


def open_benchmark(folder: Path) -> Benchmark:
    """The benchmark that was built into `folder`.

    Raises:
        FileNotFoundError: there is none, or its build was stopped.
        ValueError: its header is broken, or a file of its data set.
    """
    folder = Path(folder)
    if not (folder / HEADER).exists():
        stopped = (folder / DRAFT).exists()
        raise FileNotFoundError(
            f"No benchmark in {folder}: {HEADER} is missing"
            + (", because its build was stopped" if stopped else "")
            + ". Build it with: jaxagent kb build"
        )
    header = _read_header(folder / HEADER)
    if lacking := [name for name in FIELDS if name not in header]:
        raise _broken(folder / HEADER, f"lacks {', '.join(lacking)}")
    try:
        config = FlagsConfig.from_json(header["config"])
        entities = tuple(Entity(**row) for row in header["entities"])
    except (KeyError, TypeError) as error:
        how = f"has a config or entities of another form ({error})"
        raise _broken(folder / HEADER, how) from error
    with _data(folder) as data:
        texts = tuple(flags.read_passages(data))
    return Benchmark(
        folder=folder,
        config=config,
        entities=entities,
        passages=texts,
        same_flag=header["same_flag"],
        undrawn=tuple(header["undrawn"]),
        unreadable=tuple(header["unreadable"]),
        counts=header["counts"],
    )


def read_questions(folder: Path, split: str) -> list[Question]:
    """A split's questions, in their fixed random order.

    Raises:
        FileNotFoundError: `folder` holds no whole benchmark.
        ValueError: there is no such split, or it is empty, or its file is broken.
    """
    with _data(Path(folder)) as data:
        return flags.read_questions(data, split)


def benchmark_texts(folder: Path) -> Iterator[str]:
    """All text that a policy meets: names, passages, questions, answers and search phrases.

    Questions are those of training alone: a tokenizer learns no wording of validation or test.
    """
    benchmark = open_benchmark(folder)
    yield from (entity.name for entity in benchmark.entities)
    for passage in benchmark.passages:
        yield f"{passage.title}. {passage.text}"
    for question in read_questions(folder, "train"):
        yield question.text
        yield from question.answers
    for entity in benchmark.entities:
        yield from (f"{entity.name} {search_phrase(name)}" for name in RELATIONS)


def _versions(config: FlagsConfig) -> Mapping[str, str]:
    packages = [FACTBOOK, *(ARTISTS[name].package for name in (config.base, config.query))]
    return {package.project: package.version() for package in packages}


def _check_same(file: Path, made_from: Mapping) -> None:
    """Refuses to go on in a folder that was begun with something else."""
    begun = _read_header(file)
    for name in ("version", "packages", "config"):
        old, new = begun.get(name), made_from[name]
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            name, old, new = next(
                (f"{name}.{key}", old.get(key), new.get(key))
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            )
        raise ValueError(
            f"{file.parent} holds a benchmark made with {name} = {old!r}; now it is {new!r}. "
            "Name another folder, or delete this one to build it anew."
        )


def _read_header(file: Path) -> dict:
    """The header of a built benchmark, or the draft of a stopped build."""
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(file, f"is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(file, "is no JSON object")
    return header


@contextmanager
def _data(folder: Path) -> Iterator[Path]:
    """A benchmark's data set; where a file of it is torn or gone, the error says what to do."""
    try:
        yield folder / DATA
    except (OSError, RuntimeError) as error:
        if not (folder / HEADER).exists():
            raise
        raise _broken(folder / DATA, f"holds a file that cannot be read ({error})") from error


def _broken(file: Path, how: str) -> ValueError:
    return ValueError(
        f"{file} {how}, so nobody knows what lies there. Delete the folder {file.parent}, or name "
        "another one, and build it again: jaxagent kb build"
    )


def _begin(folder: Path, made_from: Mapping) -> None:
    """Marks the folder as being built; says so when it goes on with a stopped build."""
    draft = folder / DRAFT
    if draft.exists():
        _check_same(draft, made_from)
        for unfinished in (folder / DATA).glob("flags/*/incomplete.*"):
            shutil.rmtree(unfinished)
        logging.warning("A build was stopped in %s: what is whole there is kept.", folder)
        return
    if (folder / DATA).exists():
        raise ValueError(
            f"{folder / DATA} is there, but neither {HEADER} nor {DRAFT} says what made it. "
            "Name another folder, or delete this one."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(draft, made_from)


def _write_data(
    folder: Path,
    drawings: Drawings,
    texts: Sequence[Passage],
    questions: Sequence[Question],
    progress: Progress,
) -> None:
    by_split: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for question in questions:
        by_split[question.split].append(question)
    sets: Mapping[str, Mapping] = {
        "drawings": {"base": lambda: flags.drawing_rows(drawings)},
        "passages": {"base": lambda: map(flags.passage_row, texts)},
        "questions": {
            split: functools.partial(map, flags.question_row, rows)
            for split, rows in by_split.items()
            if rows
        },
    }
    for done, (name, rows) in enumerate(sets.items(), 1):
        flags.write_rows(folder / DATA, name, rows)
        progress("data sets", done, len(sets))


def _counts(questions: Sequence[Question]) -> Mapping[str, Mapping[str, int]]:
    counts = {}
    for split in SPLITS:
        rows = [question for question in questions if question.split == split]
        counts[split] = dict(Counter(question.family for question in rows))
        counts[split]["ambiguous"] = sum(question.ambiguous for question in rows)
    return counts
