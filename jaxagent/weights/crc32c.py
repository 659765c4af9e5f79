"""CRC-32C of large arrays in NumPy.

The polynomial of iSCSI (RFC 3720), reflected 0x82F63B78, as TensorFlow's files use it. Without its
start and end values the checksum is linear over bits, so the bytes are cut into equal lanes, the
lanes go through the table side by side, and neighbours are joined: r(ab) = shift(r(a), |b|) ^ r(b),
where shift appends zero bytes and is a 32 x 32 matrix of bits.
"""

from functools import cache

import numpy as np
from jaxtyping import UInt8, UInt32

_POLYNOMIAL = 0x82F63B78
_ONES = np.uint32(0xFFFFFFFF)


@cache
def _table() -> UInt32[np.ndarray, " 256"]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(_POLYNOMIAL), values >> 1)
    return values


def _advanced(
    registers: UInt32[np.ndarray, " lanes"], byte: UInt8[np.ndarray, " lanes"] | np.uint8
) -> UInt32[np.ndarray, " lanes"]:
    """The registers after one more byte."""
    return _table()[(registers & np.uint32(255)) ^ byte] ^ registers >> np.uint32(8)


def _applied(
    columns: UInt32[np.ndarray, " 32"], registers: UInt32[np.ndarray, " lanes"]
) -> UInt32[np.ndarray, " lanes"]:
    """The matrix of bits times each register."""
    bits = registers[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return np.bitwise_xor.reduce(np.where(bits, columns, np.uint32(0)), axis=1)


def _shift(num_bytes: int) -> UInt32[np.ndarray, " 32"]:
    """The columns of the matrix that appends `num_bytes` zero bytes."""
    columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = _advanced(columns, np.uint8(0))
    while num_bytes:
        if num_bytes & 1:
            columns = _applied(power, columns)
        power = _applied(power, power)
        num_bytes >>= 1
    return columns


def crc32c(content: UInt8[np.ndarray, " n"]) -> int:
    """The checksum; 0xE3069283 for the nine bytes of "123456789"."""
    size = len(content)
    lanes = 1 << max(0, size.bit_length() // 2)
    length = -(-size // lanes)
    # Zeros in front do not change a register that starts at 0.
    rows = np.concatenate([np.zeros(lanes * length - size, np.uint8), content])
    registers = np.zeros(lanes, np.uint32)
    for column in rows.reshape(lanes, length).T:
        registers = _advanced(registers, column)
    shift = _shift(length)
    while len(registers) > 1:
        registers = _applied(shift, registers[::2]) ^ registers[1::2]
        shift = _applied(shift, shift)
    start = _applied(_shift(size), np.full(1, _ONES))
    return int((registers ^ start ^ _ONES)[0])


def masked(checksum: int) -> int:
    """The checksum as TensorFlow and LevelDB store it, so that no file checks itself by chance."""
    rotated = checksum >> 15 | checksum << 17 & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF
