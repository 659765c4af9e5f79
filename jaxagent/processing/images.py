"""Pixels to the patches of a vision tower, through transformers' PIL processor (no torch).

An image is resized so that both sides are multiples of patch * merge and its area lies within the
folder's bounds, scaled to [-1, 1] or as the folder says, and cut into patches in the order of their
merge x merge blocks; one image fills both frames of a temporal patch.

The families differ in numbers only, and all are read: `min_pixels` and `max_pixels` at the top
(Qwen2-VL, Qwen2.5-VL), or the same two areas as `size.shortest_edge` and `size.longest_edge`
(Qwen3-VL, and what transformers saves), in a file of their own or under `image_processor` in
`processor_config.json` (transformers 5). A field that asks for anything else is refused.
"""

import json
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from jaxagent.models.rope import num_image_tokens
from jaxagent.processing.image_files import ImageError
from jaxagent.types import Grid


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
        """From `preprocessor_config.json`; ImageError when it is missing, unreadable or another's.

        Fields under `image_processor` of `processor_config.json` come first, as in transformers.
        """
        path, fields = _fields(Path(folder))
        _check(path, fields)
        try:
            made = Qwen2VLImageProcessorPil(**{k: v for k, v in fields.items() if k in _READ})
        except (TypeError, ValueError) as error:
            raise ImageError(f"{path} has fields that do not fit together: {error}.") from None
        smallest, largest = made.size.shortest_edge, made.size.longest_edge
        if not (_is_count(smallest) and _is_count(largest) and smallest <= largest):
            raise ImageError(
                f"{path} bounds the pixels of an image by {smallest} and {largest}; two whole "
                "numbers are needed, the smaller first, as size.shortest_edge and "
                "size.longest_edge or as min_pixels and max_pixels. Copy it from the policy's "
                "source."
            )
        return cls(made)

    @property
    def merge(self) -> int:
        """Patches a side of one image token."""
        return self.processor.merge_size

    def grid(self, height: int, width: int) -> Grid:
        """The grid of an image of this many pixels; ImageError when it is too long and thin."""
        if height < 1 or width < 1:
            raise ImageError(f"An image of {height} x {width} pixels has none; leave it out.")
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


class _Fields(NamedTuple):
    """The fields that are not null, and the file they stand in."""

    path: Path
    values: dict[str, object]


def _fields(folder: Path) -> _Fields:
    both, own = folder / "processor_config.json", folder / "preprocessor_config.json"
    path, fields = both, _object(both).get("image_processor") if both.is_file() else None
    if fields is None:
        path, fields = own, _object(own)
    if not isinstance(fields, dict):
        raise ImageError(
            f"{path} has {fields!r} as image_processor; it must be an object of fields. Copy it "
            "from the policy's source."
        )
    return _Fields(path, {name: value for name, value in fields.items() if value is not None})


def _object(path: Path) -> dict[str, object]:
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
    return fields


_COUNTS = ("patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels")
_COLOURS = ("image_mean", "image_std")
_SWITCHES = ("do_rescale", "do_normalize")
_READ = {*_COUNTS, *_COLOURS, *_SWITCHES, "size", "resample", "rescale_factor"}
_ONLY = {
    "image_processor_type": (
        "Qwen2VLImageProcessor",
        "Qwen2VLImageProcessorFast",
        "Qwen2VLImageProcessorPil",
    ),
    "do_resize": (True,),
    "do_center_crop": (False,),
    "do_pad": (False,),
    "data_format": ("channels_first",),
}
"""Fields that would change the patches, and the values under which they do not."""
_WITHOUT_EFFECT = {
    "_valid_processor_keys",
    "crop_size",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "input_data_format",
    "pad_size",
    "processor_class",
    "return_tensors",
}
"""Fields of cropping and padding, which are off, of torch, and of inputs other than RGB bytes."""


def _check(path: Path, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if name in _ONLY:
            fits, allowed = value in _ONLY[name], " or ".join(map(repr, _ONLY[name]))
        elif name in _COUNTS:
            fits, allowed = _is_count(value), "a whole number above 0"
        elif name in _COLOURS:
            fits, allowed = _is_colour(value, zero=name == "image_mean"), "three numbers"
        elif name in _SWITCHES:
            fits, allowed = isinstance(value, bool), "true or false"
        elif name == "rescale_factor":
            fits, allowed = _is_number(value), "a number"
        elif name == "resample":
            fits, allowed = value in range(6), "one of Pillow's filters, 0 to 5"
        else:
            fits, allowed = name in _READ | _WITHOUT_EFFECT, "absent"
        if not fits:
            raise ImageError(
                f"{path} has {value!r} as {name}; it must be {allowed} for the patches to be "
                "those of a Qwen-VL policy. Correct it, or remove the field."
            )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_colour(value: object, *, zero: bool) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(_is_number(number) and (zero or number != 0) for number in value)
    )
