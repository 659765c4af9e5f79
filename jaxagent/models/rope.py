"""Rotary positions: text, M-RoPE (sectioned or interleaved) and the two axes of the vision tower.

A token has three positions: time, height, width. Text moves all three together; the tokens of an
image share one time and differ in height and width, and the text after an image goes on from the
larger side of its grid:

    token    T  T  [ image, 2 x 2 ]  T        three tokens of text around one image of 2 x 2 tokens
    time     0  1   2  2  2  2       4
    height   0  1   2  2  3  3       4
    width    0  1   2  3  2  3       4

Each rotary frequency turns with one of the three. Sectioned (Qwen2-VL, 2.5): the first ones by
time, the next by height, the last by width. Interleaved (Qwen3-VL): time, height, width in turn
until the sections of height and width are used up, then time. Sources: Qwen2-VL (arXiv 2409.12191,
2.1), Qwen3-VL (arXiv 2511.21631).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.models.config import TextConfig, VisionConfig
from jaxagent.types import Grid, ImageSpan


class Rotation(NamedTuple):
    """Cosines and sines by which the two halves of every head turn, in float32."""

    cos: Float[Array, "*b half"]
    sin: Float[Array, "*b half"]


class Positions(NamedTuple):
    """The three positions of each token, and the position that the next token takes."""

    ids: Int[np.ndarray, "3 t"]
    next: int


def position_ids(
    ids: Int[np.ndarray, " t"], images: Sequence[ImageSpan], merge: int, *, first: int = 0
) -> Positions:
    """The M-RoPE positions of a chunk whose first token stands at `first`.

    `images` are spans of this chunk (`start` counts from its first token), `merge` the patches a
    side of one image token. Raises ValueError when a span overlaps another or leaves the chunk.
    """
    parts, at, position = [], 0, first
    for image in sorted(images, key=lambda image: image.start):
        frames, height, width = image.grid[0], image.grid[1] // merge, image.grid[2] // merge
        end = image.start + frames * height * width
        if image.start < at or end > len(ids):
            raise ValueError(
                f"Image {image.key!r} takes tokens {image.start} to {end}, but tokens {at} to "
                f"{len(ids)} are free."
            )
        text = image.start - at
        parts.append(np.broadcast_to(np.arange(position, position + text), (3, text)))
        position += text
        parts.append(np.indices((frames, height, width)).reshape(3, -1) + position)
        position += max(height, width)
        at = end
    text = len(ids) - at
    parts.append(np.broadcast_to(np.arange(position, position + text), (3, text)))
    return Positions(np.concatenate(parts, axis=1).astype(np.int32), position + text)


def num_image_tokens(grid: Grid, merge: int) -> int:
    """The tokens of an image of this many frames, rows and columns of patches."""
    frames, rows, columns = grid
    return frames * (rows // merge) * (columns // merge)


def _inverse_frequencies(size: int, theta: float) -> Float[np.ndarray, " half"]:
    return (1.0 / theta ** (np.arange(0, size, 2, dtype=np.float32) / size)).astype(np.float32)


def frequency_axes(config: TextConfig) -> Int[np.ndarray, " half"]:
    """Which of time (0), height (1) and width (2) turns each frequency."""
    _, height, width = config.rope_sections
    half = config.head_size // 2
    if not config.rope_interleaved:
        return np.repeat(np.arange(3), config.rope_sections)
    axes = np.zeros(half, dtype=np.int64)
    axes[1 : 3 * height : 3] = 1
    axes[2 : 3 * width : 3] = 2
    return axes


def text_rotation(positions: Int[Array, "3 b t"], config: TextConfig) -> Rotation:
    """The rotation of every token of a text tower."""
    by_frequency = jnp.moveaxis(positions[frequency_axes(config)], 0, -1).astype(jnp.float32)
    angles = by_frequency * _inverse_frequencies(config.head_size, config.rope_theta)[None, None]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def patch_coordinates(height: int, width: int, merge: int) -> Int[np.ndarray, "2 p"]:
    """Row and column of each patch of a frame, in the order of its merge x merge blocks."""
    coordinates = np.indices((height, width))
    blocks = coordinates.reshape(2, height // merge, merge, width // merge, merge)
    return blocks.transpose(0, 1, 3, 2, 4).reshape(2, -1)


def vision_rotation(height: int, width: int, config: VisionConfig) -> Rotation:
    """The rotation of each patch of a frame, `[1 p half]`: half by its row, half by its column."""
    rows, columns = patch_coordinates(height, width, config.merge)
    frequencies = _inverse_frequencies(config.head_size // 2, 10_000.0)
    angles = np.concatenate([np.outer(rows, frequencies), np.outer(columns, frequencies)], axis=1)
    angles = angles.astype(np.float32)[None]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "b t n h"], rotation: Rotation) -> Float[Array, "b t n h"]:
    """Every head of `x` turned: (x1 cos - x2 sin, x2 cos + x1 sin), computed in float32."""
    cos, sin = rotation.cos[:, :, None], rotation.sin[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
