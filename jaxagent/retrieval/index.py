"""Builds, saves and opens indices of unit vectors: `exact` (device) or `scann` (host)."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Float32

from jaxagent.retrieval import headers, scann_index
from jaxagent.retrieval.exact_index import ExactIndex
from jaxagent.retrieval.hits import Hits, Index, IndexConfig, check_unit

__all__ = ["Hits", "Index", "IndexConfig", "build_index", "open_index", "save_index"]

VERSION = 1
DEFAULT = IndexConfig()


def build_index(vectors: Float32[np.ndarray, "rows e"], config: IndexConfig = DEFAULT) -> Index:
    """Index over unit vectors. Where ScaNN is not installed `exact` is built, with a message."""
    if not len(vectors):
        raise ValueError("The base holds no vectors. Give at least one.")
    check_unit(vectors, "The base")
    if config.kind == "exact":
        return ExactIndex(config, vectors)
    if config.kind != "scann":
        raise ValueError(
            f"There is no index kind {config.kind!r}. Allowed are 'exact' and 'scann'."
        )
    if not scann_index.installed():
        logging.warning(
            "ScaNN is not installed (its wheels are for Linux on x86_64): using the exact index, "
            "which returns the same hits and is slower on large bases."
        )
        return ExactIndex(dataclasses.replace(config, kind="exact"), vectors)
    return scann_index.ScannIndex.build(config, vectors)


def save_index(
    folder: epath.PathLike, index: Index, names: Sequence[str], *, made_by: dict[str, Any]
) -> None:
    """Writes vectors, ScaNN's own files and, last, the header with `made_by` in it."""
    folder = epath.Path(folder)
    if len(names) != len(index.vectors):
        raise ValueError(
            f"{len(names)} names came with {len(index.vectors)} vectors. Give one per row."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "vectors.npy").open("wb") as file:
        np.save(file, index.vectors)
    index.save_searcher(folder / "scann")
    headers.write_header(
        folder, _header(index.config, index.vectors.shape, names) | {"made_by": made_by}
    )


def open_index(
    folder: epath.PathLike, names: Sequence[str], *, made_by: dict[str, Any] | None = None
) -> Index:
    """A saved index, checked against the rows' names and, when given, what made it.

    Raises FileNotFoundError for a missing or unfinished folder and ValueError for any mismatch. An
    index saved with ScaNN opens as `exact` where ScaNN is not installed, with a message.
    """
    folder = epath.Path(folder)
    header = headers.read_header(folder, "index", {"config": dict})
    vectors = _read_vectors(folder / "vectors.npy")
    try:
        config = IndexConfig(**header["config"])
    except (TypeError, ValueError) as error:
        raise headers.broken(folder, "index", f"has a config of another form ({error})") from error
    expected = _header(config, vectors.shape, names)
    if made_by is not None:
        expected["made_by"] = made_by
    headers.check_header(header, expected, f"The index at {folder}")
    if config.kind == "exact":
        return build_index(vectors, config)
    if not scann_index.installed():
        return build_index(vectors, config)
    check_unit(vectors, f"The index at {folder}")
    return scann_index.ScannIndex.open(config, vectors, folder / "scann")


def _header(config: IndexConfig, shape: tuple[int, ...], names: Sequence[str]) -> dict[str, Any]:
    return {
        "format": "jaxagent index",
        "version": VERSION,
        "config": dataclasses.asdict(config),
        "count": shape[0],
        "width": shape[1],
        "dtype": "float32",
        "order": headers.order_hash(names),
    }


def _read_vectors(path: epath.Path) -> Float32[np.ndarray, "rows e"]:
    try:
        with path.open("rb") as file:
            vectors = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Delete its folder and build the index again."
        ) from None
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(
            f"{path} holds {vectors.dtype} of shape {vectors.shape}, expected float32 rows. Build "
            "the index again."
        )
    return vectors
