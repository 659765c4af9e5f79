"""Parameters read by any table, cut for any placement, and written back."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from jaxagent.trees import flat, nested
from jaxagent.weights import params as module
from jaxagent.weights.folder import write_policy
from jaxagent.weights.params import read_params, write_params
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.table import Row
from tests import tiny

SIZES = {"three": 3, "n": 4, "h": 2, "c": 2, "y": 2}
LINES = {
    "qkv": ("(three n h) d -> d three n h", (24, 8)),
    "out": ("d (n h) -> n h d", (8, 8)),
    "up": ("f d -> d f", (16, 8)),
    "patch": ("d c y x -> (c y x) d", (8, 2, 2, 4)),
    "turned": ("d (y f) -> (f y) d", (8, 16)),
    "one": ("1 d -> d", (1, 8)),
    "norm": ("d -> d", (8,)),
    "scale": ("->", ()),
}
ROWS = [
    Row(key=f"layers.{{i}}.{name}", name=f"layers/{name}", pattern=line, sizes=SIZES, layers=layers)
    for layers in [range(1, 5)]
    for name, (line, _) in LINES.items()
]
ROWS += [
    Row(key=f"top.{name}", name=f"top/{name}", pattern=line, sizes=SIZES)
    for name, (line, _) in LINES.items()
]
SHAPES = {key: LINES[key.rpartition(".")[2]][1] for row in ROWS for key in row.hf_keys()}


def tensors(seed=0, dtype="float32"):
    numbers = np.random.default_rng(seed)
    return {key: np.asarray(numbers.standard_normal(SHAPES[key])).astype(dtype) for key in SHAPES}


def expected(dtype="float32", source="float32"):
    held = tensors(dtype=source)
    named = {}
    for row in ROWS:
        layers = [row.imported(held[key]).astype(dtype) for key in row.hf_keys()]
        named[row.name] = layers[0] if row.layers is None else np.stack(layers)
    return nested(named)


def shapes():
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, expected()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save_file(tensors(), folder / "model.safetensors")
    return folder


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_on_the_host_are_the_imported_tensors(tmp_path, source, dtype):
    save_file(tensors(dtype=source), tmp_path / "model.safetensors")
    params = read_params(tmp_path, ROWS, shapes(), dtype=dtype)
    assert {type(leaf) for leaf in jax.tree.leaves(params)} == {np.ndarray}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(dtype)}
    equal(params, expected(dtype, source))


AXES = st.sampled_from([(), ("fsdp",), ("tensor",), ("fsdp", "tensor"), ("tensor", "fsdp")])
MESH = {"fsdp": 2, "tensor": 4}
PARAMETERS = {name: leaf.shape for name, leaf in flat(jax.tree.map(np.asarray, expected())).items()}


@st.composite
def specs(draw):
    """A spec for each parameter, of axes that divide it, each mesh axis at most once."""
    chosen = {}
    for name, shape in PARAMETERS.items():
        free, spec = set(MESH), []
        for length in shape:
            axes = draw(AXES)
            if not set(axes) <= free or length % math.prod(MESH[axis] for axis in axes):
                axes = ()
            free -= set(axes)
            spec.append(axes)
        chosen[name] = PartitionSpec(*spec)
    return chosen


@settings(max_examples=25, deadline=None)
@given(specs(), st.permutations(range(8)))
def test_devices_hold_their_parts_in_any_placement(folder, specs, order):
    devices = np.array(jax.devices())[order].reshape(tuple(MESH.values()))
    mesh = Mesh(devices, tuple(MESH))
    shardings = nested({name: NamedSharding(mesh, spec) for name, spec in specs.items()})
    params = read_params(folder, ROWS, shapes(), shardings=shardings)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == shardings
    equal(params, expected())


def test_a_part_is_read_once_however_many_devices_hold_it(folder, monkeypatch):
    read = []
    fill = module.Tensor.fill

    def counted(self, out, shape, index):
        read.append(out.size)
        fill(self, out, shape, index)

    monkeypatch.setattr(module.Tensor, "fill", counted)
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
    shardings = {name: NamedSharding(mesh, PartitionSpec()) for name in flat(shapes())}
    shardings["layers/up"] = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    equal(read_params(folder, ROWS, shapes(), shardings=nested(shardings)), expected())
    assert sum(read) == sum(map(math.prod, SHAPES.values()))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("max_bytes", [2**30, 600])
@pytest.mark.parametrize("placed", ["host", "device", "sharded"])
def test_writing_undoes_reading(folder, tmp_path, dtype, max_bytes, placed):
    params = expected()
    if placed == "device":
        params = jax.tree.map(jnp.asarray, params)
    if placed == "sharded":
        mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
        spec = {"layers/up": (None, "tensor", "fsdp"), "top/qkv": ("tensor",)}
        params = {
            name: jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec.get(name, ()))))
            for name, leaf in flat(params).items()
        }
        params = nested(params)
    write_params(tmp_path, ROWS, params, dtype=dtype, max_bytes=max_bytes)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == (max_bytes == 600)
    written = {}
    for path in files:
        written |= load_file(path)
    assert written.keys() == SHAPES.keys()
    for key, tensor in tensors().items():
        np.testing.assert_array_equal(written[key], tensor.astype(dtype))


def test_transformers_reads_the_several_files_that_are_written(tmp_path):
    policy, params = tiny.policy()
    config = policy.model.config
    write_policy(
        tmp_path, config, params, template=policy.folder, dtype="bfloat16", max_bytes=50_000
    )
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    theirs = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    written = {}
    for path in tmp_path.glob("*.safetensors"):
        written |= load_file(path)
    named = dict(theirs.named_parameters())
    assert named.keys() == written.keys()
    for key, tensor in written.items():
        np.testing.assert_array_equal(
            named[key].detach().float().numpy(), tensor.astype(np.float32)
        )


def refusal(tmp_path, changed, **options):
    save_file(changed, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        read_params(tmp_path, ROWS, shapes(), **options)
    return str(caught.value)


def test_every_problem_is_a_line_and_layers_with_the_same_one_share_it(tmp_path):
    changed = tensors()
    for key in ("layers.1.norm", "layers.2.norm", "layers.4.norm", "layers.3.up", "top.up"):
        del changed[key]
    changed |= {f"extra.{i}.w": np.zeros(3, np.float32) for i in (0, 1, 9)}
    changed["layers.2.qkv"] = np.zeros((8, 24), np.float32)
    changed["layers.3.qkv"] = np.zeros((8, 24), np.float32)
    changed["layers.3.out"] = np.zeros((8, 8), np.int64)
    message = refusal(tmp_path, changed)
    assert message.splitlines()[1:] == [
        "  missing: layers.3.up (16, 8)",
        "  missing: layers.{1..2,4}.norm (8,)",
        "  missing: top.up (16, 8)",
        "  unknown: extra.{0..1,9}.w (3,)",
        "  shape: layers.{2..3}.qkv is (8, 24), the config expects (24, 8)",
        "  dtype: layers.3.out is I64, F64, F32, F16, BF16 can be read",
    ]
    assert message.startswith(f"The tensors of {tmp_path} do not fit its config.json (11 problems)")


def test_unread_tensors_may_be_of_any_dtype(tmp_path):
    changed = tensors() | {"position_ids": np.arange(3)}
    save_file(changed, tmp_path / "model.safetensors")
    equal(read_params(tmp_path, ROWS, shapes(), unused=["position_ids"]), expected())


@pytest.mark.parametrize("key", ["top.up", "top.up.qweight"])
def test_quantised_weights_are_refused_with_what_to_do(tmp_path, key):
    changed = tensors() | {key: np.zeros((16, 8), np.int8)}
    assert "These weights are quantised. Take the folder" in refusal(tmp_path, changed)


def test_problems_that_are_none_of_quantising_do_not_speak_of_it(tmp_path):
    assert "quantised" not in refusal(tmp_path, tensors() | {"extra": np.zeros(3, np.int64)})


def test_older_names_are_read_and_a_tensor_under_both_is_refused(tmp_path):
    changed = {key.replace("top.", "old."): value for key, value in tensors().items()}
    save_file(changed, tmp_path / "model.safetensors")
    renames = [(r"^old\.", "top.")]
    equal(read_params(tmp_path, ROWS, shapes(), renames=renames), expected())
    message = refusal(tmp_path, changed | {"top.up": changed["old.up"]}, renames=renames)
    assert "holds top.up under two names" in message


def test_nothing_is_allocated_before_every_file_is_found_whole(tmp_path, monkeypatch):
    for name in (1, 2):
        chosen = [key for i, key in enumerate(SHAPES) if i % 2 == name % 2]
        path = tmp_path / f"model-0000{name}-of-00002.safetensors"
        save_file({key: tensors()[key] for key in chosen}, path)
    keys = {key: f"model-0000{2 - i % 2}-of-00002.safetensors" for i, key in enumerate(SHAPES)}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": keys}))
    equal(read_params(tmp_path, ROWS, shapes()), expected())
    path.write_bytes(path.read_bytes()[:-1])

    def never(*_):
        raise AssertionError("a parameter was made")

    monkeypatch.setattr(module, "_part", never)
    with pytest.raises(WeightsError, match="is truncated"):
        read_params(tmp_path, ROWS, shapes())
