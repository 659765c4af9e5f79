"""Image features on the host, kept by image and weight version within a bound of bytes.

An image is encoded once while it stays: by all samples of a group, all turns and, with a frozen
tower, all steps. What is missing is encoded in batches of one grid. The least recently used
features go first; a new version drops those of every other.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagent.processing.images import Patches
from jaxagent.processing.policy import Policy
from jaxagent.retrieval.ladders import rung
from jaxagent.rollout.decode import encoded
from jaxagent.trees import Params
from jaxagent.types import Grid, Images


class Features(NamedTuple):
    """One image's tokens, and what deepstack adds at them."""

    tokens: Float[np.ndarray, "n d"]
    deepstack: Float[np.ndarray, "s n d"]

    @property
    def num_bytes(self) -> int:
        return self.tokens.nbytes + self.deepstack.nbytes


class FeatureCache:
    """Features of the images that `images` finds by key.

    Args:
        image_rows: ladder of how many images are encoded together.
        max_bytes: bound of what is kept between calls.
    """

    def __init__(
        self, policy: Policy, images: Images, *, image_rows: tuple[int, ...], max_bytes: int
    ):
        self.policy = policy
        self.images = images
        self.image_rows = image_rows
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_encoded = 0
        self._version: int | None = None
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._patches: dict[str, Patches] = {}
        self._grids: dict[str, Grid] = {}

    def grid(self, key: str) -> Grid:
        """The grid of an image; KeyError with its key when there is none."""
        if key not in self._grids:
            patches = self.policy.image_processor.patches(self.images(key))
            self._grids[key] = patches.grid
            if key not in self._kept:
                self._patches[key] = patches
        return self._grids[key]

    def features(self, params: Params, keys: Iterable[str], *, version: int) -> dict[str, Features]:
        """Features of each key, in the order asked for, under the weights of `version`."""
        if version != self._version:
            self._kept.clear()
            self.num_bytes = 0
            self._version = version
        keys = list(dict.fromkeys(keys))
        found = {key: self._kept[key] for key in keys if key in self._kept}
        by_grid = defaultdict(list)
        for key in keys:
            if key not in found:
                by_grid[self.grid(key)].append(key)
        for grid, missing in by_grid.items():
            for at in range(0, len(missing), self.image_rows[-1]):
                found |= self._encoded(params, missing[at : at + self.image_rows[-1]], grid)
        for key in keys:
            self._keep(key, found[key])
        return {key: found[key] for key in keys}

    def _encoded(self, params: Params, keys: Sequence[str], grid: Grid) -> dict[str, Features]:
        values = [self._taken_patches(key) for key in keys]
        batch = np.zeros((rung(self.image_rows, len(keys)), *values[0].shape), values[0].dtype)
        batch[: len(keys)] = values
        out = encoded(self.policy.model, params, batch, grid=grid)
        tokens, deepstack = np.asarray(out.tokens), np.asarray(out.deepstack)
        self.num_encoded += len(keys)
        return {
            key: Features(tokens[at].copy(), deepstack[:, at].copy()) for at, key in enumerate(keys)
        }

    def _taken_patches(self, key: str) -> Float[np.ndarray, "p c"]:
        patches = self._patches.pop(key, None)
        if patches is None:
            patches = self.policy.image_processor.patches(self.images(key))
        return patches.values

    def _keep(self, key: str, features: Features) -> None:
        if key not in self._kept:
            self.num_bytes += features.num_bytes
        self._kept[key] = features
        self._kept.move_to_end(key)
        while self.num_bytes > self.max_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self.num_bytes -= dropped.num_bytes
