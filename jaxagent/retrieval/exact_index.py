"""Exact search: one matrix product and top-k on the default device."""

from collections.abc import Collection, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, Float32, Int32

from jaxagent.retrieval.hits import (
    Hits,
    IndexConfig,
    checked_queries,
    collected,
    proposals_wanted,
)
from jaxagent.retrieval.ladders import cuts

QUERIES = (1, 8, 64, 512)
"""Batch sizes that are compiled; a batch is padded to the next one, a larger one is cut."""


@partial(jax.jit, static_argnames="top")
def _device_top(
    base: Float32[Array, "rows e"], queries: Float32[Array, "q e"], top: int
) -> Int32[Array, "q top"]:
    scores = jnp.einsum("qe,re->qr", queries, base, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.top_k(scores, top)[1]


class ExactIndex:
    """An open exact index."""

    def __init__(self, config: IndexConfig, vectors: Float32[np.ndarray, "rows e"]):
        self.config = config
        self.vectors = vectors
        self._base = jnp.asarray(vectors)

    def search(
        self,
        vectors: Float32[np.ndarray, "q e"],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits:
        """Exact hits; see `Hits`."""
        exclude = checked_queries(self.vectors, vectors, top, exclude)
        width = proposals_wanted(top, exclude, len(self.vectors))
        proposals = []
        for start, stop, size in cuts(QUERIES, len(vectors)):
            block = vectors[start:stop]
            padded = np.pad(block, ((0, size - len(block)), (0, 0)))
            proposals.extend(
                np.asarray(_device_top(self._base, jnp.asarray(padded), width))[: len(block)]
            )
        return collected(self.vectors, vectors, proposals, top=top, exclude=exclude)

    def save_searcher(self, folder: epath.Path) -> None:
        """Writes nothing: the vectors are all there is."""
