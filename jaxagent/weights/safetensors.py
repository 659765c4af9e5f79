"""A folder of safetensors files as named tensors on disk, and the writer of one.

A file is an 8-byte little-endian header length, a JSON header (name -> dtype, shape, byte range)
and the bytes, without holes: https://github.com/huggingface/safetensors#format. Opening a folder
reads headers only, and everything that can be wrong with them is found there. Tensors are read by
ranges instead of being mapped: pages of a mapped file count as this process's memory until they
are given back. Left out: folders that are not in a local file system.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

READABLE = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The NumPy dtype of each dtype word that can be read."""

_OTHER_SIZES = {
    1: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    2: ("I16", "U16"),
    4: ("I32", "U32"),
    8: ("I64", "U64", "C64"),
}
_ITEM_SIZES = {word: dtype.itemsize for word, dtype in READABLE.items()}
_ITEM_SIZES |= {word: size for size, words in _OTHER_SIZES.items() for word in words}

_SINGLE = "model.safetensors"
_OPEN_CLIP = "open_clip_model.safetensors"
_INDEX = "model.safetensors.index.json"
_PYTORCH = ("pytorch_model*.bin", "*.pth", "*.pt")
_GIT_LFS = b"version https://git-lfs"
_MAX_HEADER = 100_000_000  # the limit of the format's own reader
_MAX_AXES, _MAX_LENGTH = 32, 2**48
_BLOCK = 16 * 2**20  # bytes; what a conversion has in hand at a time
_AGAIN = "Download it again."


class WeightsError(ValueError):
    """A folder whose weights cannot be read; the message names every problem."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor on disk; `kind` is the file's word for its dtype, `start` the place of its bytes."""

    path: Path
    start: int
    kind: str
    shape: tuple[int, ...]

    def fill(self, out: np.ndarray, shape: tuple[int, ...], index: tuple[slice, ...]) -> None:
        """Reads the bytes of `tensor.reshape(shape)[index]`, and no others, into contiguous `out`.

        Raises WeightsError when the file has changed since it was opened.
        """
        if not out.size:
            return
        dtype = READABLE[self.kind]
        offsets, run = _runs(shape or (1,), index or (slice(None),))
        try:
            with self.path.open("rb", buffering=0) as file:
                places = (self.start + dtype.itemsize * offsets).tolist()
                _read(file, dtype, places, out.reshape(len(places), run))
        except (OSError, EOFError) as error:
            raise WeightsError(f"{self.path} cannot be read ({error}). {_AGAIN}") from None


def _runs(shape: tuple[int, ...], index: tuple[slice, ...]) -> tuple[np.ndarray, int]:
    """Where the runs of neighbouring items of a part start, and their length."""
    bounds = [part.indices(length)[:2] for part, length in zip(index, shape, strict=True)]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    last = len(shape) - 1  # the axis whose part, with all that lies within, is one run
    while last and bounds[last] == (0, shape[last]):
        last -= 1
    start, stop = bounds[last]
    offsets = np.asarray(start * strides[last])
    for (first, end), stride in zip(bounds[:last], strides[:last], strict=True):
        offsets = np.add.outer(offsets, np.arange(first, end) * stride)
    return offsets.reshape(-1), (stop - start) * strides[last]


