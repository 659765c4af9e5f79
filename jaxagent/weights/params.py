"""A folder's tensors to parameters by a table of rows, and back.

Reading streams: a parameter's part is read from the byte ranges that hold it straight into one
array in the file's order of axes, which is then seen in the parameter's order. Placed by
shardings, each distinct part is read once, put on its devices and given back before the next is
read, so the host never has more than one part in hand. Writing asks the devices for one tensor at
a time. Left out: writing parameters that other processes hold a part of.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from jaxagent.trees import Params, flat, nested
from jaxagent.types import Progress, silent
from jaxagent.weights.safetensors import (
    READABLE,
    Tensor,
    WeightsError,
    open_tensors,
    save_tensors,
)
from jaxagent.weights.table import Row

Renames = Sequence[tuple[str, str]]
"""(regular expression, replacement): the first that is found in an older key makes it a new one."""

_QUANTISED = re.compile(r"I8|U8|F[468](_\w+)?")


def read_params(
    folder: str | Path,
    rows: Sequence[Row],
    shapes: Params,
    *,
    dtype: DTypeLike = "float32",
    shardings: Params | None = None,
    unused: Sequence[str] = (),
    renames: Renames = (),
    progress: Progress = silent,
) -> Params:
    """The parameters that `rows` make of a folder, placed by `shardings` (None: on the host).

    On the host they are NumPy arrays in the order of the file's axes, so not all are contiguous.
    `unused` are regular expressions of whole keys that a folder may hold and nobody reads. Raises
    WeightsError before anything is read; missing, unknown and mis-shaped tensors come in one
    message.
    """
    folder = Path(folder)
    tensors = renamed_tensors(folder, renames)
    expected = flat(shapes)
    _check(folder, rows, tensors, expected, unused)
    targets = {} if shardings is None else flat(shardings)
    named: dict[str, jax.Array | np.ndarray] = {}
    for done, row in enumerate(rows, 1):
        shape = expected[row.name].shape
        named[row.name] = _parameter(row, tensors, shape, dtype, targets.get(row.name))
        progress("Reading parameters", done, len(rows))
    return nested(named)


def check_params(
    folder: str | Path,
    rows: Sequence[Row],
    shapes: Params,
    *,
    unused: Sequence[str] = (),
    renames: Renames = (),
) -> None:
    """WeightsError, as `read_params` has it, unless the tensors of a folder are those of `rows`."""
    folder = Path(folder)
    _check(folder, rows, renamed_tensors(folder, renames), flat(shapes), unused)


def write_params(
    folder: Path, rows: Sequence[Row], params: Params, *, dtype: DTypeLike, max_bytes: int
) -> None:
    """Writes the safetensors files of `params` in place of older ones.

    Raises WeightsError for a number that float16 cannot hold, and leaves the older files.
    """
    named = flat(params)
    places = {key: (row, layer) for row in rows for layer, key in enumerate(row.hf_keys())}
    shapes = {key: row.tensor_shape(named[row.name].shape) for key, (row, _) in places.items()}

    def tensor(key: str) -> np.ndarray:
        row, layer = places[key]
        return row.exported(_on_host(named[row.name], None if row.layers is None else layer))

    save_tensors(folder, shapes, tensor, dtype=dtype, max_bytes=max_bytes)


def _on_host(parameter: jax.Array | np.ndarray, layer: int | None) -> np.ndarray:
    """A parameter, or one layer of it, gathered shard by shard."""
    if isinstance(parameter, np.ndarray):
        return parameter if layer is None else parameter[layer, ...]
    if not parameter.is_fully_addressable:
        raise ValueError(
            f"Other processes hold parts of a parameter of shape {parameter.shape}. Save a "
            "checkpoint and convert it in one process."
        )
    if layer is not None:
        parameter = jax.lax.dynamic_index_in_dim(parameter, layer, keepdims=False)
    whole = np.empty(parameter.shape, parameter.dtype)
    for shard in parameter.addressable_shards:
        if not shard.replica_id:
            # An array keeps what it once gave to the host, so a passing one is asked.
            whole[shard.index] = jax.make_array_from_single_device_arrays(
                shard.data.shape, shard.data.sharding, [shard.data]
            )
    return whole


def renamed_tensors(folder: Path, renames: Renames) -> dict[str, Tensor]:
    """A folder's tensors by their present names; WeightsError when two have the same."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in open_tensors(folder).items():
        for pattern, replacement in renames:
            new, times = re.subn(pattern, replacement, key)
            if times:
                break
        else:
            new = key
        if new in renamed:
            raise WeightsError(
                f"{folder} holds {new} under two names, of which {key} is one. Remove the copy."
            )
        renamed[new] = tensor
    return renamed


