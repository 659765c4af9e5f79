"""The contexts that both sides are given: three images, two grids, and text alone.

    <system> text [image 0] text [image 1] [image 2] text <assistant>   continuation
    <system> text <assistant>                                          continuation

The images are drawn here, so that nothing has to be downloaded; a folder's own bounds of pixels
decide their grids.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxagent.models.rope import position_ids
from jaxagent.processing.policy import Policy
from jaxagent.types import ImageRef, ImageSpan

SIDES = ((200, 280), (330, 110), (200, 280))
"""Pixels of the images: a broad one, a tall one, and one as broad as the first."""
SYSTEM = "You compare pictures and answer in one sentence."
CONTINUATION = " The second picture is the tallest; the first and the third are broad."
_TEXTS = (
    "Here is a first picture: ",
    ". After it come two more, side by side: ",
    "Which of the 3 is the tallest? Say how you know.",
)


class Case(NamedTuple):
    """A context: its tokens (`prompt` of them, then the continuation), images and positions."""

    name: str
    ids: Int[np.ndarray, " t"]
    prompt: int
    spans: tuple[ImageSpan, ...]
    patches: tuple[Float[np.ndarray, "p c"], ...]
    positions: Int[np.ndarray, "3 t"]


def drawings() -> list[UInt8[np.ndarray, "_ _ 3"]]:
    """The images: squares of random colours under a slant of light."""
    numbers = np.random.default_rng(0)
    made = []
    for height, width in SIDES:
        squares = numbers.integers(0, 200, (-(-height // 20), -(-width // 20), 3))
        tiled = squares.repeat(20, 0).repeat(20, 1)[:height, :width]
        light = np.add.outer(np.arange(height), np.arange(width)) % 56
        made.append((tiled + light[:, :, None]).astype(np.uint8))
    return made


def cases(policy: Policy) -> list[Case]:
    """Both contexts in a policy's own format."""
    images = {str(number): image for number, image in enumerate(drawings())}
    patches = {key: policy.image_processor.patches(image) for key, image in images.items()}
    first, then, last = _TEXTS
    parts = {
        "images": (first, ImageRef("0"), then, ImageRef("1"), ImageRef("2"), last),
        "text only": (last,),
    }
    continuation = policy.chat.plain(CONTINUATION)
    made = []
    for name, given in parts.items():
        piece = policy.chat.prompt(SYSTEM, given, image_grid=lambda key: patches[key].grid)
        ids = np.asarray([*piece.ids, *continuation], np.int32)
        merge = policy.model.config.vision.merge
        made.append(
            Case(
                name=name,
                ids=ids,
                prompt=len(piece.ids),
                spans=piece.images,
                patches=tuple(patches[span.key].values for span in piece.images),
                positions=position_ids(ids, piece.images, merge).ids,
            )
        )
    return made
