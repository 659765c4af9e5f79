"""Image vectors from a folder of our small convolutional encoder.

folder/card.json           sizes, and what made the weights: command, seed, time, recall
       model.safetensors   one tensor a parameter, named by its path
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxagent.models.conv_encoder import ConvEncoderConfig, Model
from jaxagent.retrieval.ladders import cuts
from jaxagent.retrieval.text_encoder import file_digest
from jaxagent.trees import Params, flat, nested

CARD, WEIGHTS = "card.json", "model.safetensors"
BATCHES = (1, 8, 64)


def shipped_folder(name: str) -> Path:
    """The folder of weights that came with this package."""
    return Path(str(resources.files("jaxagent"))) / "pretrained" / name


class ConvImageEncoder:
    """An open image encoder; images of any size are scaled to the one it was trained at."""

    def __init__(self, name: str, model: Model, params: Params, digest: str):
        self.name = name
        self.digest = digest
        self.width = model.config.out_width
        self._size = model.config.size
        self._params = params
        self._encode = _compiled(model)

    def __call__(self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]) -> Float32[np.ndarray, "n e"]:
        """One unit vector per image."""
        pixels = np.stack([scaled(image, self._size) for image in images])
        vectors = []
        for start, stop, size in cuts(BATCHES, len(pixels)):
            block = np.pad(pixels[start:stop], ((0, size - (stop - start)), *[(0, 0)] * 3))
            vectors.append(
                np.asarray(self._encode(self._params, jnp.asarray(block)))[: stop - start]
            )
        return np.concatenate(vectors)


def scaled(image: UInt8[np.ndarray, "_ _ 3"], size: int) -> UInt8[np.ndarray, "size size 3"]:
    """The image as a square of `size` pixels a side."""
    if image.shape == (size, size, 3):
        return image
    square = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2)
    return np.asarray(square)


@cache
def _compiled(model: Model):
    return jax.jit(model.encode)


def read_image_encoder(name: str, folder: Path) -> ConvImageEncoder:
    """The encoder in `folder`.

    Raises FileNotFoundError when a file is missing and ValueError when the files do not fit each
    other.
    """
    for file in (CARD, WEIGHTS):
        if not (folder / file).exists():
            raise FileNotFoundError(
                f"{folder / file} is missing. Install jaxagent again, or train the encoder with "
                "configs/flag_encoder.py."
            )
    try:
        sizes = json.loads((folder / CARD).read_text())["sizes"]
        model = Model(ConvEncoderConfig(**sizes | {"widths": tuple(sizes["widths"])}))
        named = load_file(folder / WEIGHTS)
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise ValueError(f"The image encoder at {folder} cannot be read ({error!r}).") from None
    shapes = {key: leaf.shape for key, leaf in flat(model.shapes()).items()}
    found = {key: tensor.shape for key, tensor in named.items()}
    if found != shapes:
        wrong = sorted(
            key for key in shapes.keys() | found.keys() if found.get(key) != shapes.get(key)
        )
        raise ValueError(
            f"The weights at {folder} do not fit the sizes in its {CARD}: {', '.join(wrong)}."
        )
    params = nested({key: jnp.asarray(tensor, jnp.float32) for key, tensor in named.items()})
    return ConvImageEncoder(name, model, params, file_digest(folder / WEIGHTS))


def save_image_encoder(folder: Path, model: Model, params: Params, card: Mapping[str, Any]) -> None:
    """Writes weights and card; the card gets the model's sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: np.asarray(leaf) for key, leaf in flat(params).items()}, folder / WEIGHTS)
    sizes = {
        "size": model.config.size,
        "patch": model.config.patch,
        "widths": list(model.config.widths),
        "out_width": model.config.out_width,
    }
    text = json.dumps({"sizes": sizes} | dict(card), indent=1)
    (folder / CARD).write_text(text + "\n")
