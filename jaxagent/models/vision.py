"""What the vision towers of the Qwen-VL families share: blocks, windows, mergers.

    x = x + o(attention(rotate(q), rotate(k), v));  x = x + mlp(norm(x))       q, k, v of norm(x)

A block's attention goes by windows: runs of patches that see each other and nobody else. A tower
that attends within whole frames has one window. Windows are contiguous, so they are slices and not
a mask, and what lies in another window is never computed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.attention import attention
from jaxagent.models.layers import MLP, Linear, gelu
from jaxagent.models.rope import Rotation, rotate

EPSILON = 1e-6
"""Of every norm of a vision tower; no `config.json` names it."""

_ALL_AT_ONCE, _BLOCK = 4096, 512
"""Patches of a window whose scores are held together; else the queries of a block."""

Windows = Sequence[tuple[int, int]]
"""(how many, patches in each): runs of equal windows, in the order of the patches."""
Norm = Callable[[int], nnx.Module]
"""The norm of a width."""


class Layout(NamedTuple):
    """The image tokens of a frame in the order that windows want, and the windows of patches."""

    order: Int[np.ndarray, " n"]
    windows: Windows


def window_layout(rows: int, columns: int, *, side: int, merge: int) -> Layout:
    """The windows of at most `side` x `side` image tokens in a frame of `rows` x `columns` tokens.

    Windows of one shape follow each other: whole ones, those cut at the right edge, those cut at
    the lower edge, the corner.

    3 x 3 tokens, side 2:   0 1 | 2      order 0 1 3 4 | 2 5 | 6 7 | 8
                            3 4 | 5
                            ----+--
                            6 7 | 8
    """
    index = np.arange(rows * columns).reshape(rows, columns)
    cut_rows, cut_columns = rows // side * side, columns // side * side
    order, windows = [], []
    for part in (
        index[:cut_rows, :cut_columns],
        index[:cut_rows, cut_columns:],
        index[cut_rows:, :cut_columns],
        index[cut_rows:, cut_columns:],
    ):
        if not part.size:
            continue
        height, width = min(side, part.shape[0]), min(side, part.shape[1])
        blocks = part.reshape(part.shape[0] // height, height, part.shape[1] // width, width)
        order.append(blocks.transpose(0, 2, 1, 3).reshape(-1))
        windows.append((part.size // (height * width), height * width * merge**2))
    return Layout(np.concatenate(order), tuple(windows))


def window_attention(
    q: Float[Array, "i p n h"],
    k: Float[Array, "i p n h"],
    v: Float[Array, "i p n h"],
    windows: Windows,
) -> Float[Array, "i p n h"]:
    """What each patch takes from the patches of its window."""
    taken, start = [], 0
    for num, size in windows:
        end = start + num * size
        cut = (x[:, start:end].reshape(-1, size, *x.shape[2:]) for x in (q, k, v))
        attend = _attention_by_blocks if size > _ALL_AT_ONCE else partial(attention, visible=None)
        taken.append(attend(*cut).reshape(q.shape[0], num * size, *q.shape[2:]))
        start = end
    return jnp.concatenate(taken, axis=1)


def _attention_by_blocks(
    q: Float[Array, "i p n h"], k: Float[Array, "i p n h"], v: Float[Array, "i p n h"]
) -> Float[Array, "i p n h"]:
    """`attention` with the scores of a block of queries at a time, recomputed backwards.

    An image of 12.8 million pixels, the families' default limit, has 65,536 patches; all its scores
    at once would take 256 GiB.
    """
    num_images, num_patches, n, h = q.shape
    num_blocks = -(-num_patches // _BLOCK)
    padded = jnp.pad(q, ((0, 0), (0, num_blocks * _BLOCK - num_patches), (0, 0), (0, 0)))
    blocks = padded.reshape(num_images, num_blocks, _BLOCK, n, h).swapaxes(0, 1)
    taken = jax.lax.map(jax.checkpoint(lambda block: attention(block, k, v, None)), blocks)
    return taken.swapaxes(0, 1).reshape(num_images, -1, n, h)[:, :num_patches]


class VisionAttention(nnx.Module):
    """Attention among the patches of a window."""

    def __init__(self, width: int, heads: int):
        h = width // heads
        self.qkv = Linear((width,), (3, heads, h), bias=True)
        self.o = Linear((heads, h), (width,), bias=True)

    def __call__(
        self, x: Float[Array, "i p d"], rotation: Rotation, windows: Windows
    ) -> Float[Array, "i p d"]:
        q, k, v = jnp.moveaxis(self.qkv(x), 2, 0)
        return self.o(window_attention(rotate(q, rotation), rotate(k, rotation), v, windows))


class VisionBlock(nnx.Module):
    """One layer of a vision tower."""

    def __init__(self, width: int, heads: int, *, norm: Norm, mlp: Callable[[], nnx.Module]):
        self.attention_norm = norm(width)
        self.attention = VisionAttention(width, heads)
        self.mlp_norm = norm(width)
        self.mlp = mlp()

    def __call__(
        self, x: Float[Array, "i p d"], rotation: Rotation, windows: Windows
    ) -> Float[Array, "i p d"]:
        x = x + self.attention(self.attention_norm(x), rotation, windows)
        return x + self.mlp(self.mlp_norm(x))


class Merger(nnx.Module):
    """One text token of merge x merge patches; the norm stands before or after they are joined."""

    def __init__(
        self, width: int, merge: int, out_width: int, *, norm: Norm, norm_joined: bool = False
    ):
        joined = width * merge**2
        self.norm = norm(joined if norm_joined else width)
        self.mlp = MLP(joined, joined, out_width, activation=gelu)
        self.joined = joined
        self.norm_joined = norm_joined

    def __call__(self, x: Float[Array, "i p d"]) -> Float[Array, "i n e"]:
        if not self.norm_joined:
            x = self.norm(x)
        x = x.reshape(x.shape[0], -1, self.joined)
        return self.mlp(self.norm(x) if self.norm_joined else x)
