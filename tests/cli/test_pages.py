"""The page of a work folder whose files do not belong together."""

from jaxagent.cli.configs import read_config, save_config
from jaxagent.cli.main import main
from jaxagent.evaluation import write_rows
from tests.report.dialogue_rows import dialogue_row


def test_evaluations_of_different_questions_are_one_message(capsys, tmp_path):
    save_config(read_config("flags_mmagent_r2_grpo", {}), tmp_path / "config.json")
    for at, when in enumerate(("before", "after")):
        rows = [dialogue_row(at, 1.0)]
        write_rows(tmp_path / "evaluation" / f"{when}.jsonl", rows)
    assert main(["report", "--workdir", str(tmp_path)]) == 2
    assert "Evaluate both with the same protocol" in capsys.readouterr().err
