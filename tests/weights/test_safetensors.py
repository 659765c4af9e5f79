"""Safetensors files opened, read by ranges, refused when harmed, and written."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from jaxagent.weights import safetensors
from jaxagent.weights.safetensors import WeightsError, open_tensors, save_tensors

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
DTYPES = ("float64", "float32", "float16", "bfloat16")


def numbers(seed, names="abcd"):
    drawn = np.random.default_rng(seed)
    return {name: drawn.standard_normal((3, 5)).astype(np.float32) for name in names}


def save(folder, tensors, *, dtype="float32", max_bytes=2**30):
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    save_tensors(folder, shapes, tensors.__getitem__, dtype=dtype, max_bytes=max_bytes)


def whole(tensor, dtype="float32"):
    out = np.empty(tensor.shape, dtype)
    tensor.fill(out, tensor.shape, (slice(None),) * out.ndim)
    return out


def opened(folder):
    return {key: whole(tensor) for key, tensor in open_tensors(folder).items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for key in left:
        np.testing.assert_array_equal(left[key], right[key])


def write_raw(path, header, num_bytes=0):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(num_bytes))


@pytest.fixture
def folder(tmp_path):
    """Two files and their index, written by the format's own library."""
    tensors = numbers(0)
    save_file({key: tensors[key] for key in "ab"}, tmp_path / FIRST, metadata={"format": "pt"})
    save_file({key: tensors[key] for key in "cd"}, tmp_path / SECOND, metadata={"format": "pt"})
    write_index(tmp_path)
    return tmp_path


def write_index(folder, **changes):
    weight_map = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND} | changes
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_of_several_files_are_those_of_the_formats_own_reader(folder):
    assert_equal(opened(folder), load_file(folder / FIRST) | load_file(folder / SECOND))


def test_the_single_file_is_read_before_an_index(folder):
    save_file(numbers(1), folder / SINGLE)
    assert_equal(opened(folder), numbers(1))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_numbers_are_converted_once_from_the_files_dtype(tmp_path, source, target):
    values = np.random.default_rng(0).standard_normal((7, 3)).astype(source)
    save_file({"a": values}, tmp_path / SINGLE)
    read = whole(open_tensors(tmp_path)["a"], target)
    np.testing.assert_array_equal(read, values.astype(target))


@st.composite
def parts(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, length)] * 2))) for length in shape]
    return shape, tuple(slice(*bound) for bound in bounds)


@settings(deadline=None)
@given(parts(), st.sampled_from(["float32", "bfloat16"]), st.sampled_from([8, 40, 2**20]))
def test_any_part_is_the_slice_of_the_tensor_in_blocks_of_any_size(
    tmp_path_factory, part, target, block
):
    shape, index = part
    folder = tmp_path_factory.mktemp("parts")
    values = np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)
    save_file({"before": np.ones(3, np.float32), "x": np.asarray(values)}, folder / SINGLE)
    out = np.empty(values[index].shape, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors, "_BLOCK", block)
        open_tensors(folder)["x"].fill(out, shape, index)
    np.testing.assert_array_equal(out, values[index].astype(target))


def test_a_file_that_shrank_since_it_was_opened_is_refused(folder):
    tensors = open_tensors(folder)
    os.truncate(folder / FIRST, (folder / FIRST).stat().st_size - 1)
    with pytest.raises(WeightsError, match="it ends too early"):
        [whole(tensor) for tensor in tensors.values()]


def single(folder, header, num_bytes=0):
    write_raw(folder / SINGLE, header, num_bytes)


