"""What a user gets wrong in a training: one message, and nothing is lost."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxagent.cli import build
from jaxagent.cli.configs import config_flags, read_config, save_config
from jaxagent.cli.main import main
from jaxagent.sharding import ShardingError
from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from jaxagent.training.step import Learner, NonFiniteGradient, Update
from tests.cli.commands import EXPERIMENT, agent_flags, refused


def test_a_missing_policy_folder_is_refused(capsys, work, tmp_path):
    flags = [*agent_flags(work), "--config.model.folder=/no/such/policy"]
    message = refused(capsys, "evaluate", "--workdir", str(tmp_path / "w"), *flags)
    assert "no policy folder /no/such/policy" in message


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model.vision=forzen", "Did you mean 'frozen'?"),
        ("model.saved_dtype=float16", "config.model.saved_dtype is 'float16'. Did you mean"),
        ("model.folder=shipped/prosma", "Did you mean 'promsa'?"),
        ("evaluation.when=befor", "Did you mean 'before'?"),
        ("evaluation.splits=unseen_entities", "Did you mean 'unseen_entity'?"),
        ("evaluation.splits=train,train", "is ('train', 'train'); each may stand once"),
        ("rl.samples=1", "rl.samples is 1; it must be at least 2"),
        ("data.flags.seed=4294967296", "data.flags.seed is 4294967296; it must be below 2**32"),
        ("data.folder=~nosuchuser/kb", "config.data.folder is '~nosuchuser/kb'"),
        ("model.folder=", "config.model.folder is empty; give a path"),
        ("evaluation.samples=0", "config.evaluation.samples is 0; it must be at least 1"),
        ("evaluation.temperature=-1", "temperature is -1.0"),
        ("method.name=prosma", "config.method.name is 'prosma'. Did you mean 'promsa'?"),
        ("algorithm.name=grop", "Did you mean 'grpo'?"),
        ("algorithm.name=sft", "config.algorithm.name is 'sft', which learns from no reward"),
        ("algorithm.old=tariner", "Did you mean 'trainer'?"),
        ("algorithm.clip=low,high", "config.algorithm.clip is ('low', 'high')"),
        ("algorithm.clip=(0.1,)", "it is (low, high) or ()"),
        ("data.families=singel", "Did you mean 'single'?"),
        ("sft.batch=0", "config.sft.batch is 0; it must be at least 1"),
        ("seed=-1", "config.seed is -1; it must be at least 0"),
        ("checkpoint.every=0", "config.checkpoint.every is 0"),
        ("packing.chunk=0", "config.packing.chunk is 0"),
        ("packing.row_lengths=(320,)", "ends at 320 tokens, but a dialogue may hold 768"),
        ("packing.image_tokens=64", "is 64 tokens, but a dialogue may hold 768"),
        ("data.flags.query=tweemoji", "data.flags.query is 'tweemoji', no artist of flags. Did"),
        ("data.flags.base=twemoji", "data.flags.base and query are both 'twemoji'"),
        ("retrieval.text_encoder=minilmm", "text_encoder is 'minilmm'. Did you mean 'minilm'?"),
        ("retrieval.text_encoder=bm25", "Allowed: lexical, minilm."),
        ("warm_start.levels=L9", "warm_start.levels holds 'L9'. Allowed: L0, L1, L2, L3"),
        ("warm_start.views=0", "warm_start.views is 0; it must be 1 to 1000"),
        ("image_encoder.measured_views=0", "image_encoder.measured_views is 0"),
        ("rl.minutes=-1", "config.rl.minutes is -1.0; it must be at least 0"),
        ("rollout.sampling.top_k=5", "the update scores whole distributions"),
        ("model.sizes.width=0", "config.model.sizes.width is 0; it must be at least 1"),
        ("model.sizes.heads=3", "model.sizes has 3 heads and 2 key heads"),
        ("model.sizes.rope_theta=0", "model.sizes.rope_theta is 0.0; it must be above 0"),
        ("data.flags.seed=-1", "data.flags.seed is -1"),
        ("retrieval.image_index.leaves=-3", "leaves is -3; it must be at least 0"),
        ("retrieval.text_index.reorder=-1", "reorder is -1; it must be at least 0"),
        ("retrieval.text_index.training_threads=0", "is 0; it must be at least 1"),
        ("rollout.tool_retries=-1", "rollout.tool_retries is -1; it must be at least 0"),
        ("rollout.tool_seconds=0", "rollout.tool_seconds is 0.0; it must be above 0"),
        ("rollout.max_failure_rate=1.5", "rollout.max_failure_rate is 1.5; it must be from 0"),
        ("rollout.feature_bytes=-1", "rollout.feature_bytes is -1"),
        ("algorithm.clip=(-1.0,-3.0)", "algorithm.clip is (-1.0, -3.0); both must be at least 0"),
        ("optimizer.beta1=1", "optimizer.beta1 is 1.0; it must be from 0 up to below 1"),
        ("optimizer.beta2=-0.1", "optimizer.beta2 is -0.1"),
        ("optimizer.epsilon=0", "optimizer.epsilon is 0.0; it must be above 0"),
        ("optimizer.clip_norm=0", "optimizer.clip_norm is 0.0; it must be above 0"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1.0; it must be at least 0"),
        ("image_encoder.learning_rate=-1", "image_encoder.learning_rate is -1.0"),
        ("image_encoder.temperature=0", "image_encoder.temperature is 0.0; it must be above 0"),
        ("packing.call_tokens=0", "packing.call_tokens is 0; it must be at least 1"),
        ("packing.row_lengths=(1,)", "packing.row_lengths is (1,); it must hold ascending"),
        ("warm_start.learning_rate=-1", "warm_start.learning_rate is -1.0"),
        ("warm_start.query_share=1.5", "warm_start.query_share is 1.5; it must be from 0 to 1"),
        ("warm_start.twisted=-0.5", "warm_start.twisted is -0.5"),
        ("sft.fiction=1.5", "sft.fiction is 1.5; it must be from 0 to 1"),
        ("sft.reworded=-1", "sft.reworded is -1.0"),
        ("sft.single=2", "sft.single is 2.0"),
        ("sft.max_tokens=0", "config.sft.max_tokens is 0; it must be at least 1"),
        ("sft.verdict_weight=-1", "config.sft.verdict_weight is -1.0; it must be at least 0"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_built_or_written(capsys, tmp_path, flag, said):
    words = ["train", "--config", EXPERIMENT, "--workdir", str(tmp_path), f"--config.{flag}"]
    assert said in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_that_does_not_fit_is_refused_before_anything_runs(capsys, work, tmp_path):
    flags = [*agent_flags(work), "--config.sharding.fsdp=3"]
    message = refused(capsys, "train", "--workdir", str(tmp_path / "w"), *flags)
    assert "fsdp=3" in message


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model.sizes.vocab=100", "vocab=100 is too small"),
        ("model.sizes.head_size=15", "head_dim=15 is odd"),
        ("model.sizes.vision_heads=3", "not a multiple of 4 x num_heads=3"),
        ("model.sizes.positions=15", "num_position_embeddings=15 is not a square"),
        ("warm_start.batch=200", "warm_start.batch is 200, but the base has"),
    ],
)
def test_a_new_policy_that_cannot_be_made_is_the_users_to_mend(capsys, work, tmp_path, flag, said):
    flags = [*agent_flags(work), "--config.model.folder=new", "--config.warm_start.steps=1"]
    flags += ["--config.model.sizes.vocab=640", f"--config.{flag}"]
    assert said in refused(capsys, "train", "--workdir", str(tmp_path), *flags)


@pytest.mark.parametrize(
    "words", [["evaluate"], ["train", "--config.evaluation.when=()"], ["kb", "build"]]
)
def test_a_drawing_that_was_spoilt_since_the_build_is_named(capsys, work, tmp_path, words):
    shutil.copytree(work / "kb", tmp_path / "kb")
    drawings = {str(one) for one in (tmp_path / "kb" / "drawings" / "twemoji").glob("*.png")}
    for drawing in map(Path, drawings):
        drawing.write_bytes(drawing.read_bytes()[:100])  # of which Pillow's error names no file
    command = [word for word in words if not word.startswith("--")]
    flags = [*agent_flags(work), *words[len(command) :]]
    flags += [f"--config.data.folder={tmp_path / 'kb'}"]
    message = refused(capsys, *command, "--workdir", str(tmp_path / "w"), *flags)
    assert message.removeprefix("The drawing ").partition(" cannot be read")[0] in drawings
    assert f"Delete {tmp_path / 'kb'}; the same command builds it again" in message


@pytest.mark.parametrize(
    "words", [["evaluate"], ["train"], ["train", "--config.evaluation.when=()"]]
)
def test_a_prompt_that_does_not_fit_is_the_users_to_mend(capsys, work, tmp_path, words):
    command, *more = words
    flags = [*agent_flags(work), "--config.rollout.context=64", *more]
    message = refused(capsys, command, "--workdir", str(tmp_path), *flags)
    assert "leaves no room in rollout.context = 64. Raise it" in message


def test_a_torn_evaluation_before_training_is_named(capsys, work, tmp_path):
    config = read_config(EXPERIMENT, config_flags(agent_flags(work)[2:]))
    save_config(config, tmp_path / "config.json")
    torn = tmp_path / "evaluation" / "before.jsonl"
    torn.parent.mkdir()
    torn.write_text('{"id": "q0#0", "da')
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work))
    assert f"The last line of {torn} is torn. Delete the file" in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (Update, "learner", ShardingError("The rule table does not fit the parameters.")),
        (Checkpoints, "restore", CheckpointError("It was saved beside other frozen parameters.")),
        (Checkpoints, "restore", NonFiniteGradient(Learner(np.int32(3), {}, {}, ()), ["table"])),
    ],
)
def test_what_does_not_fit_a_training_is_the_users_to_mend(
    capsys, work, tmp_path, monkeypatch, kind, name, error, changes
):
    def fails(self, given):
        error.add_note("Its micro-batches are kept.")
        raise error

    monkeypatch.setattr(kind, name, fails)
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work), *flags)
    assert f"{error} Its micro-batches are kept." in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
def test_a_training_on_no_question_is_refused(capsys, work, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(build.World, "questions", lambda *_, **__: [])
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work), *flags)
    assert "no training question of config.data.families ('single'" in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
def test_a_fault_of_the_program_in_a_training_keeps_its_traceback(
    work, tmp_path, monkeypatch, changes
):
    def fails(self, given):
        raise ValueError("zip() argument 2 is shorter than argument 1")

    monkeypatch.setattr(Checkpoints, "restore", fails)
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    with pytest.raises(ValueError, match="zip"):
        main(["train", "--workdir", str(tmp_path), *agent_flags(work), *flags])
