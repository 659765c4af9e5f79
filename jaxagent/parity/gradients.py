"""Gradients of one loss, small enough to keep: each tensor's norm and some of its numbers.

A tensor of the Hugging Face folder keeps up to `MAX_NUMBERS` numbers at places that its key
decides, so both sides keep the same ones and a difference of whole gradients is estimated without
holding two of them; small tensors are kept whole.
"""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxagent.parity.compare import HALF_FLOOR, TOLERANCES, Row
from jaxagent.weights import table

MAX_NUMBERS = 2**16
GRADIENT_FACTOR = 2.0
"""How far bfloat16 may err, in transformers' own error. More than for states: most of what a group
has wrong was wrong in what came from the layers above, so its numbers are one draw, not many."""
SMALLEST = 1e-3
"""Of the norm of all gradients: a group with less is compared by this much. Softmax does not see
some parameters at all, and what both sides then have is noise."""


class Kept(NamedTuple):
    """The norm of a gradient, some of its numbers, and how many it has."""

    norm: float
    numbers: Float[np.ndarray, " k"]
    size: int


def places(key: str, size: int) -> Int[np.ndarray, " k"]:
    """Which numbers of a flattened tensor are kept."""
    if size <= MAX_NUMBERS:
        return np.arange(size)
    return np.random.default_rng(zlib.crc32(key.encode())).integers(0, size, MAX_NUMBERS)


def compared_groups(
    rows: list[table.Row],
    ours: Mapping[str, Kept],
    theirs: Mapping[str, Kept],
    wide: Mapping[str, Kept] | None,
) -> list[Row]:
    """A row for each parameter group, which is one line of the weights' table over all layers."""
    reference = theirs if wide is None else wide
    total = float(np.sqrt(sum(kept.norm**2 for kept in reference.values())))
    return [_group(row, ours, theirs, wide, SMALLEST * total) for row in rows]


def _group(
    row: table.Row,
    ours: Mapping[str, Kept],
    theirs: Mapping[str, Kept],
    wide: Mapping[str, Kept] | None,
    smallest: float,
) -> Row:
    keys = row.hf_keys()
    reference = theirs if wide is None else wide
    size = max(_norm(reference, keys), smallest)
    stage = f"gradient {row.name}"
    note = f"norm {_norm(ours, keys):.3e}, transformers {_norm(theirs, keys):.3e}"
    absolute = max(_largest(ours[key], reference[key]) for key in keys)
    relative = _distance(ours, reference, keys) / size
    if wide is None:
        tolerance = TOLERANCES["gradient"]
        return Row(
            stage=stage, absolute=absolute, relative=relative, tolerance=tolerance, note=note
        )
    own = _distance(theirs, wide, keys) / size
    return Row(
        stage=stage,
        absolute=absolute,
        relative=relative,
        tolerance=GRADIENT_FACTOR * own + HALF_FLOOR,
        theirs=own,
        note=note,
    )


def _norm(kept: Mapping[str, Kept], keys: list[str]) -> float:
    return float(np.sqrt(sum(kept[key].norm ** 2 for key in keys)))


def _distance(ours: Mapping[str, Kept], theirs: Mapping[str, Kept], keys: list[str]) -> float:
    squares = [
        np.square(ours[key].numbers - theirs[key].numbers).mean() * ours[key].size for key in keys
    ]
    return float(np.sqrt(np.sum(squares)))


def _largest(ours: Kept, theirs: Kept) -> float:
    return float(np.abs(ours.numbers - theirs.numbers).max())
