"""What is asked of a config before a base is built, an agent evaluated, a policy trained."""

import pytest

from jaxagent.cli.checks import checked_agent, checked_base, checked_training
from jaxagent.cli.configs import read_config
from jaxagent.cli.errors import UserError
from jaxagent.cli.main import main

EXPERIMENT = "flags_mmagent_r2_grpo"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sharding.fsdp": 3}, "fsdp=3"),
        ({"packing.row_lengths": (320,)}, "ends at 320 tokens"),
        ({"rollout.sampling.temperature": 0.0}, "scores whole distributions"),
    ],
)
def test_what_the_update_needs_is_asked_of_a_training_alone(changes, said):
    config = read_config(EXPERIMENT, changes)
    assert checked_agent(config) is config
    with pytest.raises(UserError, match=said):
        checked_training(config)


def test_a_base_is_built_without_a_policy():
    config = read_config(EXPERIMENT, {"model.folder": "/no/such/policy"})
    assert checked_base(config) is config
    with pytest.raises(UserError, match="no policy folder"):
        checked_agent(config)


@pytest.mark.parametrize("name", ["data", "model"])
def test_a_folder_at_an_address_is_refused(name):
    config = read_config(EXPERIMENT, {f"{name}.folder": "gs://bucket/x"})
    with pytest.raises(UserError, match=f"config.{name}.folder is 'gs://bucket/x'.*gcsfuse"):
        checked_base(config)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("retrieval.measured=0", "config.retrieval.measured is 0; it must be at least 1"),
        ("data.flags.val_entities=0", "config.data.flags.val_entities is 0"),
        ("data.flags.test_facts=0", "test_facts is 0.0; it must be above 0, or a split is empty"),
    ],
)
def test_a_base_with_an_empty_split_is_refused_before_it_is_built(capsys, tmp_path, flag, said):
    assert main(["kb", "build", "--workdir", str(tmp_path), f"--config.{flag}"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_of_no_split_is_refused(capsys, tmp_path):
    words = ["--workdir", str(tmp_path), "--config", EXPERIMENT, "--config.evaluation.splits=()"]
    assert main(["evaluate", *words]) == 2
    assert "config.evaluation.splits is (), so nothing is asked" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
