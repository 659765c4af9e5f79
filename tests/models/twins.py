"""A policy here and in transformers, on the same contexts."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel

from jaxagent.models.decoder import ImageFeatures, joined
from jaxagent.models.policy import Model
from jaxagent.models.rope import num_image_tokens, position_ids
from jaxagent.trees import Params
from jaxagent.types import Grid, ImageSpan

LENGTH = 48
LAYOUTS = {
    "text only": (20,),
    "one image": (3, (1, 4, 4), 8),
    "odd grids, one of them twice": (2, (1, 6, 10), 2, (1, 2, 6), 4, (1, 2, 6), 5),
    "adjacent images": (4, (1, 2, 6), 1, (1, 6, 10), 1, (1, 4, 4), 6),
}
"""Contexts, by what is special about them."""


class Context(NamedTuple):
    """Token ids and the images among them, each a span and its random patches."""

    ids: np.ndarray
    spans: tuple[ImageSpan, ...]
    patches: tuple[np.ndarray, ...]


class Batch(NamedTuple):
    """Contexts as the arguments of `Model.forward`, padded to `LENGTH`, and images by grid."""

    ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    feature_index: np.ndarray
    images: dict[Grid, np.ndarray]


@cache
def hf_model(folder: Path) -> PreTrainedModel:
    """A folder as transformers reads it, in float32."""
    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def context(model: Model, layout: Sequence[int | Grid], *, seed: int) -> Context:
    """A context: a number stands for so many words, a grid for an image without any marker."""
    numbers = np.random.default_rng(seed)
    config = model.config
    ids: list[int] = []
    spans, patches = [], []
    for item in layout:
        if isinstance(item, int):
            ids += numbers.integers(0, 300, item).tolist()
            continue
        spans.append(ImageSpan(key=f"image {len(spans)}", start=len(ids), grid=item))
        ids += [config.image_token] * num_image_tokens(item, config.vision.merge)
        shape = (item[0] * item[1] * item[2], config.vision.patch_values)
        patches.append(numbers.standard_normal(shape, dtype=np.float32))
    return Context(np.asarray(ids, np.int32), tuple(spans), tuple(patches))


def batch(model: Model, contexts: Sequence[Context]) -> Batch:
    """One context a row; features lie grouped by grid, in the order of `images`."""
    merge = model.config.vision.merge
    made = Batch(
        np.zeros((len(contexts), LENGTH), np.int32),
        np.zeros((3, len(contexts), LENGTH), np.int32),
        np.zeros((len(contexts), LENGTH), np.int32),
        np.full((len(contexts), LENGTH), -1, np.int32),
        {},
    )
    images: dict[Grid, list] = {}
    for row, one in enumerate(contexts):
        length = len(one.ids)
        made.ids[row, :length] = one.ids
        made.positions[:, row, :length] = position_ids(one.ids, one.spans, merge).ids
        made.segments[row, :length] = 1
        for span, patches in zip(one.spans, one.patches, strict=True):
            images.setdefault(span.grid, []).append((row, span.start, patches))
    first = 0
    for grid, group in images.items():
        num = num_image_tokens(grid, merge)
        for row, start, _ in group:
            made.feature_index[row, start : start + num] = np.arange(first, first + num)
            first += num
        made.images[grid] = np.stack([patches for _, _, patches in group])
    return made


@partial(jax.jit, static_argnums=(0, 3))
def encoded(model: Model, params: Params, patches: np.ndarray, grid: Grid) -> ImageFeatures:
    """The features of images of one grid."""
    return model.encode_images(params, patches, grid)


def features(model: Model, params: Params, made: Batch) -> ImageFeatures | None:
    """The features that `feature_index` counts in: one row of tokens, grid by grid."""
    if not made.images:
        return None
    parts = [encoded(model, params, *image[::-1]) for image in made.images.items()]
    return joined(parts)


@partial(jax.jit, static_argnums=0)
def _logits(model, params, ids, positions, segments, features, feature_index):
    hidden = model.forward(params, ids, positions, segments, features, feature_index)
    return model.logits(params, hidden)


def logits(model: Model, params: Params, made: Batch) -> np.ndarray:
    """Our logits of a batch."""
    found = features(model, params, made)
    row = _logits(model, params, made.ids, made.positions, made.segments, found, made.feature_index)
    return np.asarray(row)


def hf_arguments(one: Context, image_token: int) -> dict[str, torch.Tensor]:
    """A context as transformers takes it."""
    ids = torch.tensor(one.ids, dtype=torch.long)[None]
    arguments = {"input_ids": ids}
    if one.spans:
        arguments |= {
            "pixel_values": torch.tensor(np.concatenate(one.patches)),
            "image_grid_thw": torch.tensor([span.grid for span in one.spans]),
            "mm_token_type_ids": (ids == image_token).int(),
        }
    return arguments


def hf_logits(one: Context, *, image_token: int, folder: Path) -> np.ndarray:
    """transformers' logits of one context."""
    with torch.no_grad():
        return hf_model(folder)(**hf_arguments(one, image_token)).logits[0].numpy()


def hf_states(model: PreTrainedModel, one: Context, *, image_token: int) -> list[np.ndarray]:
    """transformers' hidden states of one context: what each text layer and the last norm get.

    (Its own `output_hidden_states` holds Qwen3-VL's before deepstack is added.)
    """
    states = []
    text = model.model.language_model
    hooks = [
        module.register_forward_pre_hook(
            lambda _, positional, named: states.append(
                (positional[0] if positional else named["hidden_states"])[0].numpy()
            ),
            with_kwargs=True,
        )
        for module in (*text.layers, text.norm)
    ]
    with torch.no_grad():
        model(**hf_arguments(one, image_token))
    for hook in hooks:
        hook.remove()
    return states