def _read(file: FileIO, dtype: np.dtype, places: list[int], out: np.ndarray) -> None:
    """Reads one run of items at each place into the rows of `out`, converted block by block."""
    length = _BLOCK // dtype.itemsize
    rows = max(1, length // out.shape[1])
    scratch = None if out.dtype == dtype else np.empty(min(length, out.size), dtype)
    for i in range(0, len(places), rows):
        for j in range(0, out.shape[1], length):
            part = out[i : i + rows, j : j + length]
            target = part if scratch is None else scratch[: part.size].reshape(part.shape)
            raw = target.view(np.uint8)
            for place, row in zip(places[i : i + rows], raw, strict=True):
                _read_exactly(file, place + j * dtype.itemsize, memoryview(row))
            if target is not part:
                part[...] = target


def _read_exactly(file: FileIO, place: int, target: memoryview) -> None:
    file.seek(place)
    while target:
        num = file.readinto(target)  # at most 2 GiB in one call
        if not num:
            raise EOFError("it ends too early")
        target = target[num:]


def open_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Every tensor of a folder's single file or, without one, of the files that its index names.

    A folder that holds both is read as transformers reads it: by the single file.
    """
    folder = Path(folder)
    if single := next((name for name in (_SINGLE, _OPEN_CLIP) if (folder / name).exists()), None):
        return _open_file(folder / single)
    if not (folder / _INDEX).exists():
        raise WeightsError(_nothing(folder))
    weight_map = _weight_map(folder / _INDEX)
    names = sorted(set(weight_map.values()))
    if missing := [name for name in names if not (folder / name).exists()]:
        raise WeightsError(
            f"{folder / _INDEX} names files that are not there: {', '.join(missing)}. "
            "Download the folder again."
        )
    files = {name: _open_file(folder / name) for name in names}
    holders: dict[str, list[str]] = {}
    for name, tensors in files.items():
        for key in tensors:
            holders.setdefault(key, []).append(name)
    problems = [
        f"{key} is in {' and '.join(found)}" for key, found in holders.items() if len(found) > 1
    ]
    problems += [
        f"{key} should be in {name}, is in {' and '.join(holders.get(key, ['none']))}"
        for key, name in weight_map.items()
        if name not in holders.get(key, [])
    ]
    if problems:
        raise WeightsError(
            f"{folder / _INDEX} does not tell where the tensors are ({len(problems)} problems):"
            "\n  " + "\n  ".join(problems) + "\nDownload the folder again."
        )
    return {key: tensor for tensors in files.values() for key, tensor in tensors.items()}


def _nothing(folder: Path) -> str:
    message = f"{folder} holds no {_SINGLE} and no {_INDEX}."
    others = sorted(path.name for pattern in _PYTORCH for path in folder.glob(pattern))
    if not others:
        return f"{message} Point at a folder in Hugging Face format."
    return (
        f"{message} It holds {', '.join(others)}: pickles, which are not read here. Convert them "
        "with transformers: AutoModel.from_pretrained(folder).save_pretrained(another_folder), "
        "with the class that config.json names under architectures in place of AutoModel."
    )


def _weight_map(path: Path) -> dict[str, str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}).") from None
    _refuse_pointer(path, content)
    index = _json(content)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name
        for name in weight_map.values()
    ):
        raise WeightsError(
            f"{path} is not a safetensors index: a weight_map from each key to a file beside it is "
            f"expected. {_AGAIN}"
        )
    return weight_map


def _json(content: bytes) -> object:
    """The parsed bytes, or None for what is not JSON or gives a key twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        return json.loads(content.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError):  # bad UTF-8 is a ValueError too
        return None


def _refuse_pointer(path: Path, start: bytes) -> None:
    if start.startswith(_GIT_LFS):
        raise WeightsError(
            f"{path} is a git-lfs pointer and not the file. Run `git lfs pull` in its folder, or "
            "download it again."
        )


def _open_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"{path} is not a file. {_AGAIN}")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(len(_GIT_LFS))
            _refuse_pointer(path, start)
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise WeightsError(
                    f"{path} is truncated or not a safetensors file ({size} bytes). {_AGAIN}"
                )
            file.seek(8)
            header = _json(file.read(length))
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}). See to its permissions and its disk."
        ) from None
    metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise WeightsError(f"{path} has a corrupt header. {_AGAIN}")
    return _tensors(path, header, 8 + length, size)


def _tensors(path: Path, header: Mapping[str, object], start: int, size: int) -> dict[str, Tensor]:
    ranges, tensors = [], {}
    for key, entry in header.items():
        if not _is_entry(entry):
            raise WeightsError(
                f"{path} has a corrupt header: {key} has no dtype, shape and data_offsets. {_AGAIN}"
            )
        (first, last), kind, shape = entry["data_offsets"], entry["dtype"], tuple(entry["shape"])
        needed = math.prod(shape) * _ITEM_SIZES.get(kind, 0)
        if kind in _ITEM_SIZES and last - first != needed:
            raise WeightsError(
                f"{path} is corrupt: {key} has {last - first} bytes where {kind} {shape} needs "
                f"{needed}. {_AGAIN}"
            )
        ranges.append((first, last, key))
        tensors[key] = Tensor(path=path, start=start + first, kind=kind, shape=shape)
    end = 0
    for first, last, key in sorted(ranges):
        if first != end:
            fault = "overlaps the tensor before it" if first < end else "comes after a hole"
            raise WeightsError(f"{path} is corrupt: {key} {fault}. {_AGAIN}")
        end = last
    if start + end > size:
        raise WeightsError(
            f"{path} is truncated: {size} bytes where its header needs {start + end}. {_AGAIN}"
        )
    if start + end < size:
        raise WeightsError(f"{path} has {size - start - end} bytes after its tensors. {_AGAIN}")
    return tensors


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list):
        return False
    return (
        all(type(number) is int and 0 <= number < _MAX_LENGTH for number in shape + offsets)
        and len(shape) <= _MAX_AXES
        and len(offsets) == 2
        and offsets[0] <= offsets[1]
    )


