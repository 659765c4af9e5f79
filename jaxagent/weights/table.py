"""One table a family, read both ways.

A row names a Hugging Face tensor, the parameter it becomes, and the einops pattern between them.
Read from left to right the pattern imports, read from right to left it exports. `{i}` in a key
counts layers; the parameter then has a leading layer axis, one row for each of the row's `layers`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import einops
import numpy as np


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

    def _grouped(self, side: str) -> dict[str, int]:
        names = " ".join(re.findall(r"\(([^)]*)\)", side)).split()
        return {name: self.sizes[name] for name in names if name in self.sizes}


def _sides(pattern: str) -> tuple[str, str]:
    left, right = pattern.split("->")
    return left.strip(), right.strip()
