"""EVA-CLIP: an image tower and a text tower whose vectors are compared by their cosine.

    image: x = [class; patches] + position;  layers;  v = head(norm(x[class]))
    text:  x = word[id] + position;  causal layers;   v = head(norm(x[end]))
    layer: x = x + attention(norm(x)); x = x + mlp(norm(x))        or, with the norm afterwards,
           x = x + norm(attention(x)); x = x + norm(mlp(x))

The end of a text is the first place of its largest id, the end-of-text token's, so what stands
behind is never seen. Sizes that were published, and the flags that tell them apart:

    8B, 8B-448, 18B    RMSNorm, queries, keys and values without biases
    EVA02 B, L, L-336  SwiGLU, a norm inside attention and MLP, rotary patches, no key bias
    EVA01 g, EVA02 E   no key bias; E has its norms after attention and MLP

Sources: EVA-CLIP-18B (arXiv 2402.04252), EVA-CLIP (arXiv 2303.15389), EVA-02 (arXiv 2303.11331)
and the modelling code published with the weights. Left out: dropout, and the masks of padded texts,
which a causal tower read at the end of the text does not need.
"""

from dataclasses import dataclass
from functools import cache as memoised
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxagent.models.attention import attention
from jaxagent.models.eva_clip_config import EvaClipConfig, ImageConfig, LayerConfig, TextConfig
from jaxagent.models.layers import (
    Blueprint,
    Embedding,
    LayerNorm,
    Linear,
    RMSNorm,
    blueprint,
    gelu,
    initial_params,
    parameter,
    stack,
)
from jaxagent.models.rope import Rotation
from jaxagent.trees import Params


def _norm(config: LayerConfig, width: int) -> RMSNorm | LayerNorm:
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(width, epsilon=config.norm_epsilon)


def patch_rotation(config: ImageConfig) -> Rotation:
    """The turn of each pair of a head's numbers: none for the class token, then patch by patch.

    Half of the pairs turn by the row and half by the column, counted on the grid of the first
    training: a finer grid has positions in between.
    """
    half = config.layer.head_size // 4
    places = np.arange(config.side, dtype=np.float32) / config.side * config.rotary_side
    frequencies = config.rotary_theta ** (-np.arange(half, dtype=np.float32) / half)
    rows, columns = np.indices((config.side, config.side)).reshape(2, -1)
    angles = places[np.stack([rows, columns], 1), None] * frequencies
    angles = np.concatenate([np.zeros((1, 2 * half)), angles.reshape(-1, 2 * half)])
    angles = jnp.asarray(angles, jnp.float32)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate_pairs(x: Float[Array, "b p n h"], rotation: Rotation) -> Float[Array, "b p n h"]:
    """Every head with its neighbouring numbers (x0 x1) (x2 x3) ... turned, in float32."""
    cos, sin = rotation.cos[None, :, None], rotation.sin[None, :, None]
    pairs = x.astype(jnp.float32).reshape(*x.shape[:3], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


class Attention(nnx.Module):
    """Attention among the tokens; `fused` keeps queries, keys and values in one kernel."""

    def __init__(self, config: LayerConfig):
        d, n, h = config.width, config.heads, config.head_size
        self.fused = config.fused
        if config.fused:
            self.qkv = Linear((d,), (3, n, h), bias=all(config.qkv_biases))
            # Published without a bias of the keys, the other two stand beside the kernel.
            apart = any(config.qkv_biases) and not all(config.qkv_biases)
            self.q_bias = parameter((n, h)) if apart else None
            self.v_bias = parameter((n, h)) if apart else None
        else:
            q, k, v = config.qkv_biases
            self.q = Linear((d,), (n, h), bias=q)
            self.k = Linear((d,), (n, h), bias=k)
            self.v = Linear((d,), (n, h), bias=v)
        self.inner_norm = _norm(config, d) if config.inner_norm else None
        self.o = Linear((n, h), (d,), bias=True)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        visible: Bool[Array, "b t t"] | None,
        rotation: Rotation | None,
    ) -> Float[Array, "b t d"]:
        q, k, v = self._qkv(x)
        if rotation is not None:
            q, k = rotate_pairs(q, rotation), rotate_pairs(k, rotation)
        taken = attention(q, k, v, visible)
        if self.inner_norm is not None:
            taken = self.inner_norm(taken.reshape(x.shape)).reshape(taken.shape)
        return self.o(taken)

    def _qkv(self, x: Float[Array, "b t d"]) -> tuple[Float[Array, "b t n h"], ...]:
        if not self.fused:
            return self.q(x), self.k(x), self.v(x)
        q, k, v = jnp.moveaxis(self.qkv(x), 2, 0)
        if self.q_bias is None:
            return q, k, v
        return q + self.q_bias[...][None, None], k, v + self.v_bias[...][None, None]


