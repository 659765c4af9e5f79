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
        ({"packing.image_tokens": 64}, "image_tokens is 64 tokens, but a dialogue may hold 768"),
        (
            {"rl.steps": 0, "sft.steps": 1, "sft.max_tokens": 1000, "rollout.context": 2000},
            r"ends at 960 tokens, but a trace may hold 1000 \(config.sft.max_tokens\)",
        ),
        (
            {"rl.steps": 0, "sft.steps": 1, "sft.max_tokens": 320, "packing.image_tokens": 319},
            "image_tokens is 319 tokens, but a trace may hold 320",
        ),
        (
            {"sharding.data": 1, "sharding.tensor": 8},
            r"\(data=1, fsdp=1, tensor=8, context=1\) does not divide the policy in "
            r"(.|\n)*attention/q/kernel: 4 does not divide by tensor=8",
        ),
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
        ("data.families=()", "config.data.families is (), so nothing is asked. Give at least one"),
        ("data.flags.families=()", "config.data.flags.families is (), so nothing is asked"),
        (
            "data.families=compare --config.data.flags.families=single",
            "config.data.families is ('compare',), and config.data.flags.families makes none",
        ),
        ("data.flags.test_facts=0", "test_facts is 0.0; it must be above 0, or a split is empty"),
    ],
)
def test_a_base_with_an_empty_split_is_refused_before_it_is_built(capsys, tmp_path, flag, said):
    flags = f"--config.{flag}".split()
    assert main(["kb", "build", "--workdir", str(tmp_path), *flags]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_no_longer_than_a_dialogue():
    changes = {"rl.steps": 0, "sft.steps": 1, "sft.max_tokens": 1000, "rollout.context": 960}
    config = read_config(EXPERIMENT, changes)
    assert checked_training(config) is config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json is not JSON"),
        ('{"model_type": "llama"}', "holds a 'llama' model; the families that can be read are"),
    ],
)
def test_a_policy_folder_that_cannot_be_read_is_refused_before_anything_is_built(
    tmp_path, text, said
):
    (tmp_path / "config.json").write_text(text)
    config = read_config(EXPERIMENT, {"model.folder": str(tmp_path)})
    with pytest.raises(UserError, match=said):
        checked_agent(config)


@pytest.mark.parametrize("name", ["before", "after", "", "../x", "a/b", "a\\b"])
def test_an_evaluation_keeps_to_a_file_of_its_own(capsys, tmp_path, name):
    words = ["--workdir", str(tmp_path), "--config", EXPERIMENT, "--name", name]
    assert main(["evaluate", *words]) == 2
    assert f"--name is {name!r}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_of_no_split_is_refused(capsys, tmp_path):
    words = ["--workdir", str(tmp_path), "--config", EXPERIMENT, "--config.evaluation.splits=()"]
    assert main(["evaluate", *words]) == 2
    assert "config.evaluation.splits is (), so nothing is asked" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
