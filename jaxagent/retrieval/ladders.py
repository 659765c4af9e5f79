"""Declared shapes: sizes that get compiled, and how a batch of any size is cut into them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """Rows `start` to `stop`, to be padded to `size`."""

    start: int
    stop: int
    size: int


def rung(ladder: Sequence[int], wanted: int) -> int:
    """The smallest size that holds `wanted`, or the largest of the ascending ladder."""
    return next((size for size in ladder if size >= wanted), ladder[-1])


def cuts(ladder: Sequence[int], rows: int) -> Iterator[Cut]:
    """Blocks that cover all rows: whole largest ones, then the smallest that holds the rest.

    ladder 1 8 64, 70 rows  ->  0..64 as 64, 64..70 as 8
    """
    for start in range(0, rows, ladder[-1]):
        stop = min(start + ladder[-1], rows)
        yield Cut(start, stop, rung(ladder, stop - start))