def entry(first=0, last=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def replaced(folder, name, content):
    (folder / name).write_bytes(content)


def as_directory(folder, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()


def emptied(folder, *names):
    for path in folder.iterdir():
        path.unlink()
    for name in names:
        (folder / name).write_bytes(b"x")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
HARMS = {
    "truncated": (
        lambda f: os.truncate(f / SECOND, (f / SECOND).stat().st_size - 1),
        r"-00002.safetensors is truncated: \d+ bytes where its header needs \d+",
    ),
    "longer": (
        lambda f: replaced(f, FIRST, (f / FIRST).read_bytes() + b"x"),
        "has 1 bytes after its tensors",
    ),
    "empty": (lambda f: replaced(f, FIRST, b""), "truncated or not a safetensors file .0 bytes"),
    "short": (lambda f: replaced(f, FIRST, b"abc"), "truncated or not a safetensors file .3 bytes"),
    "huge header": (lambda f: replaced(f, FIRST, b"\xff" * 99), "not a safetensors file .99 bytes"),
    "not JSON": (lambda f: single(f, b"x" * 40), "corrupt header"),
    "not UTF-8": (lambda f: single(f, b'{"\xff":{}}'), "corrupt header"),
    "deep": (lambda f: single(f, b"[" * 100_000), "corrupt header"),
    "a list": (lambda f: single(f, []), "corrupt header"),
    "a key twice": (lambda f: single(f, b'{"a":1,"a":1}'), "corrupt header"),
    "metadata": (lambda f: single(f, {"__metadata__": {"a": 1}}), "corrupt header"),
    "no entry": (lambda f: single(f, {"a": 3}), "a has no dtype, shape and data_offsets"),
    "no dtype": (lambda f: single(f, {"a": entry(dtype=None)}, 8), "a has no dtype"),
    "no shape": (lambda f: single(f, {"a": entry(shape=None)}, 8), "a has no dtype"),
    "half a length": (lambda f: single(f, {"a": entry(shape=(2.0,))}, 8), "a has no dtype"),
    "true as a length": (lambda f: single(f, {"a": entry(0, 4, shape=(True,))}, 4), "a has no"),
    "negative length": (lambda f: single(f, {"a": entry(shape=(-1, -2))}, 8), "a has no dtype"),
    "negative offset": (lambda f: single(f, {"a": entry(-8, 0)}), "a has no dtype"),
    "backwards": (lambda f: single(f, {"a": entry(8, 0)}, 8), "a has no dtype"),
    "other size": (lambda f: single(f, {"a": entry(0, 4)}, 4), r"4 bytes where F32 \(2,\) needs 8"),
    "overlap": (
        lambda f: single(f, {"a": entry(), "b": entry(4, 12)}, 12),
        "b overlaps the tensor before it",
    ),
    "hole": (lambda f: single(f, {"a": entry(), "b": entry(12, 20)}, 20), "b comes after a hole"),
    "git-lfs": (lambda f: replaced(f, FIRST, LFS), "git-lfs pointer.*git lfs pull"),
    "git-lfs index": (lambda f: replaced(f, INDEX, LFS), "git-lfs pointer.*git lfs pull"),
    "directory": (lambda f: as_directory(f, FIRST), "is not a file"),
    "single directory": (lambda f: as_directory(f, SINGLE), "model.safetensors is not a file"),
    "index directory": (lambda f: as_directory(f, INDEX), "index.json cannot be read .Is a direc"),
    "nothing": (emptied, "holds no model.safetensors and no model.safetensors.index.json. Point"),
    "pickles": (
        lambda f: emptied(f, "pytorch_model-2.bin", "pytorch_model-1.bin"),
        "pytorch_model-1.bin, pytorch_model-2.bin.* Convert them with transformers",
    ),
    "missing files": (
        lambda f: [(f / name).unlink() for name in (FIRST, SECOND)],
        f"names files that are not there: {FIRST}, {SECOND}",
    ),
    "index not JSON": (lambda f: replaced(f, INDEX, b"{"), "is not a safetensors index"),
    "index of a list": (lambda f: replaced(f, INDEX, b"[]"), "is not a safetensors index"),
    "index without map": (lambda f: replaced(f, INDEX, b"{}"), "is not a safetensors index"),
    "index of numbers": (lambda f: write_index(f, a=3), "is not a safetensors index"),
    "index elsewhere": (lambda f: write_index(f, a=f"../{FIRST}"), "is not a safetensors index"),
    "key nowhere": (lambda f: write_index(f, z=FIRST), f"z should be in {FIRST}, is in none"),
    "key elsewhere": (
        lambda f: write_index(f, a=SECOND, d=FIRST),
        rf"\(2 problems\):\n  a should be in {SECOND}, is in {FIRST}\n  d should be in {FIRST}, is",
    ),
    "key in two files": (
        lambda f: save_file(numbers(0, "acd"), f / SECOND),
        f"a is in {FIRST} and {SECOND}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_folder_is_refused(folder, harm):
    do, message = HARMS[harm]
    do(folder)
    with pytest.raises(WeightsError, match=message):
        open_tensors(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(folder):
    (folder / FIRST).chmod(0)
    with pytest.raises(WeightsError, match="Permission denied"):
        open_tensors(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
SMALL = st.integers(-1, 9)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "I8", "BOOL"]) | JSON,
        "shape": st.lists(SMALL, max_size=2) | JSON,
        "data_offsets": st.lists(SMALL, min_size=2, max_size=2) | JSON,
    },
)
FITTING = st.integers(0, 4).map(lambda num: entry(0, num, "I8", (num,)))
HEADER = st.dictionaries(st.text(max_size=2), FITTING | ENTRY | JSON, max_size=2) | JSON
VALID = json.dumps({"a": entry(), "b": entry(8, 16)}).encode()


@st.composite
def flipped(draw):
    content = bytearray(len(VALID).to_bytes(8, "little") + VALID + bytes(16))
    for _ in range(draw(st.integers(1, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


def framed(header, num_bytes):
    content = json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + bytes(num_bytes)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64) | flipped() | st.builds(framed, HEADER, st.integers(0, 9)))
def test_a_corrupt_header_raises_nothing_else_and_opens_where_the_formats_own_reader_opens(
    tmp_path_factory, content
):
    path = Path(tmp_path_factory.getbasetemp()) / SINGLE
    path.write_bytes(content)
    try:
        tensors = open_tensors(path.parent)
    except WeightsError:
        tensors = None
    else:
        # A dtype that we do not know is a problem of those who read the tensor.
        assume({tensor.kind for tensor in tensors.values()} <= {"F32", "F16", "I8", "BOOL"})
    try:
        with safe_open(path, framework="np") as file:
            theirs = set(file.keys())
    except SafetensorError:
        theirs = None
    assert (None if tensors is None else set(tensors)) == theirs


@pytest.mark.parametrize("max_bytes", [2**30, 130, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_formats_own_reader_reads_what_is_written(tmp_path, dtype, max_bytes):
    tensors = numbers(0) | {"scalar": np.asarray(np.float32(3)), "none": np.ones((0, 4), "f4")}
    save(tmp_path, tensors, dtype=dtype, max_bytes=max_bytes)
    files = sorted(tmp_path.glob("*.safetensors"))
    read = {}
    for path in files:
        read |= load_file(path)
        with safe_open(path, framework="np") as file:
            assert file.metadata() == {"format": "pt"}
        payload = sum(tensor.nbytes for tensor in load_file(path).values())
        assert payload <= max_bytes or len(load_file(path)) <= 2  # one, and the empty one
    assert_equal(read, {key: tensor.astype(dtype) for key, tensor in tensors.items()})
    assert (tmp_path / INDEX).exists() == (len(files) > 1)
    assert_equal(opened(tmp_path), {key: tensor.astype("float32") for key, tensor in read.items()})


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save(tmp_path / name, numbers(0), max_bytes=130)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [FIRST, SECOND, INDEX]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_files_of_other_writers_stay_and_ours_go(tmp_path):
    others = ["adapter_model.safetensors", "model.fp16.safetensors", "config.json"]
    ours = [FIRST, SECOND, f"{FIRST}.partial", INDEX]
    for name in others + ours:
        (tmp_path / name).write_bytes(b"{}")
    save(tmp_path, numbers(0))
    assert {path.name for path in tmp_path.iterdir()} == {SINGLE, *others}


@pytest.mark.parametrize("before", [2**30, 130, 70])
@pytest.mark.parametrize("after", [2**30, 130, 70])
def test_a_writer_killed_at_any_moment_leaves_the_old_the_new_or_a_refusal(
    tmp_path, monkeypatch, before, after
):
    found = []
    for moment in range(40):
        folder = tmp_path / str(moment)
        folder.mkdir()
        save(folder, numbers(1), max_bytes=before)
        left = moment

        def killed(function):
            def step(*words, **more):
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return function(*words, **more)

            return step

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "write_text", "open"):
                patch.setattr(Path, name, killed(getattr(Path, name)))
            try:
                save(folder, numbers(2), max_bytes=after)
                done = True
            except KeyboardInterrupt:
                done = False
        try:
            tensors = opened(folder)
        except WeightsError as error:
            assert "holds no model.safetensors" in str(error)  # noqa: PT017
            found.append("refused")
        else:
            found.append("new" if np.array_equal(tensors["a"], numbers(2)["a"]) else "old")
            assert_equal(tensors, numbers(2 if found[-1] == "new" else 1))
        if done:
            break
    assert found[0] == "old"
    assert found[-1] == "new"
    assert found == sorted(found, key=["old", "refused", "new"].index)
    # Only shards in place of shards have a moment at which neither is whole.
    assert ("refused" in found) == (before < 2**30 and after < 2**30)


def test_numbers_beyond_float16_are_refused_and_the_old_file_stays(tmp_path):
    save(tmp_path, numbers(0))
    with pytest.raises(WeightsError, match="b has numbers beyond float16's 65504"):
        save(tmp_path, numbers(1) | {"b": np.float32([1, 1e5])}, dtype="float16")
    assert_equal(opened(tmp_path), numbers(0))
    assert [path.name for path in tmp_path.iterdir()] == [SINGLE]
