"""What an index returns, and the ranking that every kind of index ends with.

An index only proposes a shortlist; `ranked` then scores the shortlist in float64 on the host, drops
the excluded rows and orders by (score, then row). So two rows with the same vector get the same
score and stand in row order, and a query's hits do not depend on the batch it came in. For row
vectors x_i and a query y, both of unit length, the score is their cosine:

    base of 4, top 3, row 2 excluded:   scores [.9 .7 .1]   ids [0 1 3]
    base of 2, top 3:                   scores [.9 .7  0]   ids [0 1 -1]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from etils import epath
from jaxtyping import Float32, Int32

from jaxagent.bounds import at_least, check_numbers

IndexKind = Literal["exact", "scann"]
SLACK = 16
"""Proposals beyond the ones asked for: ties that fp32 would cut in any order are all seen."""


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """How an index is built; only `kind` concerns `exact`, and 0 = chosen from the base's size.

    With one training thread two builds of one base are equal; large bases take more.
    """

    kind: IndexKind = "scann"
    brute_force_below: int = 1000
    leaves: int = 0
    leaves_to_search: int = 0
    reorder: int = 0
    training_threads: int = 1

    def __post_init__(self):
        sizes = ("brute_force_below", "leaves", "leaves_to_search", "reorder")
        check_numbers(self, "retrieval.*_index", at_least(0), *sizes)
        check_numbers(self, "retrieval.*_index", at_least(1), "training_threads")


class Hits(NamedTuple):
    """The best rows of each query, best first; id -1 with score 0 where the base is exhausted."""

    scores: Float32[np.ndarray, "q top"]
    ids: Int32[np.ndarray, "q top"]


@runtime_checkable
class Index(Protocol):
    """Rows of unit vectors that can be searched."""

    config: IndexConfig
    vectors: Float32[np.ndarray, "rows e"]

    def search(
        self,
        vectors: Float32[np.ndarray, "q e"],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits: ...

    def save_searcher(self, folder: epath.Path) -> None:
        """Writes what searching needs besides the vectors, if anything."""
        ...


def check_unit(vectors: Float32[np.ndarray, "rows e"], whose: str) -> None:
    """Raises ValueError when a row's length is not 1 within 1e-3 (NaN included)."""
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.abs(lengths - 1) <= 1e-3))
    if bad.size:
        raise ValueError(
            f"{whose} holds vectors that are not of unit length: row {bad[0]} has length "
            f"{lengths[bad[0]]:.4g} ({bad.size} of {len(vectors)} rows). Divide each by its "
            "length first."
        )


def ranked(
    base: Float32[np.ndarray, "rows e"],
    query: Float32[np.ndarray, " e"],
    proposals: Int32[np.ndarray, " n"],
    *,
    top: int,
    exclude: Collection[int],
) -> tuple[Float32[np.ndarray, " top"], Int32[np.ndarray, " top"]]:
    """The best `top` proposals that are not excluded, by (score, then row), padded with (0, -1)."""
    ids = np.unique(proposals)
    ids = ids[~np.isin(ids, list(exclude))]
    # Not a matrix product: its rounding would depend on the row's place in the batch.
    scores = np.sum(base[ids].astype(np.float64) * query.astype(np.float64)[None, :], axis=1)
    order = np.lexsort((ids, -scores))[:top]
    pad = (0, top - len(order))
    return (
        np.pad(scores[order], pad).astype(np.float32),
        np.pad(ids[order], pad, constant_values=-1).astype(np.int32),
    )


def proposals_wanted(top: int, exclude: Sequence[Collection[int]], rows: int) -> int:
    """Length of the shortlist: a power of two (so few programs are compiled), at most all rows."""
    wanted = top + max(map(len, exclude), default=0) + SLACK
    return min(1 << (wanted - 1).bit_length(), rows)


def checked_queries(
    base: Float32[np.ndarray, "rows width"],
    vectors: Float32[np.ndarray, "q e"],
    top: int,
    exclude: Sequence[Collection[int]] | None,
) -> Sequence[Collection[int]]:
    """One exclusion list per query.

    Raises ValueError on a wrong width, length, `top` or number of lists.
    """
    if vectors.shape[1] != base.shape[1]:
        raise ValueError(
            f"The queries have {vectors.shape[1]} dimensions and the base {base.shape[1]}. "
            "Encode both with the encoder named in the base's header."
        )
    if top < 1:
        raise ValueError(f"`top` is {top}. Ask for at least 1 neighbour.")
    check_unit(vectors, "The query batch")
    if exclude is None:
        return [()] * len(vectors)
    if len(exclude) != len(vectors):
        raise ValueError(
            f"{len(exclude)} exclusion lists came with {len(vectors)} queries. Give one per query."
        )
    return exclude


def collected(
    base: Float32[np.ndarray, "rows e"],
    vectors: Float32[np.ndarray, "q e"],
    proposals: Sequence[Int32[np.ndarray, " n"]],
    *,
    top: int,
    exclude: Sequence[Collection[int]],
) -> Hits:
    """Hits of all queries from their proposals."""
    rows = [
        ranked(base, vector, np.asarray(ids, np.int32), top=top, exclude=out)
        for vector, ids, out in zip(vectors, proposals, exclude, strict=True)
    ]
    return Hits(
        np.array([scores for scores, _ in rows], np.float32).reshape(-1, top),
        np.array([ids for _, ids in rows], np.int32).reshape(-1, top),
    )
