"""Orbax folders: the same bits back, straight onto a mesh, and what is refused."""

import json
import shutil
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.sharding import MeshSizes, make_mesh, param_shardings, policy_rules
from jaxagent.trees import Params, flat, nested, num_parameters
from jaxagent.weights.folder import read_config, read_policy, write_orbax_policy, write_policy
from jaxagent.weights.orbax import HEADER, PARAMS, orbax_dtype, read_orbax, write_orbax
from jaxagent.weights.safetensors import WeightsError
from tests.models import families

FAMILIES = list(families.ONE_OF_EACH)
UNTIED = "qwen3_vl, untied, 7 heads a group"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """An orbax folder of the untied Qwen3-VL."""
    folder = tmp_path_factory.mktemp("orbax")
    config, params = read_policy(families.folder(UNTIED))
    write_orbax(folder, config, params, dtype="float32")
    return folder


@pytest.fixture
def copy(written, tmp_path) -> Path:
    return shutil.copytree(written, tmp_path / "copy")


def of(folder: Path, **how) -> Params:
    config = read_config(families.folder(UNTIED))
    return read_orbax(folder, config, Model(config).shapes(), **how)


def same(one: Params, other: Params) -> bool:
    one, other = flat(one), flat(other)
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and np.array_equal(np.asarray(one[name]), np.asarray(other[name]))
        for name in one
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_come_back_bit_for_bit(family, dtype, tmp_path):
    config, params = read_policy(families.folder(families.ONE_OF_EACH[family]), dtype=dtype)
    write_orbax(tmp_path, config, params, dtype=dtype)
    assert same(read_orbax(tmp_path, config, Model(config).shapes(), dtype=dtype), params)


def test_the_header_says_what_made_the_arrays(written):
    config = read_config(families.folder(UNTIED))
    header = json.loads((written / HEADER).read_text())
    assert header["dtype"] == "float32"
    assert header["parameters"] == num_parameters(Model(config).shapes())
    assert header["arrays"] == len(flat(Model(config).shapes()))
    assert header["config"]["family"] == "qwen3_vl"
    assert {"jax", "orbax-checkpoint"} < set(header["versions"])


def test_arrays_are_rounded_when_written_and_widened_when_read(tmp_path):
    config, params = read_policy(families.folder(UNTIED))
    write_orbax(tmp_path, config, params, dtype="bfloat16")
    rounded = jax.tree.map(lambda one: one.astype(jnp.bfloat16).astype(np.float32), params)
    assert same(read_orbax(tmp_path, config, Model(config).shapes()), rounded)


def test_a_folder_restores_straight_onto_a_mesh(written):
    config = read_config(families.folder(UNTIED))
    shapes = Model(config).shapes()
    rules = policy_rules(tied=config.text.tied, qkv_bias=config.text.qkv_bias)
    placed = param_shardings(rules, shapes, make_mesh(MeshSizes(data=2, fsdp=4)))
    found = of(written, shardings=placed)
    for name, array in flat(found).items():
        assert array.sharding == flat(placed)[name], name
    assert same(found, of(written))
    table = flat(found)["text/embed/table"]
    assert table.addressable_shards[0].data.shape == (table.shape[0], table.shape[1] // 4)


def test_an_orbax_program_of_its_own_reads_the_arrays(written):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        shapes = Model(read_config(families.folder(UNTIED))).shapes()
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        target = jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=device), shapes
        )
        assert same(reader.restore(written / PARAMS, target), of(written))


def test_progress_counts_every_array(tmp_path):
    told = []
    config, params = read_policy(families.folder(UNTIED))
    write_orbax(tmp_path, config, params, dtype="float32", progress=lambda *said: told.append(said))
    read_orbax(tmp_path, config, Model(config).shapes(), progress=lambda *said: told.append(said))
    total = len(flat(params))
    assert told == [
        (what, done, total)
        for what in ("Writing parameters", "Reading parameters")
        for done in range(1, total + 1)
    ]