class Mlp(nnx.Module):
    """down(norm(gelu(up(x)))), or with a gate down(norm(silu(gate(x)) * up(x))); norm if asked."""

    def __init__(self, config: LayerConfig):
        d, f = config.width, config.mlp_width
        self.gate = Linear((d,), (f,), bias=True) if config.gated else None
        self.up = Linear((d,), (f,), bias=True)
        self.inner_norm = _norm(config, f) if config.inner_norm else None
        self.down = Linear((f,), (d,), bias=True)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        up = self.up(x)
        inner = gelu(up) if self.gate is None else jax.nn.silu(self.gate(x)) * up
        return self.down(inner if self.inner_norm is None else self.inner_norm(inner))


class Layer(nnx.Module):
    """One layer of either tower."""

    def __init__(self, config: LayerConfig):
        self.attention_norm = _norm(config, config.width)
        self.attention = Attention(config)
        self.mlp_norm = _norm(config, config.width)
        self.mlp = Mlp(config)
        self.norm_after = config.norm_after

    def __call__(
        self,
        x: Float[Array, "b t d"],
        visible: Bool[Array, "b t t"] | None,
        rotation: Rotation | None,
    ) -> Float[Array, "b t d"]:
        if self.norm_after:
            x = x + self.attention_norm(self.attention(x, visible, rotation))
            return x + self.mlp_norm(self.mlp(x))
        x = x + self.attention(self.attention_norm(x), visible, rotation)
        return x + self.mlp(self.mlp_norm(x))


def _through(
    layers: Layer,
    x: Float[Array, "b t d"],
    visible: Bool[Array, "b t t"] | None,
    rotation: Rotation | None,
) -> Float[Array, "b t d"]:
    """What stacked layers make of `x`, one after the other."""
    graph, params = nnx.split(layers)

    def step(x, layer_params):
        return nnx.merge(graph, layer_params)(x, visible, rotation), None

    return jax.lax.scan(step, x, params)[0]


