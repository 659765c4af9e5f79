"""Rule tables must fit the parameters exactly, and the mesh the devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxagent.sharding import (
    MeshSizes,
    ShardingError,
    explain,
    make_mesh,
    param_shardings,
    partition_specs,
)
from jaxagent.trees import flat


def shapes(**named):
    return {
        name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)} for name, shape in named.items()
    }


def test_one_axis_takes_the_devices_that_are_left():
    assert dict(make_mesh(MeshSizes(tensor=2)).shape) == {
        "data": 4,
        "fsdp": 1,
        "tensor": 2,
        "context": 1,
    }


@pytest.mark.parametrize(
    "sizes", [MeshSizes(data=3), MeshSizes(data=-1, fsdp=-1), MeshSizes(data=-1, tensor=3)]
)
def test_a_mesh_that_does_not_fill_the_devices_is_refused(sizes):
    with pytest.raises(ShardingError, match="mesh"):
        make_mesh(sizes)


def test_the_first_rule_that_matches_decides():
    rules = ((r"^a/", P("tensor")), (r"kernel$", P()))
    specs = partition_specs(rules, shapes(a=(4,), b=(4,)), make_mesh(MeshSizes(tensor=2)))
    assert flat(specs) == {"a/kernel": P("tensor"), "b/kernel": P()}


def test_every_misfit_is_in_the_one_error():
    mesh = make_mesh(MeshSizes(data=2, tensor=4))
    rules = ((r"^a/", P("tensor")), (r"^c/", P()), (r"^d/", P(None, "data")))
    with pytest.raises(ShardingError) as error:
        partition_specs(rules, shapes(a=(6,), b=(4,), d=(4,)), mesh)
    text = str(error.value)
    assert "no rule matches the parameter b/kernel" in text
    assert "no parameter needs the rule '^c/'" in text
    assert "a/kernel: 6 does not divide by tensor=4" in text
    assert "d/kernel has 1 dimensions, but its rule names 2" in text


def test_explain_shows_what_lies_on_one_device():
    mesh = make_mesh(MeshSizes(data=1, fsdp=4, tensor=2))
    rules = ((r"^a/", P("fsdp", "tensor")), (r"^b/", P()))
    assert explain(rules, shapes(a=(8, 6), b=(3,)), mesh).splitlines() == [
        "parameter  shape   on a device  spec",
        "a/kernel   (8, 6)  (2, 3)       fsdp, tensor",
        "b/kernel   (3,)    (3,)         replicated",
    ]


def test_shardings_follow_the_table():
    mesh = make_mesh(MeshSizes(fsdp=8, data=1))
    (sharding,) = jax.tree.leaves(param_shardings(((r"", P("fsdp")),), shapes(a=(8,)), mesh))
    placed = jax.device_put(jnp.arange(8.0), sharding)
    assert placed.addressable_shards[3].data.tolist() == [3.0]
