"""The host's memory and reads while weights stream, measured in processes of their own.

`python tests/weights/test_memory.py MODE FOLDER ...` measures and prints one JSON line.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.trees import nested
from jaxagent.weights.params import read_params, write_params
from jaxagent.weights.table import Row

MIB = 2**20
LAYERS, WIDTH, MLP, VOCAB = 8, 1024, 4096, 16_384
SLACK = 96 * MIB
"""What a read may use besides two parts: 16 MiB of conversion, JAX's pools, the list of tensors.
The checkpoint has 192 MiB, so a reader that keeps the files' pages or a copy is over it."""
FILES = 4

ROWS = [
    Row(key="embed", name="embed", pattern="v d -> v d", sizes={}),
    Row(key="head", name="head", pattern="v d -> d v", sizes={}),
    Row(key="layers.{i}.up", name="up", pattern="f d -> d f", sizes={}, layers=range(LAYERS)),
    Row(key="layers.{i}.down", name="down", pattern="d f -> f d", sizes={}, layers=range(LAYERS)),
]
SHAPES = {
    "embed": jax.ShapeDtypeStruct((VOCAB, WIDTH), np.float32),
    "head": jax.ShapeDtypeStruct((WIDTH, VOCAB), np.float32),
    "up": jax.ShapeDtypeStruct((LAYERS, WIDTH, MLP), np.float32),
    "down": jax.ShapeDtypeStruct((LAYERS, MLP, WIDTH), np.float32),
}
# As a training places them: rows and columns of the matrices, so both kinds of ranges.
SPECS = {
    "embed": ("x",),
    "head": (None, "x"),
    "up": (None, "x"),
    "down": (None, "x"),
}
ON_LINUX = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="/proc tells what is measured"
)


def checkpoint(folder: Path) -> int:
    """Writes a bfloat16 checkpoint of zeros in several files, and returns its bytes."""
    tensors = {key: row for row in ROWS for key in row.hf_keys()}
    groups = [list(tensors)[i::FILES] for i in range(FILES)]
    weight_map, total = {}, 0
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05}-of-{FILES:05}.safetensors"
        header, end = {}, 0
        for key in group:
            shape = tensors[key].tensor_shape(SHAPES[tensors[key].name].shape)
            first, end = end, end + 2 * int(np.prod(shape))
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [first, end]}
        content = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(len(content).to_bytes(8, "little") + content)
            file.truncate(8 + len(content) + end)  # a hole: no disk, but read like any bytes
        weight_map |= dict.fromkeys(group, name)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


def shardings(spec_of: dict[str, tuple[str | None, ...]]):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return nested(
        {name: NamedSharding(mesh, PartitionSpec(*spec_of.get(name, ()))) for name in SHAPES}
    )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The largest resident memory above that at the start, sampled every millisecond."""

    def __enter__(self):
        self.start = self.largest = resident()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while not self.over.wait(0.001):
            self.largest = max(self.largest, resident())

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.largest = max(self.largest, resident())
        self.bytes = self.largest - self.start


def parts(params) -> list[np.ndarray]:
    """What each device holds, or the arrays on the host."""
    return [
        part
        for leaf in jax.tree.leaves(params)
        for part in (
            [leaf]
            if isinstance(leaf, np.ndarray)
            else [shard.data for shard in leaf.addressable_shards]
        )
    ]


def measured(mode: str, folder: Path) -> dict[str, int]:
    jax.block_until_ready(jax.device_put(np.zeros(8), jax.devices()[-1]))  # JAX has started
    placed = {"host": None, "sharded": SPECS, "replicated": {}}
    if mode in placed:
        spec_of = placed[mode]
        with Peak() as peak:
            params = read_params(
                folder,
                ROWS,
                SHAPES,
                dtype="float32" if mode != "replicated" else "bfloat16",
                shardings=None if spec_of is None else shardings(spec_of),
            )
        sizes = [part.nbytes for part in parts(params)]
        return {"extra": peak.bytes - sum(sizes), "part": max(sizes)}
    params = read_params(
        folder, ROWS, SHAPES, shardings=None if mode == "write host" else shardings(SPECS)
    )
    with Peak() as peak:
        write_params(folder / "out", ROWS, params, dtype="bfloat16", max_bytes=64 * MIB)
    sizes = [4 * int(np.prod(row.tensor_shape(SHAPES[row.name].shape))) for row in ROWS]
    return {"extra": peak.bytes, "part": max(sizes)}


def bytes_read(folder: Path, coordinator: str, process: int) -> dict[str, int]:
    """What one host of two reads."""
    jax.distributed.initialize(coordinator, num_processes=2, process_id=process)
    tree = shardings(SPECS)

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    start = count()
    params = read_params(folder, ROWS, SHAPES, dtype="bfloat16", shardings=tree)
    return {"read": count() - start, "held": sum(part.nbytes for part in parts(params))}


def started(*words: object, devices: int = 8) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, words)],
        env=os.environ
        | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> dict[str, int]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@ON_LINUX
@pytest.mark.parametrize("mode", ["host", "sharded", "replicated", "write host", "write sharded"])
def test_memory_beyond_the_arrays_stays_under_two_parts(tmp_path, mode):
    total = checkpoint(tmp_path)
    (tmp_path / "out").mkdir()
    found = result(started(mode, tmp_path))
    print(mode, {key: f"{value / MIB:.0f} MiB" for key, value in found.items()})
    # Between the host's own arrays and files nothing but a block is in hand.
    parts_in_hand = 0 if mode in ("host", "write host") else 2
    assert found["extra"] < parts_in_hand * found["part"] + SLACK
    assert total > SLACK


@ON_LINUX
def test_a_host_of_two_reads_its_half(tmp_path):
    total = checkpoint(tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    hosts = [started("bytes", tmp_path, coordinator, i, devices=4) for i in range(2)]
    for found in map(result, hosts):
        assert found["held"] == total // 2
        assert total // 2 <= found["read"] < total // 2 + MIB


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    if mode == "bytes":
        answer = bytes_read(Path(folder), rest[0], int(rest[1]))
    else:
        answer = measured(mode, Path(folder))
    print(json.dumps(answer))
