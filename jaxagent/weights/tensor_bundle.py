"""A TensorFlow checkpoint (a tensor bundle) as named arrays, read without TensorFlow.

    prefix.index                 a sorted table, name -> BundleEntryProto; "" -> BundleHeaderProto
    prefix.data-00000-of-00001   the bytes of the tensors

The table is LevelDB's: blocks of entries, each followed by its compression (1 byte) and a masked
CRC-32C; a last block of (any key, place of a block); 48 bytes of footer with the place of that
block. An entry is (bytes shared with the key before, further bytes of the key, bytes of the value)
as varints, then the two. Sources: LevelDB's doc/table_format.md, and tensorflow/core/protobuf/
tensor_bundle.proto. Everything read is checked by its own checksum. Left out: compressed blocks,
which bundles do not have; strings, such as the object graph; tensors saved in slices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxagent.weights.crc32c import crc32c, masked
from jaxagent.weights.safetensors import WeightsError

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER, _TRAILER = 48, 5
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype("<f2"),
}
_STRING = 7
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM, _SLICES = range(1, 8)  # BundleEntryProto
_NUM_SHARDS, _ENDIANNESS = 1, 2  # BundleHeaderProto

Fields = dict[int, int | bytes]
"""A protocol buffer by field number; of a repeated field the last."""


class _Corrupt(Exception):
    """What is wrong with the bytes; told with the file's name at the door."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    dtype: np.dtype
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: Path) -> dict[str, np.ndarray]:
    """The numeric tensors of a checkpoint by name, mapped from its files.

    Raises WeightsError for a file that is missing, torn, corrupt or not in this format.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    try:
        table = dict(_table(path.read_bytes()))
        if b"" not in table:
            raise _Corrupt("it has no header")
        header = _fields(table.pop(b""))
        if header.get(_ENDIANNESS, 0):
            raise _Corrupt("it is big-endian")
        entries = {key.decode(): _entry(value) for key, value in table.items()}
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}). Point at a SavedModel with its variables."
        ) from None
    except (_Corrupt, UnicodeDecodeError) as error:
        raise WeightsError(
            f"{path} is no index of a TensorFlow checkpoint: {error}. Download it again."
        ) from None
    num = int(header.get(_NUM_SHARDS, 1))
    shards: dict[int, np.ndarray] = {}
    tensors = {}
    for name, entry in entries.items():
        if entry is None:
            continue
        data = prefix.with_name(f"{prefix.name}.data-{entry.shard:05}-of-{num:05}")
        if entry.shard not in shards:
            shards[entry.shard] = _mapped(data)
        tensors[name] = _tensor(data, shards[entry.shard], name, entry)
    return tensors


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read ({error.strerror}). Download the model again."
        ) from None


def _tensor(path: Path, content: np.ndarray, name: str, entry: _Entry) -> np.ndarray:
    end = entry.offset + entry.size
    if end > len(content):
        raise WeightsError(
            f"{path} is truncated: {len(content)} bytes where {name} ends at {end}. Download it "
            "again."
        )
    raw = content[entry.offset : end]
    if masked(crc32c(np.asarray(raw))) != entry.checksum:
        raise WeightsError(
            f"{path} is corrupt: the checksum of {name} is wrong. Download it again."
        )
    return raw.view(entry.dtype).reshape(entry.shape)


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of all blocks, in order."""
    if len(content) < _FOOTER or content[-8:] != _MAGIC:
        raise _Corrupt(f"its {len(content)} bytes do not end as a table does")
    footer = content[-_FOOTER:]
    list(_block(content, footer))  # the meta index, which says nothing but may be torn
    place = _varint(footer, _varint(footer, 0)[1])[1]
    for _, handle in _block(content, footer[place:]):
        yield from _block(content, handle)


def _block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the block at a handle: its offset and size."""
    offset, place = _varint(handle, 0)
    size, _ = _varint(handle, place)
    whole = content[offset : offset + size + _TRAILER]
    if len(whole) < size + _TRAILER or size < 4:
        raise _Corrupt("it is truncated")
    if masked(crc32c(np.frombuffer(whole[: size + 1], np.uint8))) != int.from_bytes(
        whole[size + 1 :], "little"
    ):
        raise _Corrupt("a checksum is wrong")
    if whole[size]:
        raise _Corrupt(f"a block is compressed (kind {whole[size]})")
    num_restarts = int.from_bytes(whole[size - 4 : size], "little")
    block = whole[: max(0, size - 4 * (num_restarts + 1))]
    place, key = 0, b""
    while place < len(block):
        shared, place = _varint(block, place)
        further, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + _bytes(block, place, further)
        yield key, _bytes(block, place + further, length)
        place += further + length


def _entry(value: bytes) -> _Entry | None:
    """An entry, or None for strings."""
    fields = _fields(value)
    dtype = _number(fields, _DTYPE)
    if dtype == _STRING:
        return None
    if dtype not in _DTYPES:
        raise _Corrupt(f"a tensor is of TensorFlow's dtype {dtype}, which cannot be read")
    if _SLICES in fields:
        raise _Corrupt("a tensor is saved in slices")
    shape = fields.get(_SHAPE, b"")
    if not isinstance(shape, bytes):
        raise _Corrupt("a shape is no message")
    entry = _Entry(
        dtype=_DTYPES[dtype],
        shape=tuple(_number(_fields(dim), 1) for dim in _dims(shape)),
        shard=_number(fields, _SHARD),
        offset=_number(fields, _OFFSET),
        size=_number(fields, _SIZE),
        checksum=_number(fields, _CHECKSUM),
    )
    if math.prod(entry.shape) * entry.dtype.itemsize != entry.size:
        raise _Corrupt(f"a tensor of shape {entry.shape} has {entry.size} bytes")
    return entry


def _dims(shape: bytes) -> list[bytes]:
    return [value for number, value in _pairs(shape) if number == 2 and isinstance(value, bytes)]


def _number(fields: Fields, number: int) -> int:
    value = fields.get(number, 0)
    if not isinstance(value, int):
        raise _Corrupt(f"field {number} is no number")
    return value


def _fields(message: bytes) -> Fields:
    return dict(_pairs(message))


def _pairs(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protocol buffer, as they stand."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            yield number, int.from_bytes(_bytes(message, place, width), "little")
            place += width
        elif wire == 2:
            length, place = _varint(message, place)
            yield number, _bytes(message, place, length)
            place += length
        else:
            raise _Corrupt(f"a field is of wire type {wire}")


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """The number of seven bits a byte that stands at `place`, and where it ends."""
    value = shift = 0
    while place < len(content) and shift < 64:
        byte = content[place]
        value |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return value, place
    raise _Corrupt("a number does not end")


def _bytes(content: bytes, place: int, length: int) -> bytes:
    if place + length > len(content):
        raise _Corrupt("it is truncated")
    return content[place : place + length]
