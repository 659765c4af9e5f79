"""Every published size: its count of parameters, and where each lies on a stated mesh."""

import os
import time
from difflib import unified_diff
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh

from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.sharding import AXES, Rules, ShardingError, explain, partition_specs, policy_rules
from jaxagent.trees import flat, num_parameters
from tests.models.families import CLASSES
from tests.models.sizes import SIZES, Size

GOLDEN = Path(__file__).parents[1] / "golden" / "sharding"


def model(size: Size) -> Model:
    return Model(PolicyConfig.from_hf(size.fields))


def mesh(*, fsdp: int, tensor: int) -> Mesh:
    """A mesh of as many devices as these need; they are never used, so one stands for all."""
    return Mesh(np.full((1, fsdp, tensor, 1), jax.devices()[0]), AXES)


def mesh_of(size: Size) -> Mesh:
    return mesh(fsdp=size.fsdp, tensor=size.tensor)


def rules(model: Model) -> Rules:
    return policy_rules(tied=model.config.text.tied, qkv_bias=model.config.text.qkv_bias)


@pytest.mark.parametrize("name", [name for name in SIZES if SIZES[name].parameters])
def test_a_size_has_the_published_count_of_parameters(name):
    assert num_parameters(model(SIZES[name]).shapes()) == SIZES[name].parameters


def transformers_count(size: Size) -> int:
    """How many parameters transformers' model of the fields has, a tied table counted once."""
    config, kind = CLASSES[size.fields["model_type"]]
    with torch.device("meta"):
        theirs = kind(config(**size.fields))
    return sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_as_many_parameters_as_transformers(name):
    size = SIZES[name]
    assert num_parameters(model(size).shapes()) == transformers_count(size)


@pytest.mark.parametrize("name", SIZES)
def test_the_sharding_table_is_the_golden_one(name):
    size = SIZES[name]
    count = num_parameters(model(size).shapes())
    table = explain(rules(model(size)), model(size).shapes(), mesh_of(size))
    text = (
        f"{name}: {count:,} parameters on a mesh of data=1, fsdp={size.fsdp}, "
        f"tensor={size.tensor}, context=1\n\n{table}\n"
    )
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    before = golden.read_text() if golden.exists() else ""
    changes = "\n".join(unified_diff(before.splitlines(), text.splitlines(), "golden", "now", n=0))
    assert not changes, (
        f"{changes}\nIf this is meant: UPDATE_GOLDEN=1 pytest tests/models/test_sizes.py"
    )


def test_no_golden_table_is_left_without_its_size():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_every_text_matrix_is_cut_along_both_axes_and_no_bias_along_fsdp(name):
    shapes = model(SIZES[name]).shapes()
    specs = flat(partition_specs(rules(model(SIZES[name])), shapes, mesh_of(SIZES[name])))
    for parameter, spec in specs.items():
        axes = {axis for axis in spec if axis is not None}
        if parameter.startswith("vision/") or parameter.endswith("norm/scale"):
            assert axes == set(), parameter
        elif parameter.endswith("/bias"):
            assert axes == {"tensor"}, parameter
        else:
            assert axes == {"fsdp", "tensor"}, parameter
    biases = [one for one in specs if one.startswith("text/") and one.endswith("/bias")]
    assert len(biases) == (0 if name.startswith("Qwen3") else 3)


def test_a_mesh_that_does_not_divide_names_tensor_size_and_axis():
    small = model(SIZES["Qwen2.5-VL-3B-Instruct"])
    with pytest.raises(ShardingError) as error:
        partition_specs(rules(small), small.shapes(), mesh(fsdp=8, tensor=4))
    said = str(error.value)
    for one in ("k/kernel", "k/bias", "v/kernel", "v/bias"):
        assert f"text/layers/attention/{one}: 2 does not divide by tensor=4" in said
    assert "attention/q/" not in said


def test_a_rule_table_without_biases_does_not_fit_a_policy_that_has_them():
    small = model(SIZES["Qwen2-VL-2B-Instruct"])
    bare = policy_rules(tied=True, qkv_bias=False)
    with pytest.raises(ShardingError, match="no rule matches the parameter .*attention/k/bias"):
        partition_specs(bare, small.shapes(), mesh(fsdp=8, tensor=2))


@pytest.mark.parametrize(
    "name", ["Qwen2-VL-72B-Instruct", "Qwen2.5-VL-72B-Instruct", "Qwen3-VL-8B-Instruct"]
)
def test_a_large_size_is_traced_within_ten_seconds(name):
    start = time.process_time()  # other processes do not count
    large = model(SIZES[name])
    vision, merge = large.config.vision, large.config.vision.merge
    grid = (1, 16 * merge, 16 * merge)
    num = 16 * 16

    def loss(params, patches, ids, positions, segments, index):
        features = large.encode_images(params, patches, grid)
        hidden = large.forward(params, ids, positions, segments, features, index)
        return large.logits(params, hidden).sum()

    def of(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    row = of((1, 512), jnp.int32)
    params = jax.tree.map(lambda one: of(one.shape, jnp.bfloat16), large.shapes())
    patches = of((1, num * merge**2, vision.patch_values), jnp.bfloat16)
    traced = jax.jit(jax.grad(loss)).trace(
        params, patches, row, of((3, 1, 512), jnp.int32), row, row
    )
    assert jax.tree.map(jnp.shape, traced.out_info) is not None
    assert time.process_time() - start < 10
