"""Images on their way into a micro-batch: features of a frozen tower, or patches for one that
learns.

A frozen tower gives the same features for an image whenever it is asked, so each image is encoded
once and its features wait on the host. A tower that learns is part of the differentiated program:
it gets the patches of each distinct image of the micro-batch, one array a grid.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import Float

from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.qwen3_vl import Grid, Model
from jaxagent.training.batch import Pictures
from jaxagent.trees import Params

Patches = Callable[[str], Float[np.ndarray, "p c"]]
"""Key -> the flattened patches of an image; KeyError when there is no such image."""


class FeatureCache:
    """Features of images under the parameters of one frozen tower.

    Holds at most `max_images`; the one unused for longest leaves. `batch` images are encoded a
    call.
    """

    def __init__(self, model: Model, patches: Patches, *, max_images: int = 8192, batch: int = 16):
        self.model = model
        self.patches = patches
        self.max_images = max_images
        self.batch = batch
        self.num_encoded = 0
        self._features: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._encode = jax.jit(model.encode_images, static_argnums=2)

    def pictures(self, params: Params, grids: Mapping[str, Grid], image_tokens: int) -> Pictures:
        """The features of the images, padded to `image_tokens`; only those not held are encoded."""
        if not image_tokens:
            return Pictures(None, {})
        missing = [key for key in grids if key not in self._features]
        for grid in dict.fromkeys(grids[key] for key in missing):
            self._add(params, [key for key in missing if grids[key] == grid], grid)
        found = [self._features[key] for key in grids]
        for key in grids:
            self._features.move_to_end(key)
        while len(self._features) > max(self.max_images, len(grids)):
            self._features.popitem(last=False)
        ends = np.cumsum([0, *(len(one.tokens) for one in found)])
        text, vision = self.model.config.text, self.model.config.vision
        tokens = np.zeros((1, image_tokens, text.width), np.float32)
        deepstack = np.zeros((len(vision.deepstack), *tokens.shape), np.float32)
        for one, start, end in zip(found, ends[:-1], ends[1:], strict=True):
            tokens[0, start:end] = one.tokens
            deepstack[:, 0, start:end] = one.deepstack
        first_token = dict(zip(grids, ends[:-1].tolist(), strict=True))
        return Pictures(ImageFeatures(tokens, deepstack), first_token)

    def _add(self, params: Params, keys: list[str], grid: Grid) -> None:
        for start in range(0, len(keys), self.batch):
            chunk = keys[start : start + self.batch]
            patches = np.stack([self.patches(key) for key in chunk])
            padding = ((0, self.batch - len(chunk)), (0, 0), (0, 0))
            features = jax.device_get(self._encode(params, np.pad(patches, padding), grid))
            for i, key in enumerate(chunk):
                self._features[key] = ImageFeatures(features.tokens[i], features.deepstack[:, i])
        self.num_encoded += len(keys)


def patch_pictures(
    patches: Patches, merge: int, grids: Mapping[str, Grid], image_tokens: int
) -> Pictures:
    """The patches of the images, one array a grid, padded so that the shapes depend on grids alone.

    With one grid the array holds as many images as `image_tokens` has room for. With several, each
    grid's array is padded so.
    """
    if not image_tokens:
        return Pictures(None, {})
    arrays, first_token, start = {}, {}, 0
    for grid in sorted(set(grids.values())):
        keys = [key for key in grids if grids[key] == grid]
        num_tokens = int(np.prod(grid)) // merge**2
        num_images = max(image_tokens // num_tokens, len(keys))
        values = np.stack([patches(key) for key in keys])
        arrays[grid] = np.pad(values, ((0, num_images - len(keys)), (0, 0), (0, 0)))
        first_token |= {key: start + i * num_tokens for i, key in enumerate(keys)}
        start += num_images * num_tokens
    return Pictures(arrays, first_token)
