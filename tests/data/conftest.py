"""A benchmark of thirteen flags, and the text side of all, each made once a session."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxagent.data.benchmark import Benchmark, build_benchmark
from jaxagent.data.config import FlagsConfig
from jaxagent.data.factbook import Country, passages, read_countries
from jaxagent.data.questions import entity_splits, make_questions
from jaxagent.types import Passage, Question, Split

# Two pairs with the same flag (td ro, no sj), two shapes that are not oblong (np, ch), neighbours.
COUNTRIES = ("td", "ro", "no", "sj", "np", "ch", "fr", "de", "it", "at", "ne", "ng", "jp")
SMALL = FlagsConfig(
    countries=COUNTRIES,
    max_words=35,
    val_entities=2,
    test_entities=3,
    views=4,
    pairs=(4, 4),
    seed=3,
)


class Text(NamedTuple):
    """The benchmark's text side, of all countries."""

    config: FlagsConfig
    countries: tuple[Country, ...]
    passages: Mapping[str, Passage]
    splits: Mapping[str, Split]
    questions: tuple[Question, ...]


@pytest.fixture(scope="session")
def benchmark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flags")


@pytest.fixture(scope="session")
def benchmark(benchmark_folder: Path) -> Benchmark:
    return build_benchmark(benchmark_folder, SMALL)


@pytest.fixture(scope="session")
def text() -> Text:
    config = FlagsConfig(max_words=35)
    countries = read_countries()
    texts = passages(countries, max_words=config.max_words)
    by_id = {passage.id: passage for passage in texts}
    splits = entity_splits([country.id for country in countries], config)
    questions = make_questions(countries, by_id, config, splits)
    return Text(config, countries, by_id, splits, questions)
