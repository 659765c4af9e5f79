"""The difference between two sides at one stage, and how large it may be.

Values are compared vector by vector along the last axis (a token's hidden state, a token's logits),
each by the vector's own size: published policies have a few tokens whose activations are a thousand
times those of the others, by which an absolute bound, or one for the whole array, is either broken
or blind. `scale` keeps vectors of nearly zero from counting: it is 1/1000 of the largest.

    float32     max over vectors of  max|ours - theirs| / max|theirs|  at most the tolerance
    bfloat16    error(x) = rms over vectors of  ||x - reference|| / ||reference||
                error(ours) at most 1.5 error(theirs) + 1e-4

where the reference is transformers in float32 on the same (rounded) weights and inputs. A bound on
bfloat16 in numbers would fail real policies, whose logits are 20 to 30; transformers' own error
tells what the format costs there. The constant is for stages that are only copied.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

TOLERANCES = {
    "pixels": 1e-6,
    "layer": 1e-5,
    "tower": 1e-4,
    "gradient": 1e-4,
}
"""Of float32, by what a stage is."""
HALF_FACTOR, HALF_FLOOR = 1.5, 1e-4
_SMALLEST = 1e-3  # of the largest vector: the size that smaller ones are compared by


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stage: the largest absolute difference, the relative one that is judged, its bound.

    `theirs` is the error of transformers itself in bfloat16, where that is the measure.
    """

    stage: str
    absolute: float
    relative: float
    tolerance: float
    theirs: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """False too for what is not a number."""
        return bool(self.relative <= self.tolerance)


class Sides(NamedTuple):
    """What both sides make of one stage; `wide` is transformers in float32, where theirs is not."""

    ours: Float[np.ndarray, "*b d"]
    theirs: Float[np.ndarray, "*b d"]
    wide: Float[np.ndarray, "*b d"] | None = None


def compared(stage: str, sides: Sides, tolerance: float) -> Row:
    """The row of a stage; `tolerance` is that of float32."""
    ours, theirs, wide = sides
    reference = theirs if wide is None else wide
    if ours.shape != reference.shape:
        return Row(
            stage=stage,
            absolute=np.inf,
            relative=np.inf,
            tolerance=tolerance,
            note=f"shape {ours.shape}, transformers has {reference.shape}",
        )
    absolute = _largest(ours - reference)
    if wide is None:
        relative = _largest(_max(ours - reference) / _sizes(_max(reference)))
        return Row(stage=stage, absolute=absolute, relative=relative, tolerance=tolerance)
    own = _error(theirs, wide)
    return Row(
        stage=stage,
        absolute=absolute,
        relative=_error(ours, wide),
        tolerance=HALF_FACTOR * own + HALF_FLOOR,
        theirs=own,
    )


def exact(stage: str, ours: Int[np.ndarray, "..."], theirs: Int[np.ndarray, "..."]) -> Row:
    """The row of a stage that allows no difference."""
    if ours.shape != theirs.shape:
        note = f"shape {ours.shape}, transformers has {theirs.shape}"
        return Row(stage=stage, absolute=np.inf, relative=np.inf, tolerance=0.0, note=note)
    difference = np.abs(ours.astype(np.int64) - theirs)
    share = float(np.mean(difference > 0)) if difference.size else 0.0
    return Row(stage=stage, absolute=_largest(difference), relative=share, tolerance=0.0)


def _max(values: Float[np.ndarray, "*b d"]) -> Float[np.ndarray, "*b"]:
    return np.abs(values).max(-1)


def _sizes(sizes: Float[np.ndarray, "*b"]) -> Float[np.ndarray, "*b"]:
    return np.maximum(sizes, max(_SMALLEST * sizes.max(), np.finfo(np.float32).tiny))


def _error(values: Float[np.ndarray, "*b d"], reference: Float[np.ndarray, "*b d"]) -> float:
    differences = np.linalg.norm(values - reference, axis=-1)
    sizes = _sizes(np.linalg.norm(reference, axis=-1))
    return float(np.sqrt(np.mean(np.square(differences / sizes))))


def _largest(values: np.ndarray) -> float:
    """The largest absolute value, NaN when any is."""
    return float(np.abs(values).max()) if values.size else 0.0
