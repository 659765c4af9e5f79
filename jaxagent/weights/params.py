"""A folder's tensors to parameters by a table of rows, and back.

Reading maps files instead of loading them. Placed by shardings, each device's part of a parameter
is cut out of the mapped tensors and converted on its own, so no tensor is on the host as a whole
unless a device holds it as a whole.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding
from jax.typing import DTypeLike

from jaxagent.trees import Params, flat, nested
from jaxagent.weights.safetensors import WeightsError, open_tensors, save_tensors
from jaxagent.weights.table import Row

Renames = Sequence[tuple[str, str]]
"""(regular expression, replacement): the first that is found in an older key makes it a new one."""


def read_params(
    folder: str | Path,
    rows: Sequence[Row],
    shapes: Params,
    *,
    dtype: DTypeLike = "float32",
    shardings: Params | None = None,
    unused: Sequence[str] = (),
    renames: Renames = (),
) -> Params:
    """The parameters that `rows` make of a folder, placed by `shardings` (None: on the host).

    `unused` are regular expressions of whole keys that a folder may hold and nobody reads. Raises
    WeightsError; missing, unknown and mis-shaped tensors come in one message.
    """
    folder = Path(folder)
    tensors = {_renamed(key, renames): array for key, array in open_tensors(folder).items()}
    expected = flat(shapes)
    _check(folder, rows, tensors, expected, unused)
    targets = {} if shardings is None else flat(shardings)
    return nested(
        {
            row.name: _parameter(
                row, tensors, expected[row.name].shape, dtype, targets.get(row.name)
            )
            for row in rows
        }
    )


def write_params(
    folder: Path, rows: Sequence[Row], params: Params, *, dtype: DTypeLike, max_bytes: int
) -> None:
    """Writes the safetensors files of `params` in place of older ones."""
    named = flat(params)
    tensors: dict[str, np.ndarray] = {}
    for row in rows:
        parameter = np.asarray(named[row.name], dtype)
        layers = [parameter] if row.layers is None else list(parameter)
        tensors |= {
            key: row.exported(layer) for key, layer in zip(row.hf_keys(), layers, strict=True)
        }
    save_tensors(folder, tensors, max_bytes=max_bytes)


def _renamed(key: str, renames: Renames) -> str:
    for pattern, replacement in renames:
        new, times = re.subn(pattern, replacement, key)
        if times:
            return new
    return key


def _check(
    folder: Path,
    rows: Sequence[Row],
    tensors: dict[str, np.ndarray],
    shapes: dict[str, jax.ShapeDtypeStruct],
    unused: Sequence[str],
) -> None:
    expected = {
        key: row.tensor_shape(shapes[row.name].shape) for row in rows for key in row.hf_keys()
    }
    problems = [f"missing: {key} {shape}" for key, shape in expected.items() if key not in tensors]
    problems += [
        f"unknown: {key} {tensor.shape}"
        for key, tensor in tensors.items()
        if key not in expected and not any(re.fullmatch(pattern, key) for pattern in unused)
    ]
    problems += [
        f"shape: {key} is {tensors[key].shape}, the config expects {shape}"
        for key, shape in expected.items()
        if key in tensors and tensors[key].shape != shape
    ]
    if problems:
        raise WeightsError(
            f"The tensors of {folder} do not fit its config.json ({len(problems)} problems):\n  "
            + "\n  ".join(problems)
        )


def _parameter(
    row: Row,
    tensors: dict[str, np.ndarray],
    shape: tuple[int, ...],
    dtype: DTypeLike,
    sharding: Sharding | None,
) -> jax.Array | np.ndarray:
    layers = [row.imported(tensors[key]) for key in row.hf_keys()]

    def part(index: tuple[slice, ...]) -> np.ndarray:
        if row.layers is None:
            return np.asarray(layers[0][index], dtype)
        return np.stack([np.asarray(layer[index[1:]], dtype) for layer in layers[index[0]]])

    if sharding is None:
        return part((slice(None),) * len(shape))
    return jax.make_array_from_callback(shape, sharding, part)
