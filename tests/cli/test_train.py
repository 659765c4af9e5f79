"""One process runs to the end and leaves a page and its costs; several are refused."""

from pathlib import Path

import jax
import pytest

from jaxagent.cli import train
from jaxagent.cli.agent import timed_policy
from jaxagent.cli.costs import add_costs, read_costs
from jaxagent.cli.learning import Trained
from jaxagent.cli.main import main
from jaxagent.cli.work import WorkFolder
from tests.report.dialogue_rows import dialogue_row

EXPERIMENT = "flags_mmagent_r2_grpo"


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """A run that is over at once; its evaluations may be set."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    evaluations = {"before": [], "after": []}
    monkeypatch.setattr(train.build, "open_world", lambda *_: None)
    monkeypatch.setattr(train, "assemble", lambda *_: (None, {}))
    monkeypatch.setattr(train, "trained", lambda *_: Trained(scalars=[], **evaluations))
    monkeypatch.setattr(train, "page_of_run", lambda folder, config, *, output: output)
    return evaluations


@pytest.mark.parametrize("words", [["train", "--config", EXPERIMENT], ["quickstart"]])
def test_a_run_without_an_evaluation_ends_with_its_page(capsys, tmp_path, runs, words):
    words = [*words, "--workdir", str(tmp_path / "work"), "--config.evaluation.when=()"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'work' / 'report.html'}\n"


def test_the_headlines_of_a_run_come_before_its_page(capsys, tmp_path, runs):
    runs["after"] = [dialogue_row(0, 1.0)]
    assert main(["quickstart", "--workdir", str(tmp_path / "work")]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "Right answers: 100.0 % (1 dialogues)"
    assert last.startswith("Report: ")


def test_costs_are_those_of_a_run_from_an_empty_folder_to_its_end(tmp_path, runs):
    words = ["quickstart", "--workdir", str(tmp_path / "work")]
    assert main(words) == 0
    costs = read_costs(tmp_path / "work" / "costs.json")
    assert costs["seconds"] > 0
    assert costs["peak_bytes"] > 50e6
    assert main(words) == 0
    assert read_costs(tmp_path / "work" / "costs.json") == costs
    (tmp_path / "other" / "kb").mkdir(parents=True)
    assert main(["quickstart", "--workdir", str(tmp_path / "other")]) == 0
    assert read_costs(tmp_path / "other" / "costs.json") == {}


def test_what_a_new_policy_took_is_kept_when_it_is_made(tmp_path):
    folder = WorkFolder(tmp_path)

    def make() -> Path:
        folder.policy.mkdir(exist_ok=True)
        return folder.policy

    add_costs(folder.costs, {"cores": 2})
    assert timed_policy(folder, make) == folder.policy
    costs = read_costs(folder.costs)
    assert costs.keys() == {"cores", "policy_seconds"}
    timed_policy(folder, make)
    assert read_costs(folder.costs) == costs


def distributed(capsys, workdir: Path) -> str:
    """The message that `train --distributed` ends with; nothing is written."""
    words = ["--config", EXPERIMENT, "--workdir", str(workdir), "--distributed"]
    assert main(["train", *words]) == 2
    assert not workdir.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_host_in_no_cluster_is_told_so(capsys, tmp_path, monkeypatch, kind):
    def initialize():
        raise kind("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    message = distributed(capsys, tmp_path / "work")
    assert "no cluster to join: coordinator_address should be defined. Leave it out" in message


def test_several_processes_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda: None)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    message = distributed(capsys, tmp_path / "work")
    assert "has 4 processes" in message
    assert "one host with all its devices" in message
