"""`jaxagent evaluate`: which policy it takes, and what it leaves to a training and `report`."""

import pytest

from jaxagent.cli import evaluate
from jaxagent.cli.configs import read_config, save_config, saved_config
from jaxagent.cli.main import main
from jaxagent.cli.work import WorkFolder, claim
from tests.report.dialogue_rows import dialogue_row

EXPERIMENT = "flags_mmagent_r2_grpo"


class Answers:
    """An agent whose evaluation is over at once."""

    def evaluate(self, params, *, progress):
        return [dialogue_row(0, 1.0)]


@pytest.fixture
def folder(monkeypatch, tmp_path) -> WorkFolder:
    """A work folder in which any policy is evaluated at once; a new one leaves `policy/`."""
    folder = WorkFolder(tmp_path / "work")

    def assemble(config, *_):
        if config.model.folder == "new":
            folder.policy.mkdir(exist_ok=True)
        return Answers(), {}

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(evaluate.build, "open_world", lambda *_: None)
    monkeypatch.setattr(evaluate, "assemble", assemble)
    return folder


def run(capsys, folder: WorkFolder, *fields: str, name: str = EXPERIMENT) -> tuple[int, str]:
    words = ["--config", name] if name else []
    flags = [f"--config.{field}" for field in fields]
    status = main(["evaluate", "--workdir", str(folder.root), *words, *flags])
    return status, capsys.readouterr().err


def test_a_folder_with_an_evaluation_alone_has_a_page(capsys, folder):
    for seed in ("seed=1", "seed=2"):
        assert run(capsys, folder, seed, "report.dialogues=0")[0] == 0
    assert saved_config(folder.config).seed == 2
    assert main(["report", "--workdir", str(folder.root)]) == 0
    assert "seed=2" in folder.report.read_text()
    status, said = run(capsys, folder, name="")
    assert status == 2
    assert "No training has ended" in said


def test_a_folder_with_nothing_to_show_has_no_page(capsys, folder):
    folder.root.mkdir()
    save_config(read_config(EXPERIMENT, {}), folder.config)
    assert main(["report", "--workdir", str(folder.root)]) == 2
    assert "neither a training nor an evaluation" in capsys.readouterr().err


def test_a_new_policy_is_that_of_one_config(capsys, folder):
    assert run(capsys, folder, "model.folder=new", "seed=1")[0] == 0
    assert run(capsys, folder, "model.folder=new", "seed=1")[0] == 0
    for name in (EXPERIMENT, "flags_cold_start"):
        status, said = run(capsys, folder, "model.folder=new", name=name)
        assert status == 2
        assert "was begun with another config" in said
    status = main(["train", "--config", "flags_cold_start", "--workdir", str(folder.root)])
    assert status == 2
    assert "was begun with another config" in capsys.readouterr().err


def test_another_policy_is_evaluated_beside_a_training(capsys, folder):
    folder.root.mkdir()
    config = read_config("flags_cold_start", {})
    claim(folder, config)
    folder.policy.mkdir()
    assert run(capsys, folder)[0] == 0
    assert saved_config(folder.config) == config


def test_a_half_written_policy_is_no_trained_one(capsys, folder):
    status, said = run(capsys, folder, name="")
    assert status == 2
    assert "holds no training. Give --workdir of a `jaxagent train`, or --config" in said
    folder.root.mkdir()
    save_config(read_config(EXPERIMENT, {}), folder.config)
    folder.trained.mkdir()
    (folder.trained / "tokenizer.json").touch()
    status, said = run(capsys, folder, name="")
    assert status == 2
    assert "No training has ended" in said