def save_tensors(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], np.ndarray],
    *,
    dtype: DTypeLike,
    max_bytes: int = 4 * 2**30,
) -> None:
    """Writes one file, or several of at most `max_bytes` and an index, in place of older ones.

    `tensor(key)` is asked for one tensor at a time, in the order of `shapes`; one larger than
    `max_bytes` has a file to itself. A run killed before the new files are whole leaves the old
    ones; one killed while they change names leaves a folder that is refused, never a mixture.
    """
    groups = _groups(shapes, np.dtype(dtype).itemsize, max_bytes)
    names = [f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)]
    if len(groups) == 1:
        names = [_SINGLE]
    partials = [folder / f"{name}.partial" for name in names]
    weight_map = {key: name for name, group in zip(names, groups, strict=True) for key in group}
    older = {path.name for path in folder.iterdir() if re.fullmatch(_OURS, path.name)}
    try:
        for path, group in zip(partials, groups, strict=True):
            _save_file(path, {key: shapes[key] for key in group}, tensor, np.dtype(dtype))
        if len(groups) > 1:
            # Shards of the same names may be there: without an index no one reads a mixture.
            (folder / _INDEX).unlink(missing_ok=True)
        for path in partials:
            path.replace(path.with_suffix(""))
    finally:
        for path in partials:
            path.unlink(missing_ok=True)
    if len(groups) > 1:
        size = sum(map(math.prod, shapes.values())) * np.dtype(dtype).itemsize
        _save_index(folder, {"metadata": {"total_size": size}, "weight_map": weight_map})
    # The single file is read before an index, so it goes once the index is there, and the other
    # way about.
    for name in sorted(older - set(names) - ({_INDEX} if len(groups) > 1 else set())):
        (folder / name).unlink(missing_ok=True)


_OURS = r"model(-\d{5}-of-\d{5})?\.safetensors(\.partial|\.index\.json(\.partial)?)?"


def _groups(
    shapes: Mapping[str, tuple[int, ...]], item_size: int, max_bytes: int
) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    room = max_bytes
    for key, shape in shapes.items():
        size = math.prod(shape) * item_size
        if size > room and groups[-1]:
            groups.append([])
            room = max_bytes
        groups[-1].append(key)
        room -= size
    return groups


def _save_index(folder: Path, index: Mapping[str, object]) -> None:
    partial = folder / f"{_INDEX}.partial"
    partial.write_text(json.dumps(index, indent=2) + "\n")
    partial.replace(folder / _INDEX)


def _save_file(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], np.ndarray],
    dtype: np.dtype,
) -> None:
    words = {readable: word for word, readable in READABLE.items()}
    # transformers refuses files without the format entry.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in shapes.items():
        first, end = end, end + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": words[dtype], "shape": shape, "data_offsets": [first, end]}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # so that mapped tensors are aligned
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for key, shape in shapes.items():
            for block in _blocks(key, tensor(key), shape, dtype):
                file.write(block)


def _blocks(
    key: str, value: np.ndarray, shape: tuple[int, ...], dtype: np.dtype
) -> Iterator[memoryview]:
    if value.shape != shape:
        raise ValueError(f"{key} is {value.shape} and was announced as {shape}.")
    value = np.atleast_1d(value)
    rows = max(1, _BLOCK // max(1, math.prod(value.shape[1:]) * dtype.itemsize))
    for i in range(0, len(value), rows):
        yield _block(key, value[i : i + rows], dtype)


def _block(key: str, values: np.ndarray, dtype: np.dtype) -> memoryview:
    with np.errstate(over="ignore"):
        block = np.ascontiguousarray(values, dtype)
    if dtype == np.float16 and np.isinf(block).any():
        raise WeightsError(
            f"{key} has numbers beyond float16's {np.finfo(np.float16).max:g}. "
            "Write bfloat16 or float32."
        )
    return memoryview(block.view(np.uint8).reshape(-1))
