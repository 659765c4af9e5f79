"""The encoders of images and texts that a base is built and searched with.

An encoder is opened like an index: it holds the frozen weights that made the base's vectors, and
its `digest` stands in the base's header, so that a query is never compared with the vectors of
other weights.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8


@runtime_checkable
class ImageEncoder(Protocol):
    """Unit vectors of RGB images of any size; `digest` identifies the weights."""

    name: str
    digest: str

    def __call__(
        self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Float32[np.ndarray, "n e"]: ...


@runtime_checkable
class TextEncoder(Protocol):
    """Unit vectors of texts; `digest` identifies the weights."""

    name: str
    digest: str

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]: ...


class Encoders(NamedTuple):
    """What encodes the two sides of a base; without a text encoder, text is searched by words."""

    image: ImageEncoder
    text: TextEncoder | None


def open_encoders(image: str = "flag_encoder", text: str | None = "minilm") -> Encoders:
    """Encoders by name; `text` = None searches by words."""
    raise NotImplementedError(image, text)
