"""Pixels to the patches of a vision tower, through transformers' PIL processor (no torch).

An image is resized so that both sides are multiples of patch * merge and its area lies within the
folder's bounds, scaled to [-1, 1] or as the folder says, and cut into patches in the order of their
merge x merge blocks; one image fills both frames of a temporal patch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from jaxagent.models.qwen3_vl import Grid
from jaxagent.models.rope import num_image_tokens


class ImageError(ValueError):
    """An image that cannot become patches; the message says why."""


class Patches(NamedTuple):
    """The flattened patches of one image, and its grid."""

    values: Float[np.ndarray, "p c"]
    grid: Grid


@dataclass(frozen=True)
class ImageProcessor:
    """The preprocessing that a policy's folder asks for."""

    processor: Qwen2VLImageProcessorPil

    @classmethod
    def read(cls, folder: str | Path) -> "ImageProcessor":
        """From `preprocessor_config.json`; ImageError when it is missing or unreadable."""
        path = Path(folder) / "preprocessor_config.json"
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            raise ImageError(f"{path} is not there; copy it from the policy's source.") from None
        except ValueError as error:
            raise ImageError(f"{path} is not JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise ImageError(
                f"{path} is {fields!r}; it must be an object of fields. Copy it from the policy's "
                "source."
            )
        known = Qwen2VLImageProcessorPil.valid_kwargs.__annotations__
        names = set(known) | {"size", "image_mean", "image_std"}
        return cls(Qwen2VLImageProcessorPil(**{k: v for k, v in fields.items() if k in names}))

    @property
    def merge(self) -> int:
        """Patches a side of one image token."""
        return self.processor.merge_size

    def grid(self, height: int, width: int) -> Grid:
        """The grid of an image of this many pixels; ImageError when it is too long and thin."""
        size, patch = self.processor.size, self.processor.patch_size
        try:
            rows, columns = smart_resize(
                height,
                width,
                factor=patch * self.merge,
                min_pixels=size["shortest_edge"],
                max_pixels=size["longest_edge"],
            )
        except ValueError:
            raise ImageError(
                f"An image of {height} x {width} pixels is too long and thin; the longer side may "
                "be at most 200 times the shorter."
            ) from None
        return 1, rows // patch, columns // patch

    def num_tokens(self, grid: Grid) -> int:
        """The placeholder tokens that an image of this grid takes."""
        return num_image_tokens(grid, self.merge)

    def patches(self, rgb: Shaped[np.ndarray, "..."]) -> Patches:
        """The patches of RGB bytes, `[y x 3]` uint8; ImageError when the array is anything else."""
        if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or not rgb.size:
            raise ImageError(
                f"An image of shape {rgb.shape} and dtype {rgb.dtype} cannot be read; "
                "convert it to RGB bytes, [height, width, 3] uint8."
            )
        self.grid(*rgb.shape[:2])
        made = self.processor(images=[rgb], input_data_format="channels_last", return_tensors="np")
        return Patches(made["pixel_values"], tuple(int(n) for n in made["image_grid_thw"][0]))
