"""`jaxagent report`: what it refuses in one message, and the cards of the shipped policies."""

import json
import os
import shlex
from pathlib import Path

import pytest

from jaxagent.cli import build
from jaxagent.cli.configs import config_flags, read_config, save_config
from jaxagent.cli.costs import add_costs
from jaxagent.cli.main import main
from jaxagent.cli.pages import title
from jaxagent.cli.quickstart import EXPERIMENT, USUAL
from jaxagent.cli.report import readme_cold_start, readme_results
from jaxagent.cli.sweep import weights_digest
from jaxagent.evaluation import write_rows
from jaxagent.json_lines import append_line, write_lines
from jaxagent.report.results import read_results
from tests.cli import commands
from tests.report.dialogue_rows import dialogue_row

ROOT = Path(__file__).parents[2]


def refused(capsys, *words: object) -> str:
    return commands.refused(capsys, "report", *map(str, words))


def row(at: int, split: str, *, identified: bool | None = True) -> dict:
    return dialogue_row(at, 1.0, split=split, identified=identified, reward=0.5, terms={})


@pytest.fixture
def trained(tmp_path) -> Path:
    """The work folder of a cold start with an evaluation after it, and one of another name."""
    folder = tmp_path / "work"
    folder.mkdir()
    save_config(read_config("flags_cold_start", {}), folder / "config.json")
    write_lines(folder / "logs" / "metrics.jsonl", [{"step": 1, "time/sft": 60.0}])
    after = [row(0, "val_unseen_entity"), row(1, "val_unseen_question")]
    write_rows(folder / "evaluation" / "after.jsonl", after)
    write_rows(folder / "evaluation" / "other.jsonl", [row(2, "unseen_entity")])
    return folder


def results(tmp_path, **changes) -> Path:
    """A results file of one run on one question."""
    figures = {"unseen_entity": {"dialogues": 1.0, "accuracy": 1.0}}
    line = {"name": "grpo-0", "config": "flags_mmagent_r2_grpo", "seed": 0, "reward": None}
    line |= {"minutes": 1.0, "steps": 1, "before": figures, "after": figures, "versions": {}}
    line |= {"changes": {}, "weights": ""}
    append_line(tmp_path / "r.jsonl", line | {"outcomes": {"unseen_entity": {}}} | changes)
    return tmp_path / "r.jsonl"


def test_a_work_folder_that_is_a_file_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("host\n")
    assert "Not a directory" in refused(capsys, "--workdir", tmp_path / "file")


@pytest.mark.parametrize("text", ["[1]", "null", "{", "\x00", '{"seed": null}', '{"seeds": 1}'])
def test_a_broken_config_of_a_work_folder_is_refused(capsys, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    message = refused(capsys, "--workdir", tmp_path)
    assert "config" in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--results", "r", "--card", "c"), "--card is written from the work folder"),
        (("--card", "c"), "give --workdir with it"),
        (("--readme", "x", "--card", "c"), "neither --results nor --readme"),
        (("--workdir", "w", "--results", "r"), "either --workdir"),
        (("--workdir", "w", "--results", "r", "--readme", "x"), "not both"),
        (("--workdir", "gs://b/w"), "--workdir is 'gs://b/w'"),
        (("--results", "gs://b/r"), "--results is 'gs://b/r'"),
        (("--readme", "gs://b/x"), "--readme is 'gs://b/x'"),
        (("--readme", "x", "--output", "y"), "--output names a page"),
        (("--workdir", ""), "--workdir is empty"),
        (("--workdir", "w", "--card", ""), "--card is empty"),
        (("--results", "r", "--output", ""), "--output is empty"),
        (("--workdir", "~nosuchuser/w"), "this machine has no such user"),
        ((), "either --workdir"),
    ],
)
def test_options_that_do_not_go_together_are_refused(capsys, words, said):
    assert said in refused(capsys, *words)


def test_results_that_lack_fields_are_refused_with_the_line(capsys, tmp_path):
    path = results(tmp_path)
    append_line(path, {"a": 1})
    message = refused(capsys, "--results", path)
    assert f"Line 2 of {path} is no run of `jaxagent sweep`: it lacks name" in message
    assert "holds no run" in refused(capsys, "--results", tmp_path / "no")


