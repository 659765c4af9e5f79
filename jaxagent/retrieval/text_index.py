"""Text search from strings: by vectors of an encoder, or by words where no encoder is installed."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from jaxagent.retrieval.hits import Hits, Index


@runtime_checkable
class TextIndex(Protocol):
    """Passages that can be searched with strings."""

    def search(
        self,
        queries: Sequence[str],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits: ...


class VectorCache:
    """The vectors of the last `size` keys asked for; misses are computed together."""

    def __init__(self, size: int = 8192):
        self._size = size
        self._vectors: OrderedDict[str, Float32[np.ndarray, " e"]] = OrderedDict()

    def __call__(
        self,
        keys: Sequence[str],
        vectors: Callable[[Sequence[str]], Float32[np.ndarray, "n e"]],
    ) -> Float32[np.ndarray, "q e"]:
        """One vector per key, in order."""
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            known.update(zip(new, vectors(new), strict=True))
        for key in keys:
            self._vectors[key] = known[key]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._size:
            self._vectors.popitem(last=False)
        return np.stack([known[key] for key in keys])


class DenseTextIndex:
    """An index of vectors with the queries' side of the encoder that made them."""

    def __init__(
        self, encoder: Callable[[Sequence[str]], Float32[np.ndarray, "n e"]], index: Index
    ):
        self.index = index
        self._encoder = encoder
        self._cache = VectorCache()

    def search(
        self,
        queries: Sequence[str],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits:
        """Passages by the cosine of their vectors with the query's."""
        if not queries:
            return Hits(np.zeros((0, top), np.float32), np.zeros((0, top), np.int32))
        return self.index.search(self._cache(queries, self._encoder), top, exclude=exclude)