def _check(
    folder: Path,
    rows: Sequence[Row],
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    unused: Sequence[str],
) -> None:
    expected = {
        key: row.tensor_shape(shapes[row.name].shape) for row in rows for key in row.hf_keys()
    }
    unknown = [
        key
        for key in tensors
        if key not in expected and not any(re.fullmatch(pattern, key) for pattern in unused)
    ]
    found = {key: tensors[key] for key in expected if key in tensors}
    problems = [
        ("missing", key, f"{shape}") for key, shape in expected.items() if key not in tensors
    ]
    problems += [("unknown", key, f"{tensors[key].shape}") for key in unknown]
    problems += [
        ("shape", key, f"is {tensor.shape}, the config expects {expected[key]}")
        for key, tensor in found.items()
        if tensor.shape != expected[key]
    ]
    problems += [
        ("dtype", key, f"is {tensor.kind}, {', '.join(READABLE)} can be read")
        for key, tensor in found.items()
        if tensor.kind not in READABLE
    ]
    if not problems:
        return
    message = (
        f"The tensors of {folder} do not fit its config.json ({len(problems)} problems):\n  "
        + "\n  ".join(_by_layers(problems))
    )
    kinds = {tensors[key].kind for key in [*found, *unknown]}
    if any(_QUANTISED.fullmatch(kind) for kind in kinds) or any(
        "qweight" in key for key in unknown
    ):
        message += (
            "\nThese weights are quantised. Take the folder of the model as it was trained "
            "(bfloat16, mostly), or dequantise this one with transformers (model.dequantize()) and "
            "save it."
        )
    raise WeightsError(message)


def _by_layers(problems: Iterable[tuple[str, str, str]]) -> list[str]:
    """One line for each problem; layers that have the same one share a line, as `{0..3,7}`."""
    lines: dict[tuple[str, str], list[int]] = {}
    for word, key, rest in problems:
        before, *layer = re.split(r"(?<=\.)(\d+)(?=\.)", key, maxsplit=1)
        line = (f"{word}: {before}", f"{layer[1] if layer else ''} {rest}")
        lines.setdefault(line, []).extend(map(int, layer[:1]))
    return [f"{before}{_ranges(layers)}{after}" for (before, after), layers in lines.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """`{0..3,7}` for 0, 1, 2, 3 and 7; one number as it is; nothing for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{{{','.join(words)}}}" if len(numbers) > 1 else "".join(words)


def _parameter(
    row: Row,
    tensors: Mapping[str, Tensor],
    shape: tuple[int, ...],
    dtype: DTypeLike,
    sharding: Sharding | None,
) -> jax.Array | np.ndarray:
    if sharding is None:
        return _part(row, tensors, shape, dtype, tuple(slice(0, length) for length in shape))
    devices: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(length)[:2] for part, length in zip(index, shape, strict=True))
        devices.setdefault(bounds, []).append(device)
    arrays: list[jax.Array] = []
    for bounds, holders in devices.items():
        part = _part(row, tensors, shape, dtype, tuple(slice(*bound) for bound in bounds))
        places = [SingleDeviceSharding(it, memory_kind=sharding.memory_kind) for it in holders]
        # Waited for, so that the part on the host goes before the next one is read.
        arrays += jax.block_until_ready([jax.device_put(part, place) for place in places])
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def _part(
    row: Row,
    tensors: Mapping[str, Tensor],
    shape: tuple[int, ...],
    dtype: DTypeLike,
    index: tuple[slice, ...],
) -> np.ndarray:
    """`parameter[index]`, its axes in memory in the order of the file."""
    keys = row.hf_keys()
    if row.layers is not None:
        keys, shape, index = keys[index[0]], shape[1:], index[1:]
    cut = row.cut(shape, index)
    lengths = [part.stop - part.start for part in cut.index]
    layers = np.empty((len(keys), *lengths), dtype)
    for i, key in enumerate(keys):
        tensors[key].fill(layers[i, ...], cut.shape, cut.index)
    part = row.imported_cut(layers)[:, *cut.rest]
    return part[0, ...] if row.layers is None else part
