"""ScaNN behind the index protocol.

Small bases are searched by brute force, larger ones by a tree of leaves with anisotropic hashing
and exact reordering. Sizes that are not given: sqrt(rows) leaves, of which 64 or three in ten are
searched, whichever is more (on 7,000 vectors of 64 effective dimensions that finds 99.6 % of the
ten exact neighbours, a quarter of the leaves 79 %); of the hashed neighbours 100, or ten times the
ones wanted, are reordered. A query that finds too few rows in its leaves, after exclusion, is
searched again in all of them, so an id of -1 does mean that the base is exhausted.

Guo et al., Accelerating Large-Scale Inference with Anisotropic Vector Quantization, ICML 2020.
"""

import importlib.util
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Float32, Int32

from jaxagent.retrieval.hits import Hits, IndexConfig, checked_queries, collected, proposals_wanted

ANISOTROPIC_THRESHOLD = 0.2
"""ScaNN's recommended noise-shaping threshold for unit vectors."""


def installed() -> bool:
    """Whether ScaNN can be imported here (nothing is imported by asking)."""
    return importlib.util.find_spec("scann") is not None


def num_leaves(config: IndexConfig, rows: int) -> int:
    """Leaves of the tree; 0 means brute force."""
    if rows < config.brute_force_below:
        return 0
    return config.leaves or max(1, round(rows**0.5))


class ScannIndex:
    """An open ScaNN searcher and the vectors it was built from."""

    def __init__(self, config: IndexConfig, vectors: Float32[np.ndarray, "rows e"], searcher: Any):
        self.config = config
        self.vectors = vectors
        self._searcher = searcher

    @classmethod
    def build(cls, config: IndexConfig, vectors: Float32[np.ndarray, "rows e"]) -> "ScannIndex":
        """Index trained on all of its own vectors; ValueError when ScaNN refuses the config."""
        from scann import scann_ops_pybind

        leaves = num_leaves(config, len(vectors))
        builder = scann_ops_pybind.builder(vectors, 10, "dot_product")
        if leaves:
            builder = builder.tree(
                num_leaves=leaves,
                num_leaves_to_search=_leaves_to_search(config, leaves),
                training_sample_size=min(len(vectors), 250_000),
                # With random centres, or on several threads, two builds of one base differ.
                random_init=False,
            )
            builder = builder.set_n_training_threads(config.training_threads)
            builder = builder.score_ah(2, anisotropic_quantization_threshold=ANISOTROPIC_THRESHOLD)
            builder = builder.reorder(config.reorder or 100)
        else:
            builder = builder.score_brute_force()
        try:
            with _quiet_stderr():
                return cls(config, vectors, builder.build())
        except RuntimeError as error:
            raise ValueError(
                f"ScaNN cannot index {len(vectors)} vectors in {leaves} leaves: {error} Give at "
                "most as many leaves as vectors, or 0 to have them chosen."
            ) from error

    @classmethod
    def open(
        cls, config: IndexConfig, vectors: Float32[np.ndarray, "rows e"], folder: epath.Path
    ) -> "ScannIndex":
        """Index from files that `save_searcher` wrote."""
        from scann import scann_ops_pybind

        with tempfile.TemporaryDirectory() as copy:
            local = str(folder)
            if "://" in local:
                for file in folder.iterdir():
                    (epath.Path(copy) / file.name).write_bytes(file.read_bytes())
                local = copy
            try:
                with _quiet_stderr():
                    searcher = scann_ops_pybind.load_searcher(local)
            except (OSError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"ScaNN cannot read {folder} ({error}). Delete the index's folder and build "
                    "it again."
                ) from None
        return cls(config, vectors, searcher)

    def save_searcher(self, folder: epath.Path) -> None:
        """Writes ScaNN's files; they may be moved as a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as draft:
            self._searcher.serialize(draft, relative_path=True)
            for name in sorted(os.listdir(draft)):
                (folder / name).write_bytes((epath.Path(draft) / name).read_bytes())

    def search(
        self,
        vectors: Float32[np.ndarray, "q e"],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits:
        """Approximate hits, with exact scores; see `Hits`."""
        exclude = checked_queries(self.vectors, vectors, top, exclude)
        width = proposals_wanted(top, exclude, len(self.vectors))
        proposals = self._proposals(vectors, width, everywhere=False)
        possible = [min(top, len(self.vectors) - len(set(out))) for out in exclude]
        short = [
            query
            for query, (found, out) in enumerate(zip(proposals, exclude, strict=True))
            if len(set(found.tolist()) - set(out)) < possible[query]
        ]
        if short:
            again = self._proposals(vectors[np.array(short)], width, everywhere=True)
            for query, found in zip(short, again, strict=True):
                proposals[query] = found
        return collected(self.vectors, vectors, proposals, top=top, exclude=exclude)

    def _proposals(
        self, vectors: Float32[np.ndarray, "q e"], width: int, *, everywhere: bool
    ) -> list[Int32[np.ndarray, " n"]]:
        if not len(vectors):
            return []
        leaves = num_leaves(self.config, len(self.vectors))
        options = {}
        if leaves:
            options["leaves_to_search"] = (
                leaves if everywhere else _leaves_to_search(self.config, leaves)
            )
            reorder = (
                len(self.vectors) if everywhere else max(self.config.reorder or 100, 10 * width)
            )
            options["pre_reorder_num_neighbors"] = min(reorder, len(self.vectors))
        ids, scores = self._searcher.search_batched(vectors, final_num_neighbors=width, **options)
        # ScaNN pads what it did not find with row 0 and a distance of NaN.
        return [
            row[~np.isnan(score)].astype(np.int32) for row, score in zip(ids, scores, strict=True)
        ]


def _leaves_to_search(config: IndexConfig, leaves: int) -> int:
    return min(leaves, config.leaves_to_search or max(64, 3 * leaves // 10))


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hides ScaNN's C++ log, which no logging level reaches; a failure still raises."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
