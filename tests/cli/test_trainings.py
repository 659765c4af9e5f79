"""`train` run for real on a benchmark of sixteen countries: what it learns from and leaves."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxagent.cli import build, cold_start, learning
from jaxagent.cli.cold_start import glances, lessons
from jaxagent.cli.configs import config_flags, read_config
from jaxagent.cli.errors import UserError
from jaxagent.cli.work import WorkFolder
from jaxagent.data.drawings import Drawings
from jaxagent.json_lines import write_lines
from jaxagent.processing.policy import load_policy
from jaxagent.services.summariser import summarise_by_extraction
from jaxagent.training import sft
from jaxagent.training.loop import Finished
from jaxagent.types import silent
from tests.cli.commands import EXPERIMENT, agent_flags, base_flags, entities, refused, run


def test_a_warm_start_leaves_out_what_the_base_could_not_read(work, tmp_path, monkeypatch):
    """A drawing that was spoilt after the benchmark was made, and before the base was."""
    shutil.copytree(work / "kb", tmp_path / "kb")
    shutil.rmtree(tmp_path / "kb" / "base")
    (tmp_path / "kb" / "drawings" / "openmoji" / "td.png").write_bytes(b"no picture")

    def pairs(names, *rest):
        raise ValueError(f"drawn from {' '.join(names)}")

    monkeypatch.setattr(cold_start, "warm_start_pairs", pairs)
    flags = ["model.folder=new", "warm_start.steps=1", "model.sizes.vocab=640"]
    flags = [*base_flags(work), *(f"--config.{one}" for one in flags)]
    config, folder = read_config(EXPERIMENT, config_flags(flags)), WorkFolder(tmp_path)
    world = build.open_world(config, folder, silent)
    with pytest.raises(UserError) as caught:
        cold_start.new_policy(config, world, folder, silent)
    there = {one["id"] for one in entities(work) if one["split"]}
    assert set(str(caught.value).split()[2:]) == there - {"td"}


def test_glances_are_as_many_as_asked_for_and_end_after_the_first_choice(work, tmp_path):
    room = ["max_turns=8", "max_tokens=64"]
    flags = [*agent_flags(work)[2:], *(f"--config.method.mmagent_r2.{one}" for one in room)]
    flags += [
        "--config.sft.traces=24",
        "--config.sft.reworded=0",  # words that mean nothing are many tokens to so small a policy
        "--config.sft.max_tokens=768",
        "--config.rollout.context=768",
    ]
    config = read_config(EXPERIMENT, config_flags(flags))
    world = build.open_world(config, WorkFolder(tmp_path), silent)
    policy = build.policy(config).policy
    seen = list(glances(config, world, policy, silent, count=21))
    assert len(seen) == 21
    assert all(len(trace.dialogue.turns[1].found) == 5 for trace in seen)
    assert {len(trace.dialogue.turns) for trace in seen} == {5}
    whole = {trace.question.data_id for trace in lessons(config, world, policy, silent)}
    assert whole
    assert not whole & {trace.question.data_id for trace in seen}


def test_supervised_training_makes_traces_when_it_asks_for_them(
    capsys, work, tmp_path, monkeypatch
):
    """One that has finished asks for none: see `test_loop`."""
    asked, made = [], []

    def train_sft(learner, *, traces, to, **_):
        write_lines(to.folder / "logs" / "metrics.jsonl", [])
        for step in asked:
            traces(step)
        return Finished(learner, 1, "done")

    monkeypatch.setattr(learning, "train_sft", train_sft)
    monkeypatch.setattr(learning, "lessons", lambda *_: made.append("once") or [])
    flags = ["sft.steps=1", "rl.steps=0", "evaluation.when=()"]
    words = ["train", *agent_flags(work), *(f"--config.{one}" for one in flags), "--workdir"]
    assert run(capsys, *words, str(tmp_path / "finished"))[0] == 0
    assert made == []
    asked.append(0)
    assert "0 traces do not fill" in refused(capsys, *words, str(tmp_path / "begun"))
    assert made == ["once"]


@pytest.mark.slow
def test_no_training_sees_the_query_drawing_of_an_entity_it_is_not_asked_about(
    capsys, work, tmp_path, monkeypatch
):
    """Warm start, traces, SFT and RL of a new policy, by the drawings that are read for them."""
    seen = set()
    read = Drawings.read
    monkeypatch.setattr(
        Drawings,
        "read",
        lambda self, artist, entity: seen.add((artist, entity)) or read(self, artist, entity),
    )
    flags = [flag for flag in agent_flags(work) if "model.folder" not in flag]
    new = ["model.folder=new", "evaluation.when=()", "rl.steps=2", "sft.steps=2", "sft.batch=2"]
    new += [
        "sft.traces=40",
        "sft.single=0.5",
        "sft.reworded=0",
        "sft.look_steps=1",
        "sft.look_batches=1",
        "warm_start.steps=3",
        "warm_start.batch=8",
    ]
    new += ["method.mmagent_r2.max_turns=8", "method.mmagent_r2.max_tokens=64"]  # of the expert
    words = ["train", "--workdir", str(tmp_path), *flags, *(f"--config.{one}" for one in new)]
    status, _, err = run(capsys, *words)
    assert status == 0, err
    split = {one["id"]: one["split"] for one in entities(work)}
    assert {split[entity] for artist, entity in seen if artist == "twemoji"} == {"train"}
    assert {split[entity] for artist, entity in seen if artist == "openmoji"} > {"train"}


@pytest.mark.slow
def test_train_resumes_and_leaves_a_page_and_a_policy(capsys, work, tmp_path):
    words = ["train", "--workdir", str(tmp_path), *agent_flags(work)]
    words += ["--config.model.saved_dtype=bfloat16"]
    stopped = [*words, "--config.rl.steps=2", "--config.checkpoint.every=1"]
    status, out, _ = run(capsys, *stopped)
    assert status == 0
    assert out.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    steps = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").open()]
    assert [step["step"] for step in steps] == [1, 2]
    assert load_policy(tmp_path / "trained").params
    assert (tmp_path / "report.html").stat().st_size > 10_000
    again = run(capsys, *stopped)[1]
    assert again == out

    message = refused(capsys, *words, "--config.rl.steps=3")
    assert "rl.steps was 2" in message

    status, out, _ = run(capsys, "evaluate", "--workdir", str(tmp_path), "--name", "more")
    assert status == 0
    assert "unseen entity" in out
    rows = (tmp_path / "evaluation" / "more.jsonl").read_text()
    assert rows == (tmp_path / "evaluation" / "after.jsonl").read_text()
    page = tmp_path / "again.html"
    status, *_ = run(capsys, "report", "--workdir", str(tmp_path), "--output", str(page))
    assert status == 0
    assert page.read_text() == (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_from_its_last_checkpoint(work, tmp_path):
    words = [sys.executable, "-m", "jaxagent.cli.main", "train", "--workdir", str(tmp_path)]
    words += [*agent_flags(work), "--config.evaluation.when=()"]
    words += ["--config.rl.steps=12", "--config.checkpoint.every=1"]
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (tmp_path / "checkpoints" / "rl" / "1").exists():
        assert killed.poll() is None, "the training ended by itself"
        assert time.monotonic() < until, "no checkpoint in five minutes"
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "trained").exists()
    (first, *_) = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    again = subprocess.run(words, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 13))
    assert lines[0] == first  # its times too: the first step was not done again
    assert load_policy(tmp_path / "trained").params


@pytest.mark.slow
def test_promsa_learns_from_traces_and_from_rewards(capsys, work, tmp_path, monkeypatch):
    """All that its expert is shown are summaries; a policy of random weights calls no tool."""
    summaries, traces = [], []

    def summarise(queries):
        found = summarise_by_extraction(queries)
        summaries.extend(found)
        return found

    def shuffled(found, config):
        traces.extend(found)
        return sft.shuffled(found, config)

    monkeypatch.setitem(build.SUMMARISERS, "extractive", summarise)
    monkeypatch.setattr(learning, "shuffled", shuffled)
    flags = ["method.name=promsa", "method.promsa.max_tokens=128", "rollout.context=768"]
    flags += ["packing.row_lengths=(768,)", "packing.call_tokens=1536", "rl.steps=1"]
    flags += ["sft.steps=1", "sft.batch=2", "sft.traces=16", "sft.max_tokens=768"]
    flags += ["sft.fiction=0", "sft.single=1", "method.promsa.max_turns=4", "evaluation.when=()"]
    words = ["--workdir", str(tmp_path), *agent_flags(work), *(f"--config.{one}" for one in flags)]
    status, _, err = run(capsys, "train", *words)
    assert status == 0, err
    turns = [turn for trace in traces for turn in trace.dialogue.turns if turn.found]
    assert turns
    assert {part for turn in turns for part in turn.parts} <= set(summaries)
    steps = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").open()]
    assert [{"sft/loss", "reward/cost"} & step.keys() for step in steps] == [
        {"sft/loss"},
        {"reward/cost"},
    ]
    assert load_policy(tmp_path / "trained").params
    status, *_ = run(capsys, "evaluate", "--workdir", str(tmp_path), "--name", "more")
    assert status == 0
    rows = [json.loads(line) for line in (tmp_path / "evaluation" / "more.jsonl").open()]
    assert [row["terms"].keys() for row in rows] == [{"outcome", "format", "cost"}] * 4


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_page_twice(capsys, work, tmp_path):
    """Rollouts, losses, evaluations, parameters and the report, all but the times."""
    folders = [tmp_path / place / "run" for place in ("one", "two")]
    for folder in folders:
        words = ["train", "--workdir", str(folder), *agent_flags(work), "--config.rl.steps=2"]
        assert run(capsys, *words)[0] == 0
    one, two = ({name: read(folder) for name, read in KEPT.items()} for folder in folders)
    assert [name for name in KEPT if one[name] != two[name]] == []
    words = ["train", "--workdir", str(tmp_path / "other"), *agent_flags(work), "--config.seed=1"]
    assert run(capsys, *words, "--config.rl.steps=2")[0] == 0
    assert losses(tmp_path / "other") != one["losses"]


def losses(folder: Path) -> list[dict]:
    """The scalars of every step, but for those of the clock and of what was compiled before."""
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").open()]
    varying = re.compile("^time/|second|compilations")
    return [{k: v for k, v in row.items() if not varying.search(k)} for row in rows]


KEPT = {
    "losses": losses,
    "before": lambda folder: (folder / "evaluation" / "before.jsonl").read_text(),
    "after": lambda folder: (folder / "evaluation" / "after.jsonl").read_text(),
    "policy": lambda folder: (folder / "trained" / "model.safetensors").read_bytes(),
    "report": lambda folder: (folder / "report.html").read_text(),
}
