"""A work folder is checked before anything long starts, and belongs to one config."""

import os

import pytest

from jaxagent.cli.configs import base_config, read_config, saved_config
from jaxagent.cli.errors import UserError, sentence, told
from jaxagent.cli.work import WorkFolder, claim, open_work_folder

KEPT = ["policy", "checkpoints", "trained", "evaluation/before.jsonl"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written.*--workdir"):
        open_work_folder(str(tmp_path / "file" / "below"))


def test_an_address_is_no_work_folder():
    with pytest.raises(UserError, match="--workdir is 'gs://bucket/run'.*gcsfuse"):
        WorkFolder.at("gs://bucket/run")


def test_opening_a_folder_leaves_nothing_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    open_work_folder(str(tmp_path / "work"))
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("kept", KEPT)
def test_a_folder_begun_with_another_config_is_refused(tmp_path, kept):
    folder = WorkFolder(tmp_path)
    claim(folder, read_config("flags_mmagent_r2_grpo", {"rl.steps": 40}))
    (tmp_path / kept).mkdir(parents=True)
    claim(folder, read_config("flags_mmagent_r2_grpo", {"rl.steps": 40}))
    with pytest.raises(UserError, match="another config .*rl.steps was 40"):
        claim(folder, read_config("flags_mmagent_r2_grpo", {"rl.steps": 41}))


@pytest.mark.parametrize("kept", KEPT)
def test_a_folder_begun_with_nobody_knows_which_config_is_refused(tmp_path, kept):
    (tmp_path / kept).mkdir(parents=True)
    with pytest.raises(UserError, match=r"holds no config\.json.*another --workdir"):
        claim(WorkFolder(tmp_path), base_config())
    assert not (tmp_path / "config.json").exists()


def test_a_run_that_was_refused_before_it_made_anything_can_be_mended(tmp_path):
    folder = WorkFolder(tmp_path)
    claim(folder, read_config("flags_mmagent_r2_grpo", {"rl.steps": 40}))
    mended = read_config("flags_mmagent_r2_grpo", {"rl.steps": 41})
    claim(folder, mended)
    assert saved_config(folder.config) == mended


def test_a_saved_config_comes_back_as_it_was(tmp_path):
    folder = WorkFolder(tmp_path)
    config = read_config("flags_promsa_tn_gspo", {"algorithm.horizon": (0.1, 1.0, 0)})
    claim(folder, config)
    assert saved_config(folder.config) == config


def test_a_folder_without_a_training_is_told_from_one_with(tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json.*another --workdir"):
        saved_config(WorkFolder(tmp_path).config)


def test_a_half_written_config_is_named(tmp_path):
    WorkFolder(tmp_path).config.write_text('{"seed": 0')
    with pytest.raises(UserError, match=r"config\.json"):
        saved_config(WorkFolder(tmp_path).config)


def test_the_systems_errors_become_a_path_and_a_reason():
    error = FileNotFoundError(2, os.strerror(2), "/x/y")
    assert sentence(error) == "/x/y: no such file or directory."


def test_only_named_errors_are_told():
    with pytest.raises(UserError, match="a sentence"), told(ValueError):
        raise ValueError("a sentence")
    with pytest.raises(KeyError), told():
        raise KeyError("a fault keeps its type")


def test_the_defaults_are_locked():
    with pytest.raises(AttributeError):
        base_config().seeed = 1
