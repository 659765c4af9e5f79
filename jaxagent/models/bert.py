"""BERT's and XLM-RoBERTa's encoder, as sentence encoders use it (MiniLM, E5, BGE, bge-m3).

    x = norm(word[id] + position[place] + type[segment])
    each layer:  x = norm(x + o(attention(q, k, v)));  x = norm(x + down(gelu(up(x))))
    sentence vector = mean of x over its tokens, or x of its first token, divided by its length

    ids     5 6 7 . .       BERT's places         0 1 2 3 4
                            XLM-RoBERTa's, pad 1  2 3 4 1 1

Devlin et al., BERT, 2019; Conneau et al., XLM-R, 2020; sentence vectors as in Sentence-BERT
(Reimers and Gurevych, 2019); held against transformers' `modeling_bert` and
`modeling_xlm_roberta`. Left out: the pooler, which sentence vectors do not use (`models/bem` has
one), dropout, relative positions, decoding.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache as memoised
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxagent.models.attention import attention
from jaxagent.models.config import ConfigError, Fields, check_sizes, number, truth
from jaxagent.models.layers import (
    MLP,
    Blueprint,
    Embedding,
    LayerNorm,
    Linear,
    blueprint,
    gelu,
    initial_params,
    stack,
    tanh_gelu,
)
from jaxagent.trees import Params

Pooling = Literal["mean", "cls"]
"""What a sentence vector is made of: all tokens, or the first one."""

_GELU_IS_TANH = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
_PLACES_FROM_PAD = {"bert": False, "xlm-roberta": True}
_ABSOLUTE = {"position_embedding_type": "absolute"}
_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
)
_POINT = "Point at a folder of a BERT or XLM-RoBERTa encoder."


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder, and the two things in which its families differ."""

    vocab: int  # v
    width: int  # d
    layers: int  # l
    heads: int  # n
    mlp_width: int  # f
    positions: int  # rows of the position table
    types: int
    norm_epsilon: float
    pad: int = 0  # id of padding
    places_from_pad: bool = False  # XLM-RoBERTa: places count from pad + 1, and padding's is pad
    tanh_gelu: bool = False

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def max_tokens(self) -> int:
        """The longest text that has a place for each token."""
        return self.positions - (self.pad + 1 if self.places_from_pad else 0)

    @classmethod
    def from_hf(cls, fields: Fields) -> "BertConfig":
        """The config of a `config.json`; ConfigError when it is another family or no sizes."""
        family = _word(fields, "model_type", _PLACES_FROM_PAD)
        activation = _word({"hidden_act": "gelu"} | dict(fields), "hidden_act", _GELU_IS_TANH)
        _word(_ABSOLUTE | dict(fields), "position_embedding_type", _ABSOLUTE.values())
        for name in ("is_decoder", "add_cross_attention"):
            if truth(fields, name):
                raise ConfigError(f"{name}=True is not supported here; only False is. {_POINT}")
        try:
            check_sizes(fields, "BERT", *_SIZES)
            config = cls(
                vocab=fields["vocab_size"],
                width=fields["hidden_size"],
                layers=fields["num_hidden_layers"],
                heads=fields["num_attention_heads"],
                mlp_width=fields["intermediate_size"],
                positions=fields["max_position_embeddings"],
                types=fields["type_vocab_size"],
                norm_epsilon=number(fields, "layer_norm_eps"),
                pad=_padding(fields, family),
                places_from_pad=_PLACES_FROM_PAD[family],
                tanh_gelu=_GELU_IS_TANH[activation],
            )
        except KeyError as missing:
            raise ConfigError(f"config.json lacks the field {missing}. {_POINT}") from None
        if config.width % config.heads:
            raise ConfigError(
                f"hidden_size={config.width} is no multiple of num_attention_heads="
                f"{config.heads}. Download config.json again."
            )
        if config.max_tokens < 1:
            raise ConfigError(
                f"max_position_embeddings={config.positions} leaves no place for a token; "
                f"pad_token_id={config.pad} and those below it take the first "
                f"{config.pad + 1}. Download config.json again."
            )
        return config


