"""Samples in packed rows of fixed shape.

Several samples share a row and never see each other (segments); what is scored is listed apart, so
that only tokens the policy wrote are projected to the vocabulary. One row of two samples:

    ids         q q w w | q q w - -       q: environment, w: written by the policy
    segments    1 1 1 1   2 2 2 0 0
    at          1 2 5 0                   the places that predict a written token
    target_ids  w w w 0                   the tokens they predict
    samples.ids 1 1 2 0                   whose targets they are; 0 is none

Shapes come from a ladder declared by the caller; a batch takes the first rung that holds its
largest sample, and is cut into as many micro-batches as it needs. The samples of a group stay in
one micro-batch when they fit it. Nothing is dropped: what fits no rung is a PackingError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.algorithms.aggregations import Counts, counts
from jaxagent.algorithms.log_ratios import Samples
from jaxagent.algorithms.losses import Targets
from jaxagent.bounds import at_least, check_numbers
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.rope import num_image_tokens, position_ids
from jaxagent.training.samples import Sample
from jaxagent.types import Grid

PatchesByGrid = dict[Grid, Float[Array, "i p c"]]


class PackingError(ValueError):
    """A sample that no shape of the ladder holds."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A micro-batch's shape: one rung of the ladder."""

    rows: int
    tokens: int
    """Tokens of a row, t."""
    targets: int
    """Places of a row that are scored, u."""
    samples: int
    """Samples a row can hold, z."""
    image_tokens: int
    """Tokens of the distinct images of a micro-batch; 0 for text alone."""


class Rows(NamedTuple):
    """Packed rows; the module's docstring draws one."""

    ids: Int[Array, "b t"]
    positions: Int[Array, "3 b t"]
    segments: Int[Array, "b t"]
    feature_index: Int[Array, "b t"]
    at: Int[Array, "b u"]
    target_ids: Int[Array, "b u"]
    sampled: Float[Array, "b u"]
    """The sampler's log-probabilities."""
    verdicts: Int[Array, "b u"]
    """1 yes, 0 no, -1 no verdict is asked."""
    verdict_weights: Float[Array, "b u"]
    targets: Targets


class Pictures(NamedTuple):
    """Images ready for the model: features, or patches to encode; and each image's first token."""

    arrays: ImageFeatures | PatchesByGrid | None
    first_token: Mapping[str, int]


class MicroBatch(NamedTuple):
    """What one call of `accumulate` takes."""

    rows: Rows
    images: ImageFeatures | PatchesByGrid | None