def test_results_without_an_evaluation_after_training_say_how_to_get_one(capsys, tmp_path):
    path = results(tmp_path, after={})
    assert "evaluation.when" in refused(capsys, "--results", path)


def test_a_readme_without_markers_or_none_at_all_is_refused(capsys, tmp_path):
    path = results(tmp_path)
    readme = tmp_path / "README.md"
    assert "no such file" in refused(capsys, "--results", path, "--readme", readme)
    readme.write_text("text\n")
    message = refused(capsys, "--results", path, "--readme", readme)
    assert "no markers <!-- results:begin -->" in message
    assert readme.read_text() == "text\n"


def test_a_page_that_cannot_be_written_is_refused(capsys, tmp_path):
    path = results(tmp_path)
    assert str(tmp_path) in refused(capsys, "--results", path, "--output", tmp_path)


def test_a_torn_evaluation_is_refused_and_a_torn_last_step_is_left_out(capsys, trained):
    with (trained / "logs" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "ti')
    card = trained / "card.json"
    assert main(["report", "--workdir", str(trained), "--card", str(card)]) == 0
    assert json.loads(card.read_text())["sft_steps"] == 1
    after = trained / "evaluation" / "after.jsonl"
    after.write_text(after.read_text()[:-9])
    assert "after.jsonl is torn" in refused(capsys, "--workdir", trained)


def test_a_card_holds_the_evaluation_after_training_alone(trained, tmp_path):
    path = tmp_path / "card.json"
    assert main(["report", "--workdir", str(trained), "--card", str(path)]) == 0
    card = json.loads(path.read_text())
    assert list(card["figures"]) == ["val_unseen_entity", "val_unseen_question"]
    name = "flags_cold_start"
    assert card["command"] == f"jaxagent train --config {name} --workdir work/{name}"
    assert card["cores"] == os.cpu_count()
    assert card["sft_minutes"] == 1.0
    assert "warm_start_minutes" not in card


def test_a_card_has_the_command_that_gives_the_same_config_again(trained, tmp_path):
    changes = {"seed": "3", "sft.minutes": "2", "evaluation.splits": "val_unseen_entity"}
    changes |= {"packing.row_lengths": "(256, 960)", "data.folder": "a folder"}
    config = read_config("flags_cold_start", changes)
    save_config(config, trained / "config.json")
    path = tmp_path / "card.json"
    assert main(["report", "--workdir", str(trained), "--card", str(path)]) == 0
    words = shlex.split(json.loads(path.read_text())["command"])
    name = "flags_cold_start"
    assert words[:6] == ["jaxagent", "train", "--config", name, "--workdir", f"work/{name}"]
    assert len(words) == 6 + len(changes)
    assert read_config(name, config_flags(words[6:])) == config


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"rl.steps": 0, "sft.steps": 5}, "MMAgent-R2, supervised"),
        ({"rl.steps": 1, "sft.steps": 5}, "MMAgent-R2 with GRPO"),
        ({"rl.steps": 0, "method.name": "promsa"}, "ProMSA"),
    ],
)
def test_a_page_is_named_after_the_training_that_was_run(changes, wanted):
    assert title(read_config(EXPERIMENT, changes)) == wanted


def test_a_card_without_the_evaluation_after_training_says_to_run_the_training(capsys, trained):
    (trained / "evaluation" / "after.jsonl").unlink()
    message = refused(capsys, "--workdir", trained, "--card", trained / "card.json")
    assert f"jaxagent train --config flags_cold_start --workdir {trained}" in message
    assert not (trained / "card.json").exists()


@pytest.fixture
def shipped(trained, monkeypatch) -> Path:
    """A folder of cards in place of the package's, with one for each method."""
    folder = trained.parent / "pretrained"
    monkeypatch.setattr(build, "shipped_folder", folder.joinpath)
    add_costs(trained / "costs.json", {"policy_seconds": 90.0})
    for method, made in build.METHODS.items():
        seen = None if method == "promsa" else True
        rows = [row(0, "val_unseen_entity", identified=seen)]
        write_rows(trained / "evaluation" / "after.jsonl", rows)
        (trained / "config.json").unlink()
        save_config(read_config(made.cold_start, {}), trained / "config.json")
        (folder / method).mkdir(parents=True)
        card = folder / method / "card.json"
        assert main(["report", "--workdir", str(trained), "--card", str(card)]) == 0
    return folder