class ImageTower(nnx.Module):
    """Pixels to the embedding of the class token."""

    def __init__(self, config: ImageConfig, embedding: int):
        d = config.layer.width
        self.config = config
        patch = (config.channels, config.patch, config.patch)
        self.patch = Linear(patch, (d,), bias=True)
        self.token = parameter((d,), std=d**-0.5)
        self.position = parameter((config.side**2 + 1, d), std=d**-0.5)
        self.layers = stack(partial(Layer, config.layer), config.layers)
        self.norm = _norm(config.layer, d)
        self.head = Linear((d,), (embedding,), bias=True)

    def __call__(self, pixels: Float[Array, "b c y x"]) -> Float[Array, "b e"]:
        config = self.config
        expected = (config.channels, config.image, config.image)
        if pixels.shape[1:] != expected:
            raise ValueError(
                f"Pixels of shape {pixels.shape[1:]} do not fit a tower for {expected}. Resize and "
                "crop the images to its size."
            )
        b, c, side, patch = pixels.shape[0], config.channels, config.side, config.patch
        patches = pixels.astype(self.patch.kernel[...].dtype)
        patches = patches.reshape(b, c, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
        x = self.patch(patches.reshape(b, side * side, c, patch, patch))
        token = jnp.broadcast_to(self.token[...], (b, 1, x.shape[-1]))
        x = jnp.concatenate([token, x], axis=1) + self.position[...][None]
        rotation = None if config.rotary_side is None else patch_rotation(config)
        return self.head(self.norm(_through(self.layers, x, None, rotation)[:, 0]))


def end_places(ids: Int[Array, "b t"]) -> Int[Array, " b"]:
    """Where each text ends: the first place of its largest id."""
    return jnp.argmax(ids, axis=1)


class TextTower(nnx.Module):
    """Ids to the embedding of the end-of-text token."""

    def __init__(self, config: TextConfig, embedding: int):
        d = config.layer.width
        self.word = Embedding(config.vocab, d)
        self.position = parameter((config.positions, d), std=d**-0.5)
        self.layers = stack(partial(Layer, config.layer), config.layers)
        self.norm = _norm(config.layer, d)
        self.head = Linear((d,), (embedding,))

    def __call__(self, ids: Int[Array, "b t"]) -> Float[Array, "b e"]:
        b, t = ids.shape
        if t > len(self.position[...]):
            raise ValueError(
                f"Texts of {t} tokens are too long; this tower has {len(self.position[...])} "
                "positions. Cut them and end them with the end-of-text token."
            )
        x = self.word(ids) + self.position[...][None, :t]
        visible = jnp.broadcast_to(jnp.tri(t, dtype=jnp.bool_), (b, t, t))
        x = _through(self.layers, x, visible, None)
        return self.head(self.norm(x[jnp.arange(b), end_places(ids)]))


class EvaClip(nnx.Module):
    """Both towers, and the logarithm of the factor of their cosines."""

    def __init__(self, config: EvaClipConfig):
        self.image = ImageTower(config.image, config.embedding)
        self.text = TextTower(config.text, config.embedding)
        self.log_scale = parameter((1,), mean=float(np.log(1 / 0.07)))


@memoised
def _blueprint(config: EvaClipConfig) -> Blueprint:
    return blueprint(partial(EvaClip, config))


def _unit(x: Float[Array, "b e"]) -> Float[Array, "b e"]:
    x = x.astype(jnp.float32)
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


@dataclass(frozen=True)
class Model:
    """EVA-CLIP as pure functions of its parameters; a hashable value without weights."""

    config: EvaClipConfig

    def shapes(self) -> Params:
        """The parameters as `ShapeDtypeStruct`s."""
        return _blueprint(self.config).shapes

    def init(self, key: Key[Array, ""]) -> Params:
        """Random float32 parameters."""
        return initial_params(_blueprint(self.config), key)

    def image_embeddings(
        self, params: Params, pixels: Float[Array, "b c y x"]
    ) -> Float[Array, "b e"]:
        """Embeddings of images as the published model gives them, of any length."""
        return self._merged(params).image(pixels)

    def text_embeddings(self, params: Params, ids: Int[Array, "b t"]) -> Float[Array, "b e"]:
        """Embeddings of texts as the published model gives them; ids behind the end are free."""
        return self._merged(params).text(ids)

    def image_vectors(self, params: Params, pixels: Float[Array, "b c y x"]) -> Float[Array, "b e"]:
        """Float32 unit vectors of images."""
        return _unit(self.image_embeddings(params, pixels))

    def text_vectors(self, params: Params, ids: Int[Array, "b t"]) -> Float[Array, "b e"]:
        """Float32 unit vectors of texts."""
        return _unit(self.text_embeddings(params, ids))

    def logits(
        self, params: Params, images: Float[Array, "b e"], texts: Float[Array, "c e"]
    ) -> Float[Array, "b c"]:
        """The cosine of every image with every text, times the trained factor."""
        scale = jnp.exp(self._merged(params).log_scale[0].astype(jnp.float32))
        return scale * images @ texts.T

    def _merged(self, params: Params) -> EvaClip:
        return nnx.merge(_blueprint(self.config).graph, params)
