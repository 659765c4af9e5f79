"""A policy's parameters as orbax arrays, with a header that says what made them.

    params/        one orbax tree of the parameters, by their names here
    header.json    config, dtype, counts and versions; written after the parameters

Every other file of the policy lies beside them, `config.json` last (`folder`). Writing has one
parameter in hand at a time beside those that it is given: orbax by itself copies every array of the
host before it writes the first. The arrays are cut into chunks, so that a device of a mesh reads
little more than its own part. Nothing tells a bit that the disk turned within an array: a digest of
a whole array cannot be taken by a device that reads its part.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.typing import DTypeLike
from orbax.checkpoint import type_handlers

from jaxagent.json_lines import write_json
from jaxagent.models.policy import PolicyConfig
from jaxagent.trees import Params, flat, nested, num_parameters
from jaxagent.types import Progress, silent
from jaxagent.weights.safetensors import WeightsError

PARAMS, HEADER = "params", "header.json"
_VERSIONS = ("jaxagent", "jax", "flax", "orbax-checkpoint")
_CHUNK = 64 * 2**20  # bytes
DTYPES = ("float32", "bfloat16", "float16")
_FIELDS = {"config": dict, "dtype": str, "arrays": int, "parameters": int, "versions": dict}
_AGAIN = "Delete the folder and convert the policy again."


def is_orbax(folder: str | Path) -> bool:
    """Whether a folder's parameters are orbax arrays."""
    return (Path(folder) / PARAMS).is_dir()


def orbax_dtype(folder: str | Path) -> str:
    """The word for the dtype of all parameters; WeightsError without a header."""
    return _read_header(Path(folder))["dtype"]


def write_orbax(
    folder: str | Path,
    config: PolicyConfig,
    params: Params,
    *,
    dtype: DTypeLike,
    progress: Progress = silent,
) -> None:
    """Writes parameters of the host, rounded to `dtype`, and the header.

    Raises WeightsError for a number that float16 cannot hold.
    """
    folder, dtype = Path(folder).absolute(), np.dtype(dtype)
    registry = type_handlers.create_type_handler_registry(
        (np.ndarray, _OneByOne(dtype, len(flat(params)), progress)),
        (jax.Array, type_handlers.ArrayHandler()),  # orbax warns without one
    )
    chunks = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK), params)
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with ocp.Checkpointer(handler) as writer:
        writer.save(folder / PARAMS, args=ocp.args.PyTreeSave(params, save_args=chunks))
    write_json(
        folder / HEADER,
        {
            "config": _plain(config),
            "dtype": dtype.name,
            "arrays": len(flat(params)),
            "parameters": num_parameters(params),
            "versions": {name: metadata.version(name) for name in _VERSIONS},
        },
    )


class _OneByOne(type_handlers.NumpyHandler):
    """Writes arrays of the host one after another, each rounded to `dtype` when its turn comes."""

    def __init__(self, dtype: np.dtype, total: int, progress: Progress):
        super().__init__(deepcopy_host_arrays=False)
        self._dtype, self._total, self._progress = dtype, total, progress

    async def serialize(
        self,
        values: Sequence[np.ndarray],
        infos: Sequence[type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[Future]:
        for i, (value, info) in enumerate(zip(values, infos, strict=True)):
            rounded = _rounded(info.name, value, self._dtype)
            chosen = None if args is None else [args[i]]
            for written in await super().serialize([rounded], [info], chosen):
                written.result()
            self._progress("Writing parameters", i + 1, self._total)
        return []


def _rounded(name: str, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = value.astype(dtype, copy=False)
    if dtype == np.float16 and rounded is not value and np.isinf(rounded).any():
        raise WeightsError(
            f"{name} has numbers beyond float16's {np.finfo(np.float16).max:g}. "
            "Write bfloat16 or float32."
        )
    return rounded


def read_orbax(
    folder: str | Path,
    config: PolicyConfig,
    shapes: Params,
    *,
    dtype: DTypeLike = "float32",
    shardings: Params | None = None,
    progress: Progress = silent,
) -> Params:
    """The parameters of a folder, placed by `shardings` (None: NumPy arrays on the host).

    Raises WeightsError when they are not those of `config`, all problems in one message, or cannot
    be read.
    """
    folder = Path(folder).absolute()
    header = _read_header(folder)
    if header["config"] != _plain(config):
        raise WeightsError(f"{folder / HEADER} tells of a policy of other sizes. {_AGAIN}")
    expected = flat(shapes)
    places = {} if shardings is None else flat(shardings)
    found: dict[str, jax.Array | np.ndarray] = {}
    # The handlers that are orbax's own raise many kinds of errors for a torn folder.
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            _check(folder, expected, reader.metadata(folder / PARAMS).item_metadata.tree)
            for i, name in enumerate(expected):
                how = _how(expected[name], dtype, places.get(name))
                found[name] = _one(reader, folder / PARAMS, name, how)
                progress("Reading parameters", i + 1, len(expected))
    except WeightsError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WeightsError(f"{folder / PARAMS} cannot be read ({reason}). {_AGAIN}") from error
    return nested(found)


def _how(
    shape: jax.ShapeDtypeStruct, dtype: DTypeLike, sharding: jax.sharding.Sharding | None
) -> ocp.RestoreArgs:
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=dtype)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=shape.shape, dtype=dtype)


def _one(
    reader: ocp.Checkpointer, folder: Path, name: str, how: ocp.RestoreArgs
) -> jax.Array | np.ndarray:
    """One parameter: what is read next waits until its buffers are given back."""
    arguments = ocp.args.PyTreeRestore(
        item=nested({name: 0}), restore_args=nested({name: how}), partial_restore=True
    )
    return jax.block_until_ready(flat(reader.restore(folder, args=arguments))[name])


def _check(folder: Path, expected: Mapping[str, jax.ShapeDtypeStruct], tree: Params) -> None:
    shapes = {name: tuple(leaf.shape) for name, leaf in expected.items()}
    found = {name: tuple(leaf.shape) for name, leaf in flat(tree).items()}
    problems = [f"missing: {name} {shapes[name]}" for name in shapes if name not in found]
    problems += [f"unknown: {name} {found[name]}" for name in found if name not in shapes]
    problems += [
        f"shape: {name} is {found[name]}, the config expects {shapes[name]}"
        for name in shapes
        if found.get(name, shapes[name]) != shapes[name]
    ]
    if problems:
        raise WeightsError(
            f"The arrays of {folder / PARAMS} do not fit its config.json ({len(problems)} "
            "problems):\n  " + "\n  ".join(problems)
        )


def _read_header(folder: Path) -> dict:
    path = folder / HEADER
    try:
        header = json.loads(path.read_text())
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}). {_AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON ({error}). {_AGAIN}") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is no object of JSON. {_AGAIN}")
    for name, kind in _FIELDS.items():
        if name not in header:
            raise WeightsError(f"{path} lacks {name}. {_AGAIN}")
        if type(header[name]) is not kind:  # a bool is an int to isinstance
            raise WeightsError(
                f"{path} says {name} {header[name]!r}, which is no {kind.__name__}. {_AGAIN}"
            )
    if header["dtype"] not in DTYPES:
        raise WeightsError(
            f"{path} says dtype {header['dtype']!r}; it is one of {', '.join(DTYPES)}. {_AGAIN}"
        )
    return header


def _plain(config: PolicyConfig) -> dict:
    """The config as JSON gives it back: lists in place of tuples."""
    return json.loads(json.dumps(asdict(config)))
