"""`jaxagent parity`: its table, its JSON, its exit status, its refusals."""

import importlib.util
import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from jaxagent.cli import parity
from jaxagent.models import layers, qwen2_vl
from jaxagent.models.rope import Rotation, vision_rotation
from jaxagent.parity import jax_side, policies
from tests.cli.commands import refused, run
from tests.models import bert_twins
from tests.parity import encoder_folders, folders

POLICY = "qwen2_vl, tied, 2 heads a group"
pytestmark = pytest.mark.usefixtures("quickly_compiled")


def test_a_policy_is_told_stage_by_stage(capsys):
    status, out, _ = run(capsys, "parity", str(folders.folder(POLICY)))
    title, heads, *lines = out.splitlines()
    assert status == 0
    assert title.endswith("in JAX and PyTorch, float32, cpu")
    assert heads.split() == ["stage", "largest", "relative", "allowed"]
    assert lines[0].split()[:2] == ["pixel", "values"]
    assert lines[-1].endswith("stages, 0 failed: the same model")


def unturned(height, width, config):
    turned = vision_rotation(height, width, config)
    return Rotation(jnp.ones_like(turned.cos), jnp.zeros_like(turned.sin))


def test_a_fault_ends_with_status_1_and_its_first_stage(capsys, monkeypatch):
    monkeypatch.setattr(qwen2_vl, "vision_rotation", unturned)
    monkeypatch.setattr(jax_side, "vision_rotation", unturned)
    monkeypatch.setattr(
        policies, "whole_rows", lambda *_, **__: iter(())
    )  # long, and behind the fault
    status, out, _ = run(capsys, "parity", str(folders.folder(POLICY)), "--json")
    assert status == 1
    document = json.loads(out)
    assert document["passed"] is False
    assert document["first_failure"] == "vision block 0"
    failed = [row["stage"] for row in document["rows"] if not row["passed"]]
    assert failed[0] == "vision block 0"
    assert "merger" not in failed  # on the states that transformers had, it is right


@pytest.mark.parametrize("dtype", parity.DTYPES)
@pytest.mark.parametrize("family", bert_twins.TWINS)
def test_a_sentence_encoder_is_told_to_its_vectors(capsys, family, dtype):
    folder = str(encoder_folders.sentence_encoder(family))
    status, out, _ = run(capsys, "parity", folder, "--dtype", dtype, "--json")
    document = json.loads(out)
    assert [row["stage"] for row in document["rows"] if not row["passed"]] == []
    assert status == 0
    stages = [row["stage"] for row in document["rows"]]
    assert stages == ["token ids", "hidden states", "sentence embeddings", "sentence cosine"]
    judged = [row["transformers"] for row in document["rows"][1:3]]
    assert all(judged) == (dtype == "bfloat16")


def without_curve(mlp, x):
    return mlp.down(jax.nn.relu(mlp.up(x)))


def test_a_sentence_encoder_with_another_activation_fails(capsys, monkeypatch):
    monkeypatch.setattr(layers.MLP, "__call__", without_curve)
    status, out, _ = run(
        capsys, "parity", str(encoder_folders.sentence_encoder("bert")), "--dtype", "bfloat16"
    )
    assert status == 1
    assert "3 failed: the first is hidden states" in out


@pytest.mark.parametrize("dtype", parity.DTYPES)
def test_an_eva_clip_is_compared_by_the_code_in_its_folder(capsys, tmp_path, dtype):
    folder = encoder_folders.eva_clip(tmp_path / "eva")
    words = ["parity", str(folder), "--dtype", dtype]
    assert "--trust-remote-code" in refused(capsys, *words)
    status, out, _ = run(capsys, *words, "--trust-remote-code", "--json")
    document = json.loads(out)
    assert [row["stage"] for row in document["rows"] if not row["passed"]] == []
    assert status == 0
    assert [row["stage"] for row in document["rows"]] == [
        f"{what} {kind}" for what in ("image", "text") for kind in ("embeddings", "cosine")
    ]


def test_without_pytorch_the_extra_is_named(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name)
    )
    message = refused(capsys, "parity", "anywhere")
    assert "pip install 'jaxagent[parity]'" in message


def test_what_cannot_be_compared_is_one_message(capsys, tmp_path):
    assert "config.json is not there" in refused(capsys, "parity", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    assert "a 'llama' model; qwen2_vl" in refused(capsys, "parity", str(other))
    (other / "config.json").write_text("[]")
    assert "must be an object" in refused(capsys, "parity", str(other))
    (other / "config.json").unlink()
    (other / "open_clip_config.json").write_text("{}")
    assert "open_clip" in refused(capsys, "parity", str(other))


def test_a_wrong_word_is_one_message(capsys):
    assert "float16" in refused(capsys, "parity", "x", "--dtype", "float16")
    assert "tpu" in refused(capsys, "parity", "x", "--device", "tpu")
    assert "Unknown argument '--fast'" in refused(capsys, "parity", "x", "--fast")


def test_a_gpu_that_is_not_there_is_one_message(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = str(folders.folder(POLICY))
    assert "PyTorch finds no GPU" in refused(capsys, "parity", folder, "--device", "gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "JAX finds no GPU" in refused(capsys, "parity", folder, "--device", "gpu")


def test_tensors_that_do_not_fit_are_told_before_anything_runs(capsys, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(folders.folder(POLICY), folder)
    fields = json.loads((folder / "config.json").read_text())
    fields["vision_config"]["depth"] += 1
    (folder / "config.json").write_text(json.dumps(fields))
    message = refused(capsys, "parity", str(folder))
    assert "missing: model.visual.blocks.5." in message
