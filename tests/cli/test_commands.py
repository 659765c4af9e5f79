"""`kb` and `sweep`, run for real on a benchmark of sixteen countries."""

import json
import shutil

import pytest

from tests.cli.commands import EXPERIMENT, agent_flags, base_flags, refused, run


def test_kb_tells_what_it_holds_and_how_hard_it_is(capsys, work):
    status, out, _ = run(capsys, "kb", "info", "--workdir", str(work))
    assert status == 0
    assert "entities" in out
    assert "unseen_entity: the image search finds the entity in" in out
    assert run(capsys, "kb", "build", "--workdir", str(work), *base_flags(work))[1] == out


def test_kb_info_of_nothing_says_how_to_build(capsys, tmp_path):
    assert "kb build" in refused(capsys, "kb", "info", "--workdir", str(tmp_path))


def test_kb_info_of_a_torn_record_of_recall_says_how_to_write_it_again(capsys, work, tmp_path):
    shutil.copytree(work / "kb", tmp_path / "kb")
    (tmp_path / "kb" / "recall.json").write_text('{"unseen_ent')
    message = refused(capsys, "kb", "info", "--workdir", str(tmp_path))
    assert "recall.json is broken" in message
    assert "`jaxagent kb build` writes it again" in message


def test_an_encoder_that_is_not_there_is_named_before_anything_is_built(capsys, tmp_path):
    words = ["--workdir", str(tmp_path), "--config.retrieval.image_encoder=/no/such/encoder"]
    assert "'/no/such/encoder' is no image encoder" in refused(capsys, "kb", "build", *words)
    assert not (tmp_path / "kb").exists()


def test_a_base_of_another_config_is_refused(capsys, work):
    flags = [*base_flags(work), "--config.data.flags.views=5"]
    assert "views" in refused(capsys, "kb", "build", "--workdir", str(work), *flags)


def test_a_folder_with_foreign_files_is_left_alone(capsys, work, tmp_path):
    (tmp_path / "kb" / "base").mkdir(parents=True)
    (tmp_path / "kb" / "base" / "letter.txt").write_text("mine")
    refused(capsys, "kb", "build", "--workdir", str(tmp_path), *base_flags(work))
    assert (tmp_path / "kb" / "base" / "letter.txt").read_text() == "mine"


def test_an_unreadable_drawing_is_listed_and_not_replaced(capsys, work, tmp_path):
    shutil.copytree(work / "kb", tmp_path / "kb")
    shutil.rmtree(tmp_path / "kb" / "base")
    (drawing,) = (tmp_path / "kb" / "drawings" / "openmoji").glob("td*")
    drawing.write_bytes(b"no picture")
    status, out, _ = run(capsys, "kb", "build", "--workdir", str(tmp_path), *base_flags(work))
    assert status == 0
    assert "Unreadable images of the base, not replaced: kb:td" in out
    assert drawing.read_bytes() == b"no picture"


@pytest.mark.slow
def test_a_sweep_adds_one_line_a_run_and_skips_those_it_has(capsys, work, tmp_path):
    results = tmp_path / "results.jsonl"
    words = ["sweep", "--workdir", str(tmp_path), "--results", str(results), "--only", "grpo-0"]
    words += [*agent_flags(work), "--config.rl.steps=1"]
    assert run(capsys, *words)[0] == 0
    (line,) = [json.loads(line) for line in results.open()]
    assert (line["name"], line["seed"], line["steps"]) == ("grpo-0", 0, 1)
    assert "already" in run(capsys, *words)[1]
    assert len(results.read_text().splitlines()) == 1

    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    run(capsys, "report", "--results", str(results), "--readme", str(readme))
    assert "| grpo | 1 |" in readme.read_text()


def test_a_sweep_without_such_a_row_lists_the_rows(capsys, tmp_path):
    words = ["--workdir", str(tmp_path), "--results", str(tmp_path / "r"), "--only", "grop"]
    message = refused(capsys, "sweep", "--config", EXPERIMENT, *words)
    assert "grpo-0" in message