def test_the_readme_tells_what_made_the_shipped_policies(shipped, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- cold-start:begin -->\n<!-- cold-start:end -->\n")
    assert main(["report", "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert f"1 updates of SFT in 1.0 minutes on {os.cpu_count()} CPU cores." in text
    assert "MMAgent-R2: `jaxagent train --config flags_cold_start --workdir" in text
    assert text.count("900 steps of warm start in 1.5 minutes, then 1 updates of SFT") == 1
    assert "| val_unseen_entity | 1 | 100.0 | 100.0 | 100.0 | 100.0 | 0.50 |" in text
    assert "| val_unseen_entity | 1 | 100.0 | – | 100.0 | 100.0 | 0.50 |" in text


def test_the_readme_holds_what_the_shipped_files_say():
    text = (ROOT / "README.md").read_text()
    results = ROOT / "tests" / "benchmarks" / "results.jsonl"
    for name, made in (("results", readme_results(results)), ("cold-start", readme_cold_start())):
        assert f"<!-- {name}:begin -->\n{made.strip()}\n<!-- {name}:end -->" in text
    begun_with = {line["weights"] for line in read_results(results)}
    assert begun_with == {weights_digest(read_config("flags_mmagent_r2_grpo", {}))}


@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read"), ("{", "is broken"), ("{}", "lacks command, cores")]
)
def test_a_card_that_is_missing_or_broken_says_how_to_write_it(
    capsys, shipped, tmp_path, text, said
):
    card = shipped / "promsa" / "card.json"
    card.unlink()
    if text is not None:
        card.write_text(text)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- cold-start:begin -->\n<!-- cold-start:end -->\n")
    message = refused(capsys, "--readme", readme)
    assert f"The card {card} {said}" in message
    assert f"jaxagent report --workdir work/flags_promsa_cold_start --card {card}" in message


@pytest.fixture
def quickstart(tmp_path) -> Path:
    """The work folder of a quickstart that ran in one go."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    save_config(read_config(EXPERIMENT, USUAL), folder / "config.json")
    steps = [{"step": at, "reward/total": 0.5 * at, "time/rl": 1.0} for at in (1, 2)]
    write_lines(folder / "logs" / "metrics.jsonl", steps)
    for when in ("before", "after"):
        write_rows(folder / "evaluation" / f"{when}.jsonl", [row(0, "unseen_entity")])
    add_costs(folder / "costs.json", {"seconds": 588.0, "peak_bytes": 2_340_000_000, "cores": 2})
    return folder


def test_the_readme_tells_what_the_quickstart_took_and_printed(quickstart, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- quickstart:begin -->\nold\n<!-- quickstart:end -->\n")
    assert main(["report", "--workdir", str(quickstart), "--readme", str(readme)]) == 0
    begin, took, nothing, fence, *figures, closed, end = readme.read_text().splitlines()
    assert "takes 9.8 minutes on 2 CPU cores and 2.3 GB of memory" in took
    assert [line.partition(":")[0] for line in figures] == [
        "Right answers", "Right entity named", "Reward in training",
    ]  # fmt: skip
    assert figures[2].startswith("Reward in training: 1.00 (was 0.50")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "costs.json").unlink(), "took is not known"),
        (lambda folder: (folder / "costs.json").write_text('{"sec'), "costs.json is broken"),
        (
            lambda folder: save_config(read_config(EXPERIMENT, {}), folder / "config.json"),
            "not `jaxagent quickstart` without changes (evaluation.questions was 1800",
        ),
    ],
)
def test_what_is_no_whole_quickstart_stays_out_of_the_readme(
    capsys, quickstart, tmp_path, spoil, said
):
    spoil(quickstart)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- quickstart:begin -->\n<!-- quickstart:end -->\n")
    assert said in refused(capsys, "--workdir", quickstart, "--readme", readme)
    assert len(readme.read_text().splitlines()) == 2
