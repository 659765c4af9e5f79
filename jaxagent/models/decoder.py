"""The text tower of Qwen2, Qwen2.5 and Qwen3, scanned over its layers.

    x = x + o(attention(rotate(norm(q)), rotate(norm(k)), v))      q, k, v of norm(x)
    x = x + down(silu(gate) * up)                                  gate, up of norm(x)

Flags of the config switch the norms of q and k (Qwen3) and the biases of q, k, v (Qwen2). Deepstack
adds one set of image features after each of the first layers. Those layers are a stack of their
own, so the tower is two scans and no layer adds zeros. One layer body serves both the packed
forward pass and the cached one: what differs is the `attend` that it is given. The cache is the
scans' carry.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.attention import KVCache
from jaxagent.models.config import TextConfig
from jaxagent.models.layers import Embedding, GatedMLP, Linear, RMSNorm, stack
from jaxagent.models.rope import Rotation, rotate

Attend = Callable[..., tuple[Array, KVCache | None]]
"""(cache, layer, q, k, v) -> (what the queries take, the cache with k and v)."""


class ImageFeatures(NamedTuple):
    """The tokens of images, and what deepstack adds at them after each of the first text layers."""

    tokens: Float[Array, "i n d"]
    deepstack: Float[Array, "s i n d"]


def without_deepstack(tokens: Float[Array, "i n d"]) -> ImageFeatures:
    """The features of a tower that has no deepstack."""
    return ImageFeatures(tokens, jnp.zeros((0, *tokens.shape), tokens.dtype))


def joined(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    """The features of images of several grids, one after the other in one row of tokens."""
    rows = [part.tokens.reshape(1, -1, part.tokens.shape[-1]) for part in parts]
    deepstack = [
        part.deepstack.reshape(len(part.deepstack), *row.shape)
        for part, row in zip(parts, rows, strict=True)
    ]
    return ImageFeatures(jnp.concatenate(rows, axis=1), jnp.concatenate(deepstack, axis=2))


class Placed(NamedTuple):
    """Image features and, for each token, the row of the flattened `[i n]` that it takes, or -1."""

    features: ImageFeatures
    index: Int[Array, "b t"]


class Decoded(NamedTuple):
    """What a pass gives: normed hidden states, the cache of `attend`, hidden states on request."""

    hidden: Float[Array, "b t d"]
    cache: KVCache | None
    states: Float[Array, "m b t d"]


def at_tokens(
    rows: Float[Array, "i n d"], index: Int[Array, "b t"], otherwise: Float[Array, "b t d"]
) -> Float[Array, "b t d"]:
    """`rows[index]` where `index` names a row of the flattened features, else `otherwise`."""
    taken = rows.reshape(-1, rows.shape[-1]).at[index].get(mode="clip").astype(otherwise.dtype)
    return jnp.where((index >= 0)[:, :, None], taken, otherwise)


class Attention(nnx.Module):
    """Projections of one layer's attention."""

    def __init__(self, config: TextConfig):
        d, n, k, h = config.width, config.heads, config.kv_heads, config.head_size
        self.q = Linear((d,), (n, h), bias=config.qkv_bias)
        self.k = Linear((d,), (k, h), bias=config.qkv_bias)
        self.v = Linear((d,), (k, h), bias=config.qkv_bias)
        self.o = Linear((n, h), (d,), bias=config.out_bias)
        self.q_norm = RMSNorm(h, epsilon=config.norm_epsilon) if config.qk_norm else None
        self.k_norm = RMSNorm(h, epsilon=config.norm_epsilon) if config.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "b t d"],
        rotation: Rotation,
        attend: Callable[[Array, Array, Array], tuple[Array, KVCache | None]],
    ) -> tuple[Float[Array, "b t d"], KVCache | None]:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        taken, cache = attend(rotate(q, rotation), rotate(k, rotation), v)
        return self.o(taken), cache


class DecoderLayer(nnx.Module):
    """One layer of the tower."""

    def __init__(self, config: TextConfig):
        self.attention_norm = RMSNorm(config.width, epsilon=config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, epsilon=config.norm_epsilon)
        self.mlp = GatedMLP(config.width, config.mlp_width)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        rotation: Rotation,
        attend: Callable[[Array, Array, Array], tuple[Array, KVCache | None]],
    ) -> tuple[Float[Array, "b t d"], KVCache | None]:
        taken, cache = self.attention(self.attention_norm(x), rotation, attend)
        x = x + taken
        return x + self.mlp(self.mlp_norm(x)), cache


class Decoder(nnx.Module):
    """Embedding table, the two stacks of layers, final norm and head."""

    def __init__(self, config: TextConfig):
        build = partial(DecoderLayer, config)
        self.config = config
        self.embed = Embedding(config.vocab, config.width)
        self.deepstack_layers = stack(build, config.deepstack) if config.deepstack else None
        num_plain = config.layers - config.deepstack
        self.layers = stack(build, num_plain) if num_plain else None
        self.norm = RMSNorm(config.width, epsilon=config.norm_epsilon)
        self.untied_head = None if config.tied else Linear((config.width,), (config.vocab,))

    def head(self) -> Float[Array, "d v"]:
        """The projection from hidden states to the vocabulary."""
        return self.embed.table[...].T if self.untied_head is None else self.untied_head.kernel[...]

    def __call__(
        self,
        x: Float[Array, "b t d"],
        rotation: Rotation,
        attend: Attend,
        *,
        cache: KVCache | None = None,
        images: Placed | None = None,
        remat: bool = False,
        states: tuple[int, ...] = (),
    ) -> Decoded:
        """The pass over embedded tokens.

        `states` are numbers of layers, 0 to all: the hidden states after so many, before the last
        norm, are kept beside the result.
        """
        # Each requested layer writes to the slots that are its own; nothing is kept without a
        # request.
        kept = jnp.zeros((len(states), *x.shape), x.dtype)
        numbers = jnp.asarray(states, jnp.int32)

        def keep(kept, num_layers, x):
            if not states:
                return kept
            return jnp.where((numbers == num_layers)[:, None, None, None], x[None], kept)

        def through(layers, num_before, carry, deepstack):
            graph, params = nnx.split(layers)

            def step(carry, xs):
                (x, cache, kept), (layer, layer_params, rows) = carry, xs
                block = nnx.merge(graph, layer_params)
                x, cache = block(x, rotation, partial(attend, cache, layer))
                if rows is not None:
                    x = x + at_tokens(rows, images.index, jnp.zeros_like(x))
                return (x, cache, keep(kept, layer + 1, x)), None

            num = jax.tree.leaves(params)[0].shape[0]
            xs = (num_before + jnp.arange(num), params, deepstack)
            carry, _ = jax.lax.scan(jax.checkpoint(step) if remat else step, carry, xs)
            return carry

        carry = (x, cache, keep(kept, 0, x))
        if self.deepstack_layers is not None:
            deepstack = None if images is None else images.features.deepstack
            carry = through(self.deepstack_layers, 0, carry, deepstack)
        if self.layers is not None:
            carry = through(self.layers, self.config.deepstack, carry, None)
        x, cache, kept = carry
        return Decoded(self.norm(x), cache, kept)
