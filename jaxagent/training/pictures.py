"""Images on their way into a micro-batch: features of a frozen tower, or patches to learn from.

Features come from the cache that the sampler fills too, so an image is encoded once for both. A
tower that learns is part of the differentiated program: it gets the patches of each distinct image
of the micro-batch, one array a grid.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.policy import Model
from jaxagent.models.rope import num_image_tokens
from jaxagent.rollout.features import FeatureCache, Features
from jaxagent.training.batch import Pictures, PictureSource
from jaxagent.trees import Params
from jaxagent.types import Grid

FROZEN_VERSION = 0
"""The weight version of a tower that never changes."""


def frozen_pictures(cache: FeatureCache, params: Params) -> PictureSource:
    """Pictures of a frozen tower's features; `params` are the policy's."""
    features = partial(cache.features, params, version=FROZEN_VERSION)
    return partial(feature_pictures, cache.policy.model, features)


def feature_pictures(
    model: Model,
    features: Callable[[Iterable[str]], Mapping[str, Features]],
    grids: Mapping[str, Grid],
    image_tokens: int,
) -> Pictures:
    """The images' features behind each other, padded with zeros to `image_tokens`."""
    if not image_tokens:
        return Pictures(None, {})
    width, taps = model.config.text.width, len(model.config.vision.deepstack)
    tokens = np.zeros((1, image_tokens, width), np.float32)
    deepstack = np.zeros((taps, *tokens.shape), np.float32)
    first_token, start = {}, 0
    for key, found in features(grids).items():
        here = slice(start, start + len(found.tokens))
        tokens[0, here], deepstack[:, 0, here] = found.tokens, found.deepstack
        first_token[key], start = start, here.stop
    return Pictures(ImageFeatures(tokens, deepstack), first_token)


def patch_pictures(
    patches: Callable[[str], Float[np.ndarray, "p c"]],
    merge: int,
    grids: Mapping[str, Grid],
    image_tokens: int,
) -> Pictures:
    """The images' patches, one array a grid, each padded to what `image_tokens` has room for.

    Shapes depend on the set of grids alone, so with one image size nothing is compiled twice.
    """
    arrays, first_token, start = {}, {}, 0
    for grid in sorted(set(grids.values())):
        keys = [key for key in grids if grids[key] == grid]
        num_tokens = num_image_tokens(grid, merge)
        num_images = image_tokens // num_tokens
        values = np.stack([patches(key) for key in keys])
        arrays[grid] = np.pad(values, ((0, num_images - len(keys)), (0, 0), (0, 0)))
        first_token |= {key: start + i * num_tokens for i, key in enumerate(keys)}
        start += num_images * num_tokens
    return Pictures(arrays or None, first_token)
