"""Hugging Face folders to parameters and back."""

import re
import shutil
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from jaxagent.models.config import ConfigError
from jaxagent.trees import flat, map_named
from jaxagent.weights import params as files
from jaxagent.weights import policies
from jaxagent.weights.folder import is_whole, read_policy, write_policy
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.table import Row
from tests import tiny


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny policy's folder that a test may spoil."""
    return shutil.copytree(tiny.policy_folder(), tmp_path / "policy")


def spoil(folder, change):
    """Rewrites the folder's tensors after `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("max_bytes", [2**30, 100_000])
def test_reading_undoes_writing(tmp_path, max_bytes):
    policy, params = tiny.policy()
    write_policy(tmp_path, policy.model.config, params, template=policy.folder, max_bytes=max_bytes)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_bytes < 2**30)
    config, again = read_policy(tmp_path)
    assert config == policy.model.config
    assert {type(leaf) for leaf in jax.tree.leaves(again)} == {np.ndarray}  # no device holds them
    equal(again, params)


def test_files_of_half_the_size_hold_the_rounded_weights(tmp_path):
    policy, params = tiny.policy()
    config = policy.model.config
    write_policy(tmp_path, config, params, template=policy.folder, dtype="bfloat16")
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < 0.6 * (policy.folder / "model.safetensors").stat().st_size
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf, "bfloat16").astype("float32"), params)
    equal(read_policy(tmp_path).params, rounded)


def test_writing_replaces_what_was_there(folder):
    policy, params = tiny.policy()
    others = tiny.params(policy.model, seed=9)
    for max_bytes, written in ((100_000, others), (2**30, params), (100_000, others)):
        write_policy(folder, policy.model.config, written, template=folder, max_bytes=max_bytes)
        equal(read_policy(folder).params, written)
    assert not (folder / "model.safetensors").exists()


def test_a_card_stays_with_the_weights_that_it_tells_of(folder, tmp_path):
    policy, params = tiny.policy()
    (folder / "card.json").write_text("{}")
    write_policy(tmp_path / "other", policy.model.config, params, template=folder)
    assert is_whole(tmp_path / "other")
    assert not (tmp_path / "other" / "card.json").exists()


def test_a_folder_is_whole_when_all_of_it_was_written(tmp_path, monkeypatch):
    policy, params = tiny.policy()
    words = (tmp_path, policy.model.config, params)
    write_policy(*words, template=policy.folder)
    assert is_whole(tmp_path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "save_tensors", stop)
    with pytest.raises(KeyboardInterrupt):
        write_policy(*words, template=policy.folder)
    assert not is_whole(tmp_path)


def test_transformers_reads_what_we_write_bit_for_bit(tmp_path):
    policy, _ = tiny.policy()
    params = tiny.params(policy.model, seed=5)
    write_policy(tmp_path, policy.model.config, params, template=policy.folder)
    theirs = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    named = dict(theirs.named_parameters())
    ours = flat(params)
    rows = policies.table(policy.model.config)
    assert {key for row in rows for key in row.hf_keys()} == set(named)
    for row in rows:
        layers = [row.imported(named[key].detach().numpy()) for key in row.hf_keys()]
        np.testing.assert_array_equal(
            np.stack(layers).reshape(ours[row.name].shape), ours[row.name]
        )


def test_we_read_what_transformers_writes(tmp_path):
    theirs = Qwen3VLForConditionalGeneration.from_pretrained(
        tiny.policy_folder(), dtype=torch.bfloat16
    )
    theirs.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    _, params = read_policy(tmp_path, dtype="bfloat16")
    _, original = read_policy(tiny.policy_folder(), dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(ml_dtypes.bfloat16)}
    equal(params, original)


def test_devices_get_their_own_parts():
    _, params = tiny.policy()
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))

    def place(name, leaf):
        by_layer = {"text/layers/mlp/up/kernel": (None, "fsdp", "tensor")}
        by_layer |= {"text/embed/table": ("tensor", "fsdp")}
        return NamedSharding(mesh, PartitionSpec(*by_layer.get(name, ())))

    shardings = map_named(place, params)
    _, placed = read_policy(tiny.policy_folder(), shardings=shardings)
    assert placed["text"]["embed"]["table"].addressable_shards[0].data.shape == (128, 16)
    equal(placed, params)


def test_all_problems_come_in_one_message(folder):
    def change(tensors):
        del tensors["model.visual.pos_embed.weight"]
        del tensors["model.language_model.layers.1.mlp.up_proj.weight"]
        tensors["model.visual.extra"] = np.zeros(3, np.float32)
        tensors["model.language_model.norm.weight"] = np.zeros(31, np.float32)

    spoil(folder, change)
    with pytest.raises(WeightsError) as caught:
        read_policy(folder)
    message = str(caught.value)
    assert "(4 problems)" in message
    assert "missing: model.visual.pos_embed.weight (36, 32)" in message
    assert "missing: model.language_model.layers.1.mlp.up_proj.weight (48, 32)" in message
    assert "unknown: model.visual.extra (3,)" in message
    assert "shape: model.language_model.norm.weight is (31,), the config expects (32,)" in message


def test_a_copy_of_a_tied_head_is_not_a_problem(folder):
    def change(tensors):
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"]

    spoil(folder, change)
    equal(read_policy(folder).params, tiny.policy().params)


def test_a_folder_of_another_family_or_none_is_refused(folder):
    with pytest.raises(ConfigError, match=re.escape(str(folder / "nowhere"))):
        read_policy(folder / "nowhere")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="holds a 'llama' model"):
        read_policy(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_policy(folder)


def test_weights_are_not_written_into_a_folder_of_other_sizes(tmp_path):
    policy, params = tiny.policy()
    config = replace(policy.model.config, image_token=3)
    with pytest.raises(ConfigError, match="other sizes"):
        write_policy(tmp_path, config, params, template=policy.folder)


def test_a_pattern_read_backwards_undoes_itself():
    row = Row(
        key="qkv",
        name="qkv",
        pattern="(three n h) d -> d three n h",
        sizes={"three": 3, "n": 2, "h": 4},
    )
    tensor = np.arange(24 * 5.0).reshape(24, 5)
    parameter = row.imported(tensor)
    assert parameter.shape == (5, 3, 2, 4)
    assert parameter[4, 2, 1, 3] == tensor[23, 4]
    np.testing.assert_array_equal(row.exported(parameter), tensor)
    assert row.tensor_shape(parameter.shape) == (24, 5)
