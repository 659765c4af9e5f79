"""The tokens of one dialogue as they grow: what was read, what was written, where images stand.

    prompt · turn · observation · turn · …          one row of tokens, never tokenised twice
    written  0 · 1 · 0 · 1                          True on what the policy sampled
    fed      the tokens whose keys and values lie in the cache

Between two turns of the loop a dialogue has fed all its tokens but the last. That one is fed by the
decode step that samples its successor, so no step is needed to start a turn.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxagent.models.rope import num_image_tokens, position_ids
from jaxagent.types import Dialogue, ImageSpan, Trajectory


class Context:
    """A growing row of at most `length` tokens; `merge` is the patches a side of an image token."""

    def __init__(self, length: int, *, merge: int):
        self.length = length
        self.merge = merge
        self.size = 0
        self.fed = 0
        self.images: list[ImageSpan] = []
        self._ids = np.zeros(length, np.int32)
        self._written = np.zeros(length, bool)
        self._log_probs = np.zeros(length, np.float32)
        self._positions = np.zeros((3, length), np.int32)
        self._next_position = 0

    @property
    def ids(self) -> Int[np.ndarray, " t"]:
        return self._ids[: self.size]

    @property
    def positions(self) -> Int[np.ndarray, "3 t"]:
        """M-RoPE positions: time, height, width."""
        return self._positions[:, : self.size]

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.length - self.size

    @property
    def unfed_images(self) -> list[ImageSpan]:
        """The images that are yet to be fed, or a part of them."""
        return [image for image in self.images if image.start + self.num_tokens(image) > self.fed]

    def append(self, ids: Sequence[int], images: Sequence[ImageSpan] = ()) -> None:
        """Adds tokens of the environment; `images` count from the first of them."""
        chunk = np.asarray(ids, np.int32)
        placed = position_ids(chunk, images, self.merge, first=self._next_position)
        self.images += [
            ImageSpan(key=image.key, start=self.size + image.start, grid=image.grid)
            for image in images
        ]
        self._extend(chunk, placed.ids)
        self._next_position = placed.next

    def write(self, ids: Int[np.ndarray, " t"], log_probs: Float[np.ndarray, " t"]) -> None:
        """Adds tokens of the policy; each was sampled by the step that fed the token before it."""
        new = slice(self.size, self.size + len(ids))
        self._written[new] = True
        self._log_probs[new] = log_probs
        positions = np.arange(self._next_position, self._next_position + len(ids))
        self._extend(ids, np.broadcast_to(positions, (3, len(ids))))
        self._next_position += len(ids)
        self.fed += len(ids)

    def num_tokens(self, image: ImageSpan) -> int:
        """Tokens that an image takes."""
        return num_image_tokens(image.grid, self.merge)

    def trajectory(
        self,
        dialogue: Dialogue,
        sample: int,
        *,
        num_calls: int,
        truncated: bool,
        failures: Mapping[str, int],
    ) -> Trajectory:
        """The finished dialogue with its tokens."""
        return Trajectory(
            dialogue=dialogue,
            sample=sample,
            ids=self.ids.copy(),
            written=self._written[: self.size].copy(),
            log_probs=self._log_probs[: self.size].copy(),
            images=tuple(self.images),
            num_calls=num_calls,
            truncated=truncated,
            failures=dict(failures),
        )

    def _extend(self, ids: Int[np.ndarray, " t"], positions: Int[np.ndarray, "3 t"]) -> None:
        end = self.size + len(ids)
        if end > self.length:
            raise ValueError(
                f"{len(ids)} tokens do not fit: {self.size} of {self.length} are taken."
            )
        self._ids[self.size : end] = ids
        self._positions[:, self.size : end] = positions
        self.size = end


def num_environment_tokens(trajectory: Trajectory) -> int:
    """Tokens that had to be appended as chunks: those whose successor the policy did not write.

    The last token is never fed to the policy.
    """
    return int(np.count_nonzero(~trajectory.written[1:]))