PictureSource = Callable[[Mapping[str, Grid], int], Pictures]
"""(grid of each key, tokens to pad to) -> pictures."""


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """The ladder of shapes. None of it changes a result, only memory and time."""

    row_lengths: tuple[int, ...]
    """Tokens of a row, ascending; a batch takes the shortest rows that hold its longest sample."""
    call_tokens: int
    """Tokens of a micro-batch with padding: rows are as many as fit, but at least `min_rows`."""
    image_tokens: int
    """Tokens of the distinct images of a micro-batch."""
    min_rows: int
    """Rows are a multiple of this: the devices along the mesh's data and fsdp axes."""

    def __post_init__(self):
        lengths = self.row_lengths
        if not lengths or lengths[0] < 2 or list(lengths) != sorted(set(lengths)):
            raise ValueError(
                f"packing.row_lengths is {lengths}; it must hold ascending lengths of at least 2."
            )
        check_numbers(self, "packing", at_least(1), "call_tokens")
        check_numbers(self, "packing", at_least(0), "image_tokens")

    def ladder(self) -> list[Shape]:
        """A rung for each length, half of whose tokens may be scored, and one where all may be."""
        lengths = [(length, length // 2) for length in self.row_lengths]
        lengths.append((self.row_lengths[-1], self.row_lengths[-1]))
        return [
            Shape(
                rows=max(self.call_tokens // length // self.min_rows, 1) * self.min_rows,
                tokens=length,
                targets=targets,
                samples=max(length // 64, 2),
                image_tokens=self.image_tokens,
            )
            for length, targets in lengths
        ]


def fitting_shape(ladder: Sequence[Shape], samples: Sequence[Sample], *, merge: int) -> Shape:
    """The first rung that holds every sample by itself."""
    sizes = [_size(one, merge) for one in samples]
    largest = [max(column) for column in zip(*sizes, strict=True)] if sizes else [0, 0, 0]
    for shape in ladder:
        if all(need <= have for need, have in zip(largest, _capacity(shape), strict=True)):
            return shape
    raise PackingError(
        f"A sample needs {largest[0]} tokens, {largest[1]} targets and {largest[2]} image tokens; "
        f"the last shape of the ladder is {ladder[-1]}. Raise packing.row_lengths or image_tokens, "
        "or lower rollout.context."
    )


def packed(samples: Sequence[Sample], shape: Shape, *, merge: int) -> list[list[list[int]]]:
    """Micro-batches of rows of sample numbers; every sample stands in exactly one row."""
    groups: dict[int, list[int]] = {}
    for i, one in enumerate(samples):
        groups.setdefault(one.group, []).append(i)
    open_batches: list[_Open] = []

    def place(members: Sequence[int]) -> bool:
        if any(batch.take(members) for batch in open_batches):
            return True
        fresh = _Open(samples, shape, merge)
        if fresh.take(members):
            open_batches.append(fresh)
        return fresh.is_used

    for members in groups.values():
        members = sorted(members, key=lambda i: -len(samples[i].ids))
        if not place(members) and not all([place([i]) for i in members]):
            raise PackingError(f"A sample does not fit {shape} even by itself.")
    return [batch.rows for batch in open_batches] or [[[] for _ in range(shape.rows)]]


def micro_batches(
    samples: Sequence[Sample],
    ladder: Sequence[Shape],
    *,
    aggregation: Callable[[Counts], Float[np.ndarray, " n"]],
    pictures: PictureSource,
    merge: int,
    verdict_weight: float = 0.0,
    silent: Literal["keep", "skip"] = "keep",
) -> list[MicroBatch]:
    """The micro-batches of one update; all weights are of the whole batch.

    Args:
        silent: `skip` counts samples whose advantage is 0 but does not compute them.
        verdict_weight: of the mean over all verdicts, beside the loss.
    """
    lengths = np.array([one.num_targets for one in samples], int)
    weights = aggregation(counts(lengths, np.array([one.group for one in samples], int)))
    num_verdicts = max(sum(len(one.verdicts) for one in samples), 1)
    if silent == "skip":
        heard = [i for i, one in enumerate(samples) if one.advantage]
        samples, weights = [samples[i] for i in heard], weights[heard]
    shape = fitting_shape(ladder, samples, merge=merge)
    return [
        micro_batch(
            samples,
            rows,
            shape,
            weights=weights,
            verdict_weight=verdict_weight / num_verdicts,
            pictures=pictures,
            merge=merge,
        )
        for rows in packed(samples, shape, merge=merge)
    ]


def micro_batch(
    samples: Sequence[Sample],
    rows: Sequence[Sequence[int]],
    shape: Shape,
    *,
    weights: Float[np.ndarray, " n"],
    verdict_weight: float,
    pictures: PictureSource,
    merge: int,
) -> MicroBatch:
    """The arrays of one micro-batch; `weights[i]` is what a target of sample i weighs."""
    grids = {image.key: image.grid for row in rows for i in row for image in samples[i].images}
    placed = pictures(grids, shape.image_tokens)
    empty = _empty_rows(shape)
    for b, row in enumerate(rows):
        at = _Cursor(0, 0)
        for z, i in enumerate(row):
            _write(empty, b, z, samples[i], at, placed.first_token, merge)
            empty.targets.weights[b, z] = weights[i]
            at = _Cursor(at.token + len(samples[i].ids), at.target + _size(samples[i], merge)[1])
    empty.verdict_weights[empty.verdicts >= 0] = verdict_weight
    return MicroBatch(empty, placed.arrays)


def fill(batches: Sequence[MicroBatch]) -> dict[str, float]:
    """How many tokens the micro-batches hold, and which share of their places is padding."""
    tokens = sum(int(np.count_nonzero(batch.rows.segments)) for batch in batches)
    places = sum(batch.rows.segments.size for batch in batches)
    return {"tokens": float(tokens), "padding": 1 - tokens / max(places, 1)}


class _Cursor(NamedTuple):
    token: int
    target: int


class _Open:
    """A micro-batch that still takes samples."""

    def __init__(self, samples: Sequence[Sample], shape: Shape, merge: int):
        self.samples, self.shape, self.merge = samples, shape, merge
        self.rows: list[list[int]] = [[] for _ in range(shape.rows)]
        self.room = [(shape.tokens, shape.targets, shape.samples)] * shape.rows
        self.images: dict[str, int] = {}

    @property
    def is_used(self) -> bool:
        return any(self.rows)

    def take(self, members: Sequence[int]) -> bool:
        """Places all members, each in the first row with room, or none of them."""
        rows, room, images = [[*row] for row in self.rows], list(self.room), dict(self.images)
        for i in members:
            tokens, targets, _ = _size(self.samples[i], self.merge)
            images |= _image_tokens(self.samples[i], self.merge)
            need = (tokens, targets, 1)
            fits = (b for b, have in enumerate(room) if all(map(int.__le__, need, have)))
            b = next(fits, None)
            if b is None or sum(images.values()) > self.shape.image_tokens:
                return False
            rows[b].append(i)
            room[b] = tuple(map(int.__sub__, room[b], need))
        self.rows, self.room, self.images = rows, room, images
        return True


def _image_tokens(one: Sample, merge: int) -> dict[str, int]:
    return {image.key: num_image_tokens(image.grid, merge) for image in one.images}


def _size(one: Sample, merge: int) -> tuple[int, int, int]:
    """Tokens, scored places and image tokens of a sample."""
    places = one.num_targets + len(one.verdicts)
    return len(one.ids), places, sum(_image_tokens(one, merge).values())


def _capacity(shape: Shape) -> tuple[int, int, int]:
    return shape.tokens, shape.targets, shape.image_tokens


def _empty_rows(shape: Shape) -> Rows:
    b, t, u, z = shape.rows, shape.tokens, shape.targets, shape.samples
    ints, floats = np.int32, np.float32
    return Rows(
        ids=np.zeros((b, t), ints),
        positions=np.zeros((3, b, t), ints),
        segments=np.zeros((b, t), ints),
        feature_index=np.full((b, t), -1, ints),
        at=np.zeros((b, u), ints),
        target_ids=np.zeros((b, u), ints),
        sampled=np.zeros((b, u), floats),
        verdicts=np.full((b, u), -1, ints),
        verdict_weights=np.zeros((b, u), floats),
        targets=Targets(
            samples=Samples(np.zeros((b, u), ints), np.zeros((b, z), ints)),
            old_log_probs=np.zeros((b, u), floats),
            advantages=np.zeros((b, z), floats),
            weights=np.zeros((b, z), floats),
        ),
    )


def _write(
    rows: Rows,
    b: int,
    z: int,
    one: Sample,
    at: _Cursor,
    first_token: Mapping[str, int],
    merge: int,
) -> None:
    """Writes sample z of row b, its tokens and its scored places from `at` on."""
    here = slice(at.token, at.token + len(one.ids))
    rows.ids[b, here] = one.ids
    rows.positions[:, b, here] = position_ids(one.ids, one.images, merge).ids
    rows.segments[b, here] = z + 1
    for image in one.images:
        num = num_image_tokens(image.grid, merge)
        tokens = slice(at.token + image.start, at.token + image.start + num)
        rows.feature_index[b, tokens] = first_token[image.key] + np.arange(num)
    written = np.flatnonzero(one.written)
    scored = slice(at.target, at.target + len(written))
    rows.at[b, scored] = at.token + written - 1
    rows.target_ids[b, scored] = one.ids[written]
    rows.sampled[b, scored] = one.log_probs[written]
    rows.targets.old_log_probs[b, scored] = one.log_probs[written]
    rows.targets.samples.ids[b, scored] = z + 1
    rows.targets.samples.calls[b, z] = one.calls
    rows.targets.advantages[b, z] = one.advantage
    asked = slice(scored.stop, scored.stop + len(one.verdicts))
    rows.at[b, asked] = at.token + np.fromiter(one.verdicts.keys(), int, len(one.verdicts))
    rows.verdicts[b, asked] = np.fromiter(one.verdicts.values(), int, len(one.verdicts))
