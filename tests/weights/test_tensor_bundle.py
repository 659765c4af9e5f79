"""TensorFlow's checkpoints, read without it; `bem_network` tells how the one here was written."""

import shutil

import numpy as np
import pytest

from jaxagent.weights.crc32c import crc32c, masked
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.tensor_bundle import read_bundle
from tests.weights.bem_network import SAVED_MODEL, network


@pytest.fixture
def prefix(tmp_path):
    """A copy of the checkpoint, to be spoilt."""
    shutil.copytree(SAVED_MODEL / "variables", tmp_path / "variables")
    return tmp_path / "variables" / "variables"


def index(prefix):
    return prefix.with_name("variables.index")


def data(prefix):
    return prefix.with_name("variables.data-00000-of-00001")


def test_every_variable_is_read_bit_for_bit(prefix):
    found = read_bundle(prefix)
    assert len(found) == len(network()) == 206
    for i, array in enumerate(network()):
        np.testing.assert_array_equal(
            found[f"variables/{i}/.ATTRIBUTES/VARIABLE_VALUE"], array, strict=True
        )


def test_every_flipped_byte_of_the_index_is_found(prefix):
    content = bytearray(index(prefix).read_bytes())
    footer = len(content) - 48  # two places, zeros up to the last 8 bytes
    for place in [*range(0, footer, 97), *range(footer - 60, footer + 4), len(content) - 1]:
        content[place] ^= 4
        index(prefix).write_bytes(content)
        with pytest.raises(WeightsError, match="is no index of a TensorFlow checkpoint"):
            read_bundle(prefix)
        content[place] ^= 4
    index(prefix).write_bytes(content)
    assert len(read_bundle(prefix)) == 206


def test_a_flipped_byte_of_a_tensor_is_found(prefix):
    content = bytearray(data(prefix).read_bytes())
    content[700] ^= 1
    data(prefix).write_bytes(content)
    with pytest.raises(WeightsError, match=r"is corrupt: the checksum of variables/\d+/"):
        read_bundle(prefix)


def test_torn_and_missing_files_are_refused(prefix):
    whole = data(prefix).read_bytes()
    data(prefix).write_bytes(whole[:1000])
    with pytest.raises(WeightsError, match="is truncated: 1000 bytes where variables"):
        read_bundle(prefix)
    data(prefix).unlink()
    with pytest.raises(WeightsError, match="of-00001 cannot be read"):
        read_bundle(prefix)
    for size in (0, 47, 1000, index(prefix).stat().st_size - 1):
        index(prefix).write_bytes(index(SAVED_MODEL / "variables" / "v").read_bytes()[:size])
        with pytest.raises(WeightsError, match="is no index of a TensorFlow checkpoint"):
            read_bundle(prefix)
    index(prefix).unlink()
    with pytest.raises(WeightsError, match="Point at a SavedModel with its variables"):
        read_bundle(prefix)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 9, 31, 64, 65, 1000, 4097])
def test_a_checksum_by_lanes_is_that_of_the_bits_one_by_one(size):
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    register = 0xFFFFFFFF
    for byte in content.tolist():
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(content) == register ^ 0xFFFFFFFF


def test_the_checksum_of_the_standards_example():
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert masked(0) == 0xA282EAD8
    assert masked(0x8001) == 0x00020001 + 0xA282EAD8  # turned by 15 bits to the right
