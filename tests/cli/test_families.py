"""A policy of another family, and one as orbax arrays, through the commands from end to end."""

import json
import shutil
from pathlib import Path

import pytest

from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.trees import flat
from jaxagent.weights.folder import read_config, read_policy, write_policy
from tests import tiny
from tests.cli.commands import agent_flags, refused, run
from tests.models import families

CASE = "qwen2_5_vl, tied, 1 head a group, uneven groups of blocks"
TRAINING = [
    "rl.steps=0",
    "evaluation.when=()",
    "sft.steps=1",
    "sft.batch=1",
    "sft.traces=40",
    "sft.single=0.5",
    "sft.reworded=0",  # words that mean nothing are many tokens to so small a policy
    "sft.max_tokens=768",
    "packing.row_lengths=(768,)",
    "rollout.context=768",
    "method.mmagent_r2.max_turns=8",
    "method.mmagent_r2.max_tokens=64",
]


@pytest.fixture(scope="module")
def policy(work, tmp_path_factory) -> Path:
    """A whole folder of a tiny Qwen2.5-VL beside the tokenizer of the tests' own policy."""
    folder = shutil.copytree(work / "policy", tmp_path_factory.mktemp("family") / "policy")
    own = json.loads((folder / "config.json").read_text())
    ids = {name: value for name, value in own.items() if name.endswith("_token_id")}
    fields = families.hf_fields(families.CASES[CASE]) | ids
    fields["text_config"]["vocab_size"] = own["text_config"]["vocab_size"]
    fields["model_type"] = "qwen2_5_vl"
    (folder / "config.json").write_text(json.dumps(fields))
    images = json.loads((folder / "preprocessor_config.json").read_text())
    images["patch_size"] = fields["vision_config"]["patch_size"]
    images["size"] = {"shortest_edge": 24**2, "longest_edge": 24**2}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    config = PolicyConfig.from_hf(fields)
    write_policy(folder, config, tiny.params(Model(config)), template=folder)
    return folder


def flags(work: Path, policy: Path) -> list[str]:
    return [*agent_flags(work), f"--config.model.folder={policy}"]


@pytest.mark.slow
def test_qwen2_5_vl_as_orbax_arrays_is_evaluated(capsys, work, policy, tmp_path):
    assert run(capsys, "convert", str(policy), str(tmp_path / "orbax"))[0] == 0
    words = ["evaluate", "--workdir", str(tmp_path / "run"), *flags(work, tmp_path / "orbax")]
    words += ["--config.evaluation.questions=1", "--config.evaluation.splits=('unseen_entity',)"]
    assert run(capsys, *words)[0] == 0
    (row,) = (tmp_path / "run" / "evaluation" / "evaluation.jsonl").read_text().splitlines()
    assert json.loads(row)["split"] == "unseen_entity"


@pytest.mark.slow
def test_qwen2_5_vl_is_trained_by_the_command(capsys, work, policy, tmp_path):
    words = ["train", "--workdir", str(tmp_path), *flags(work, policy)]
    words += [f"--config.{field}" for field in TRAINING]
    status, _, err = run(capsys, *words)
    assert status == 0, err
    trained = tmp_path / "trained"
    assert read_config(trained) == read_config(policy)
    before, after = flat(read_policy(policy).params), flat(read_policy(trained).params)
    for name, value in before.items():
        assert (after[name] == value).all() == name.startswith("vision/"), name


def test_a_qwen2_5_vl_without_its_preprocessing_is_refused_at_the_door(
    capsys, work, policy, tmp_path
):
    spoilt = shutil.copytree(policy, tmp_path / "policy")
    (spoilt / "preprocessor_config.json").unlink()
    words = ["evaluate", "--workdir", str(tmp_path / "run"), *flags(work, spoilt)]
    assert "preprocessor_config.json" in refused(capsys, *words)
