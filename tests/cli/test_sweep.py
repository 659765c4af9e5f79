"""A sweep's experiment and results file are checked before the first run; a stop loses no line."""

import json

import pytest

from jaxagent.cli import sweep
from jaxagent.cli.configs import read_config
from jaxagent.cli.main import main
from jaxagent.json_lines import append_line
from jaxagent.report.results import read_results
from tests.cli.commands import EXPERIMENT, refused


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """Names of the rows that were run; a run gives its line at once."""
    names = []

    def finished_row(config, name, changes, root):
        names.append(name)
        return line(name, changes)

    monkeypatch.setattr(sweep, "finished_row", finished_row)
    return names


def line(name: str, changes: dict) -> dict:
    """A run that was evaluated neither before nor after training."""
    whole = {
        "changes": changes,
        "weights": sweep.weights_digest(read_config(EXPERIMENT, changes)),
        "seed": 0,
        "minutes": 1.0,
        "steps": 1,
        "reward": None,
        "versions": {},
    }
    return whole | {"name": name, "config": EXPERIMENT, "before": {}, "after": {}, "outcomes": {}}


def words(tmp_path, results, config=EXPERIMENT) -> list[str]:
    places = ["--workdir", str(tmp_path / "work"), "--results", str(results)]
    return ["sweep", "--config", config, *places, "--only", "grpo"]


@pytest.mark.parametrize("name", ["flags_mmagent_r2_grop", "configs/flags_mmagent_r2_grop.py"])
def test_a_typo_in_the_experiment_gets_the_nearest_name(capsys, tmp_path, ran, name):
    message = refused(capsys, *words(tmp_path, tmp_path / "r.jsonl", config=name))
    assert f"Did you mean '{EXPERIMENT}'?" in message


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("rl.stpes=1", "Did you mean 'rl.steps'?"),
        ("evaluation.when=afer", "Did you mean 'after'?"),
        ("seed=7", "config.seed is set by the sweep itself, in grpo-0, grpo-1, grpo-2. Leave"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_written(capsys, tmp_path, ran, flag, said):
    arguments = [*words(tmp_path, tmp_path / "r.jsonl"), f"--config.{flag}"]
    assert said in refused(capsys, *arguments)
    assert ran == []
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_without_rows_says_to_train(capsys, tmp_path, ran):
    message = refused(capsys, *words(tmp_path, tmp_path / "r.jsonl", config="flags_cold_start"))
    assert "has no sweep()" in message


def test_rows_that_are_in_the_file_are_not_run_again_by_name_or_path(capsys, tmp_path, ran):
    results = tmp_path / "r.jsonl"
    assert main(words(tmp_path, results)) == 0
    first = list(ran)
    assert len(first) > 1
    assert main(words(tmp_path, results, config=f"configs/{EXPERIMENT}.py")) == 0
    assert ran == first
    assert [row["name"] for row in read_results(results)] == first


def test_a_row_that_was_run_with_other_fields_is_refused(capsys, tmp_path, ran):
    results = tmp_path / "r.jsonl"
    fields = ["--config.rollout.rows=8", "--config.optimizer.learning_rate=3e-4"]
    assert main([*words(tmp_path, results), *fields]) == 0
    ran.clear()
    same = ["--config.rollout.rows=(8,)", "--config.optimizer.learning_rate=0.0003"]
    assert main([*words(tmp_path, results), *same]) == 0
    message = refused(capsys, *words(tmp_path, results))
    assert "holds the row grpo-0 with other fields (optimizer.learning_rate was 0.0003" in message
    assert ran == []


def test_a_row_that_began_with_other_weights_is_refused(capsys, tmp_path, ran):
    results = tmp_path / "r.jsonl"
    append_line(results, line("grpo-0", {"seed": 0}) | {"weights": "1f"})
    message = refused(capsys, *words(tmp_path, results))
    assert "the row grpo-0 of a run that began with other weights than 'shipped' holds" in message
    assert ran == []


def test_a_run_whose_line_is_torn_is_run_again_and_no_other(capsys, tmp_path, ran):
    results = tmp_path / "r.jsonl"
    assert main(words(tmp_path, results)) == 0
    first = list(ran)
    results.write_bytes(results.read_bytes()[:-20])
    ran.clear()
    assert main(words(tmp_path, results)) == 0
    assert ran == first[-1:]
    assert [row["name"] for row in read_results(results)] == first


@pytest.mark.parametrize("broken", ["not json", '{"a": 1}'])
def test_any_other_broken_line_is_refused_with_its_number(capsys, tmp_path, ran, broken):
    results = tmp_path / "r.jsonl"
    results.write_text(f"{json.dumps(line('x', {}))}\n{broken}\n{json.dumps(line('y', {}))}\n")
    before = results.read_text()
    assert "Line 2 of" in refused(capsys, *words(tmp_path, results))
    assert ran == []
    assert results.read_text() == before


def test_a_results_file_that_cannot_be_written_is_refused_before_the_first_run(
    capsys, tmp_path, ran
):
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "r.jsonl"):
        message = refused(capsys, *words(tmp_path, place))
        assert f"The results file {place} cannot be written" in message
        assert "--results" in message
    assert ran == []


def test_results_at_an_address_are_refused(capsys, tmp_path, ran):
    assert "--results is 'gs://b/r'" in refused(capsys, *words(tmp_path, "gs://b/r"))
    assert ran == []
