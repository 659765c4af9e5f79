"""BERT's encoder, as sentence encoders of its layout use it (MiniLM, E5).

    x = norm(word[id] + position[place] + type[0])
    each layer:  x = norm(x + o(attention(q, k, v)));  x = norm(x + down(gelu(up(x))))
    sentence vector = mean over its tokens of x, divided by its length

Devlin et al., BERT, 2019; sentence vectors as in Sentence-BERT (Reimers and Gurevych, 2019); held
against transformers' `modeling_bert`. Left out: the pooler and the second token type, which
sentence vectors do not use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as memoised
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxagent.models.attention import attention
from jaxagent.models.config import ConfigError
from jaxagent.models.layers import (
    MLP,
    Blueprint,
    Embedding,
    LayerNorm,
    Linear,
    blueprint,
    initial_params,
    stack,
)
from jaxagent.trees import Params


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder."""

    vocab: int  # v
    width: int  # d
    layers: int  # l
    heads: int  # n
    mlp_width: int  # f
    positions: int  # longest text, in tokens
    types: int
    norm_epsilon: float

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """The config of a `config.json`; ConfigError when it is another family."""
        for field, expected in (
            ("model_type", "bert"),
            ("hidden_act", "gelu"),
            ("position_embedding_type", "absolute"),
        ):
            if (found := fields.get(field, expected)) != expected:
                raise ConfigError(f"{field}={found!r} is not supported here; only {expected!r} is.")
        try:
            return cls(
                vocab=fields["vocab_size"],
                width=fields["hidden_size"],
                layers=fields["num_hidden_layers"],
                heads=fields["num_attention_heads"],
                mlp_width=fields["intermediate_size"],
                positions=fields["max_position_embeddings"],
                types=fields["type_vocab_size"],
                norm_epsilon=fields["layer_norm_eps"],
            )
        except KeyError as missing:
            raise ConfigError(f"config.json lacks the field {missing}.") from None


class BertLayer(nnx.Module):
    """Attention among a text's tokens and an MLP, each normed after its addition."""

    def __init__(self, config: BertConfig):
        d, n, h = config.width, config.heads, config.head_size
        self.q = Linear((d,), (n, h), bias=True)
        self.k = Linear((d,), (n, h), bias=True)
        self.v = Linear((d,), (n, h), bias=True)
        self.o = Linear((n, h), (d,), bias=True)
        self.attention_norm = LayerNorm(d, epsilon=config.norm_epsilon)
        self.mlp = MLP(d, config.mlp_width, d, approximate=False)
        self.mlp_norm = LayerNorm(d, epsilon=config.norm_epsilon)

    def __call__(
        self, x: Float[Array, "b t d"], visible: Bool[Array, "b t t"]
    ) -> Float[Array, "b t d"]:
        taken = self.o(attention(self.q(x), self.k(x), self.v(x), visible))
        x = self.attention_norm(x + taken)
        return self.mlp_norm(x + self.mlp(x))


class Bert(nnx.Module):
    """Embeddings and layers."""

    def __init__(self, config: BertConfig):
        self.word = Embedding(config.vocab, config.width)
        self.position = Embedding(config.positions, config.width)
        self.type = Embedding(config.types, config.width)
        self.norm = LayerNorm(config.width, epsilon=config.norm_epsilon)
        self.layers = stack(partial(BertLayer, config), config.layers)

    def __call__(self, ids: Int[Array, "b t"], real: Bool[Array, "b t"]) -> Float[Array, "b t d"]:
        places = self.position(jnp.arange(ids.shape[1])) + self.type(jnp.zeros(1, jnp.int32))
        x = self.norm(self.word(ids) + places[None])
        visible = jnp.broadcast_to(real[:, None, :], (*ids.shape, ids.shape[1]))
        graph, params = nnx.split(self.layers)

        def step(x, layer_params):
            return nnx.merge(graph, layer_params)(x, visible), None

        return jax.lax.scan(step, x, params)[0]


@memoised
def _blueprint(config: BertConfig) -> Blueprint:
    return blueprint(partial(Bert, config))


@dataclass(frozen=True)
class Model:
    """BERT as pure functions of its parameters; a hashable value without weights."""

    config: BertConfig

    def shapes(self) -> Params:
        """The parameters as `ShapeDtypeStruct`s."""
        return _blueprint(self.config).shapes

    def init(self, key: Key[Array, ""]) -> Params:
        """Random float32 parameters."""
        return initial_params(_blueprint(self.config), key)

    def forward(
        self, params: Params, ids: Int[Array, "b t"], real: Bool[Array, "b t"]
    ) -> Float[Array, "b t d"]:
        """Hidden states; `real` is False on padding, which no token sees."""
        return nnx.merge(_blueprint(self.config).graph, params)(ids, real)

    def sentence_vectors(
        self, params: Params, ids: Int[Array, "b t"], real: Bool[Array, "b t"]
    ) -> Float[Array, "b d"]:
        """Unit vectors: the mean hidden state of the real tokens; 0 for a row without any."""
        hidden = jnp.where(real[:, :, None], self.forward(params, ids, real), 0.0)
        # The mean's divisor falls out when the vector is brought to unit length.
        total = jnp.sum(hidden.astype(jnp.float32), axis=1)
        return total * jax.lax.rsqrt(jnp.sum(total * total, axis=1, keepdims=True) + 1e-24)
