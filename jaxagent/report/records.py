"""What a report holds, as records that know nothing of HTML.

A dialogue travels as the plain mapping that `evaluation.dialogue_row` makes (it is also one JSON
line of `evaluation/after.jsonl` or another evaluation's file), so a page can be written again long
after the run, from its work folder alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A headline: `value` is printed as it is, `note` says what it is measured on."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Lines over one horizontal axis: series name -> points `(x, y)`, in the order of `x`."""

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x: str = "step"
    note: str = ""


Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; numbers are right-aligned, `None` is a dash."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page; empty parts leave no trace on it."""

    title: str
    summary: str = ""
    figures: Sequence[Figure] = ()
    curves: Sequence[Curve] = ()
    tables: Sequence[Table] = ()
    dialogues: Sequence[Mapping] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def printed(cell: Cell) -> str:
    """A cell as every table shows it."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
    return str(cell)