def _word(fields: Fields, name: str, known: Collection[str]) -> str:
    """The word that a field says; ConfigError when it is none of those known."""
    found = fields.get(name)
    if type(found) is not str or found not in known:
        raise ConfigError(
            f"{name}={found!r} is not supported here; {', '.join(map(repr, known))} can be read. "
            f"{_POINT}"
        )
    return found


def _padding(fields: Fields, family: str) -> int:
    """The id of padding; where it is not said, the family's own."""
    pad = fields.get("pad_token_id")
    if pad is None:
        pad = int(_PLACES_FROM_PAD[family])
    if type(pad) is not int or not 0 <= pad < fields["vocab_size"]:
        raise ConfigError(
            f"pad_token_id={pad!r} is no id of the vocabulary; those are 0 to "
            f"{fields['vocab_size'] - 1}. Download config.json again."
        )
    return pad


class BertLayer(nnx.Module):
    """Attention among a text's tokens and an MLP, each normed after its addition."""

    def __init__(self, config: BertConfig):
        d, n, h = config.width, config.heads, config.head_size
        self.q = Linear((d,), (n, h), bias=True)
        self.k = Linear((d,), (n, h), bias=True)
        self.v = Linear((d,), (n, h), bias=True)
        self.o = Linear((n, h), (d,), bias=True)
        self.attention_norm = LayerNorm(d, epsilon=config.norm_epsilon)
        activation = tanh_gelu if config.tanh_gelu else gelu
        self.mlp = MLP(d, config.mlp_width, d, activation=activation)
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
        self.config = config

    def __call__(
        self,
        ids: Int[Array, "b t"],
        real: Bool[Array, "b t"],
        segments: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        x = self.norm(self.word(ids) + self.places(ids, segments))
        visible = jnp.broadcast_to(real[:, None, :], (*ids.shape, ids.shape[1]))
        graph, params = nnx.split(self.layers)

        def step(x, layer_params):
            return nnx.merge(graph, layer_params)(x, visible), None

        return jax.lax.scan(step, x, params)[0]

    def places(
        self, ids: Int[Array, "b t"], segments: Int[Array, "b t"] | None
    ) -> Float[Array, "#b t d"]:
        """What tells the tokens' places and segments; None: all are of segment 0."""
        if self.config.places_from_pad:
            counted = (ids != self.config.pad).astype(jnp.int32)
            place = self.position(self.config.pad + jnp.cumsum(counted, axis=1) * counted)
        else:
            place = self.position(jnp.arange(ids.shape[1]))[None]
        if segments is None:
            return place + self.type(jnp.zeros((1, 1), jnp.int32))
        return place + self.type(segments)


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
        self,
        params: Params,
        ids: Int[Array, "b t"],
        real: Bool[Array, "b t"],
        segments: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """Hidden states; `real` is False on padding, which no token sees."""
        return nnx.merge(_blueprint(self.config).graph, params)(ids, real, segments)

    def sentence_vectors(
        self,
        params: Params,
        ids: Int[Array, "b t"],
        real: Bool[Array, "b t"],
        *,
        pooling: Pooling = "mean",
        normalised: bool = True,
    ) -> Float[Array, "b d"]:
        """The rows' vectors, as `pooled` makes them."""
        hidden = self.forward(params, ids, real)
        return pooled(hidden, real, pooling=pooling, normalised=normalised)


def pooled(
    hidden: Float[Array, "b t d"],
    real: Bool[Array, "b t"],
    *,
    pooling: Pooling = "mean",
    normalised: bool = True,
) -> Float[Array, "b d"]:
    """Float32 vectors of hidden states, of length 1 where normalised; 0 for a row without tokens.

    What stands on padding is not read, whatever it is.
    """
    hidden = jnp.where(real[:, :, None], hidden, 0.0).astype(jnp.float32)
    total = hidden[:, 0] if pooling == "cls" else jnp.sum(hidden, axis=1)
    if normalised:  # the mean's divisor falls out
        return total * jax.lax.rsqrt(jnp.sum(total * total, axis=1, keepdims=True) + 1e-24)
    if pooling == "cls":
        return total
    return total / jnp.maximum(jnp.sum(real, axis=1, keepdims=True), 1).astype(jnp.float32)
