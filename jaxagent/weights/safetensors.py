"""A folder of safetensors files as named arrays on disk.

Tensors are memory-mapped: a slice of one reads only its own bytes. A file is an 8-byte
little-endian header length, a JSON header (name -> dtype, shape, byte range) and the bytes.
Everything that can be wrong with a folder before its numbers are looked at is found here.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

_DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class WeightsError(ValueError):
    """A folder whose weights cannot be read; the message names every problem."""


def open_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder's single file, or of the files that its index names."""
    if (folder / _INDEX).is_file():
        try:
            files = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{folder / _INDEX} is not a safetensors index: {error}.") from None
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise WeightsError(
                f"{folder / _INDEX} names files that are not there: {', '.join(missing)}. "
                "Download the folder again."
            )
        return {key: array for file in files for key, array in _open_file(folder / file).items()}
    if (folder / _SINGLE).is_file():
        return _open_file(folder / _SINGLE)
    raise WeightsError(
        f"{folder} holds no {_SINGLE} and no {_INDEX}. Point at a folder in Hugging Face format."
    )


def _open_file(path: Path) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise WeightsError(f"{path} is truncated or not a safetensors file ({size} bytes).")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} has a corrupt header. Download it again.")
    header.pop("__metadata__", None)
    start = 8 + length
    needed = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if needed > size:
        raise WeightsError(f"{path} is truncated: {size} bytes where its header needs {needed}.")
    if others := {entry["dtype"] for entry in header.values()} - set(_DTYPES):
        raise WeightsError(
            f"{path} holds tensors of dtype {', '.join(sorted(others))}; "
            f"{', '.join(_DTYPES)} can be read."
        )
    content = np.memmap(path, mode="r")
    return {key: _tensor(path, content, start, key, entry) for key, entry in header.items()}


def _tensor(path: Path, content: np.ndarray, start: int, key: str, entry: Mapping) -> np.ndarray:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if last - first != math.prod(shape) * dtype.itemsize:
        raise WeightsError(f"{path} is corrupt: {key} has {last - first} bytes for {shape}.")
    return content[start + first : start + last].view(dtype).reshape(shape)


def save_tensors(
    folder: Path, tensors: Mapping[str, np.ndarray], *, max_bytes: int = 4 * 2**30
) -> None:
    """Writes one file, or several of at most `max_bytes` and an index, in place of older ones."""
    groups: list[dict[str, np.ndarray]] = [{}]
    room = max_bytes
    for key, tensor in tensors.items():
        if tensor.nbytes > room and groups[-1]:
            groups.append({})
            room = max_bytes
        groups[-1][key] = np.ascontiguousarray(tensor)
        room -= tensor.nbytes
    names = [f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)]
    if len(groups) == 1:
        names = [_SINGLE]
    older = {path.name for path in folder.glob("model*.safetensors")}
    for name, group in zip(names, groups, strict=True):
        _save_file(folder / name, group)
    (folder / _INDEX).unlink(missing_ok=True)
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {
                key: name for name, group in zip(names, groups, strict=True) for key in group
            },
        }
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for name in older - set(names):
        (folder / name).unlink()


def _save_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    # Written beside the target and renamed, so that a killed run leaves no half file. transformers
    # refuses files without the format entry.
    partial = path.with_name(path.name + ".partial")
    save_file(dict(tensors), partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # save_file lets only its owner read
    partial.replace(path)