def test_a_number_beyond_float16_is_refused(tmp_path):
    config, params = read_policy(families.folder(UNTIED))
    named = flat(params)
    named["text/norm/scale"] = named["text/norm/scale"] * np.float32(1e6)
    with pytest.raises(WeightsError, match="text.norm.scale has numbers beyond float16's 65504"):
        write_orbax(tmp_path, config, nested(named), dtype="float16")


def test_arrays_that_do_not_fit_the_config_come_in_one_message(tmp_path):
    config, params = read_policy(families.folder(UNTIED))
    named = flat(params)
    named["text/normal/scale"] = named.pop("text/norm/scale")
    named["vision/patch/bias"] = named["vision/patch/bias"][:-1]
    write_orbax(tmp_path, config, nested(named), dtype="float32")
    with pytest.raises(WeightsError) as error:
        of(tmp_path)
    assert "(3 problems)" in str(error.value)
    assert "missing: text/norm/scale (112,)" in str(error.value)
    assert "unknown: text/normal/scale (112,)" in str(error.value)
    assert "shape: vision/patch/bias is (31,), the config expects (32,)" in str(error.value)


def test_another_policys_header_is_refused(copy):
    config = PolicyConfig.from_hf(
        json.loads((families.folder("qwen3_vl, tied, 2 heads a group") / "config.json").read_text())
    )
    with pytest.raises(WeightsError, match="tells of a policy of other sizes"):
        read_orbax(copy, config, Model(config).shapes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no object"),
        ("{}", "lacks config"),
    ],
)
def test_a_missing_or_broken_header_is_refused(copy, content, said):
    (copy / HEADER).unlink()
    if content is not None:
        (copy / HEADER).write_text(content)
    with pytest.raises(WeightsError, match=said):
        of(copy)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("dtype", "int8", "says dtype 'int8'; it is one of float32, bfloat16, float16"),
        ("dtype", "", "says dtype ''"),
        ("dtype", "bogus", "says dtype 'bogus'"),
        ("dtype", 4, "says dtype 4"),
        ("dtype", ["float32"], "says dtype .'float32'."),
        ("config", [], "says config .., which is no dict"),
        ("arrays", 1.5, "says arrays 1.5, which is no int"),
        ("parameters", True, "says parameters True, which is no int"),
        ("versions", "0.1", "says versions '0.1', which is no dict"),
    ],
)
def test_a_header_whose_field_is_of_another_type_is_refused(copy, field, value, said):
    fields = json.loads((copy / HEADER).read_text())
    (copy / HEADER).write_text(json.dumps(fields | {field: value}))
    for read in (of, orbax_dtype):
        with pytest.raises(WeightsError, match=f"header.json {said}.*convert the policy again"):
            read(copy)


def largest(folder: Path) -> Path:
    return max(folder.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("torn", ["cut", "gone", "no tree"])
def test_a_torn_folder_is_one_message(copy, torn):
    if torn == "cut":
        path = largest(copy / PARAMS)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif torn == "gone":
        largest(copy / PARAMS).unlink()
    else:
        (copy / PARAMS / "_METADATA").unlink()
    with pytest.raises(WeightsError, match=r"params cannot be read \(.*convert the policy again"):
        of(copy)


def test_a_folder_keeps_one_kind_of_weights(tmp_path):
    source = families.folder(UNTIED)
    config, params = read_policy(source)
    for folder, first, others in (
        (tmp_path / "files", write_policy, [write_orbax_policy]),
        (tmp_path / "arrays", write_orbax_policy, [write_policy, write_orbax_policy]),
    ):
        first(folder, config, params, template=source)
        before = sorted(folder.rglob("*"))
        for write, template in product(others, (source, folder)):
            with pytest.raises(WeightsError, match="holds other weights in (model.safet|params)"):
                write(folder, config, jax.tree.map(np.zeros_like, params), template=template)
        assert sorted(folder.rglob("*")) == before
        assert same(read_policy(folder).params, params)
