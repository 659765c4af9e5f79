"""One table a family, read both ways.

A row names a Hugging Face tensor, the parameter it becomes, and the einops pattern between them.
Read from left to right the pattern imports, read from right to left it exports. `{i}` in a key
counts layers; the parameter then has a leading layer axis, one row for each of the row's `layers`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import einops
import numpy as np


class Cut(NamedTuple):
    """Where a part of a parameter lies in its Hugging Face tensor.

    `shape` is the tensor's with every group of the pattern taken apart, `index` has a slice for
    each of those axes. What the two give, imported, is still to be cut by `rest`.
    """

    shape: tuple[int, ...]
    index: tuple[slice, ...]
    rest: tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table; `sizes` are the axis lengths that a pattern's groups need."""

    key: str
    name: str
    pattern: str
    sizes: Mapping[str, int]
    layers: range | None = None

    def hf_keys(self) -> list[str]:
        """The Hugging Face keys behind the parameter, one a layer."""
        if self.layers is None:
            return [self.key]
        return [self.key.format(i=layer) for layer in self.layers]

    def imported(self, tensor: np.ndarray) -> np.ndarray:
        """One layer's parameter; a view of the tensor when NumPy can make one."""
        left, right = _sides(self.pattern)
        return einops.rearrange(tensor, f"{left} -> {right}", **self._grouped(left))

    def exported(self, parameter: np.ndarray) -> np.ndarray:
        """One layer's Hugging Face tensor."""
        left, right = _sides(self.pattern)
        return einops.rearrange(parameter, f"{right} -> {left}", **self._grouped(right))

    def tensor_shape(self, parameter_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each Hugging Face tensor behind a parameter of this (stacked) shape."""
        layer = parameter_shape if self.layers is None else parameter_shape[1:]
        return self.exported(np.broadcast_to(np.zeros((), np.int8), layer)).shape

    def cut(self, layer_shape: tuple[int, ...], index: Sequence[slice]) -> Cut:
        """The cut that reads `parameter[index]` of one layer.

        An axis that the parameter has for itself is cut in the tensor; one that it has as a group
        (the patch pixels of a convolution) is read whole and cut afterwards.
        """
        left, right = _sides(self.pattern)
        lengths, slices, rest = {"1": 1}, {"1": slice(0, 1)}, []
        for names, length, part in zip(_axes(right), layer_shape, index, strict=True):
            if len(names) == 1:
                lengths[names[0]], slices[names[0]] = length, part
                rest.append(slice(None))
            else:
                lengths |= self._apart(names, length)
                rest.append(part)
        names = [name for group in _axes(left) for name in group]
        return Cut(
            tuple(lengths[name] for name in names),
            tuple(slices.get(name, slice(0, lengths[name])) for name in names),
            tuple(rest),
        )

    def imported_cut(self, cut: np.ndarray) -> np.ndarray:
        """The parameter's part of what a `Cut` gives, with any leading axes."""
        left, right = _sides(self.pattern)
        names = " ".join(name for group in _axes(left) for name in group)
        return einops.rearrange(cut, f"... {names} -> ... {right}")

    def _apart(self, names: list[str], length: int) -> dict[str, int]:
        known = {"1": 1, **self.sizes}
        others = length // math.prod(known.get(name, 1) for name in names)
        return {name: known.get(name, others) for name in names}

    def _grouped(self, side: str) -> dict[str, int]:
        names = " ".join(re.findall(r"\(([^)]*)\)", side)).split()
        return {name: self.sizes[name] for name in names if name in self.sizes}


def _sides(pattern: str) -> tuple[str, str]:
    left, right = pattern.split("->")
    return left.strip(), right.strip()


def _axes(side: str) -> list[list[str]]:
    """The names of each axis: `"d (n h)"` is `[["d"], ["n", "h"]]`."""
    return [(group or name).split() for group, name in re.findall(r"\(([^)]*)\)|([^\s()]+)", side)]


Line = tuple[str, str, str]
"""Key, name and pattern of a row, without the prefixes that several rows share."""


def rows(
    lines: Iterable[Line],
    key_prefix: str,
    name_prefix: str,
    sizes: Mapping[str, int],
    layers: range | None = None,
) -> list[Row]:
    """A row for each line; none for a stack of no layers."""
    if layers is not None and not layers:
        return []
    return [
        Row(
            key=key_prefix + key,
            name=name_prefix + name,
            pattern=pattern,
            sizes=sizes,
            layers=layers,
        )
        for key, name, pattern in lines
    ]
