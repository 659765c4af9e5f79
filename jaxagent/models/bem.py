"""BEM, the classifier of equivalent answers: BERT-base with three segments, a pooler and 2 logits.

    ids       [CLS] candidate [SEP] reference [SEP] question [SEP] 0 0
    segments    0       0       0       1       1      2       2   0 0

    score = softmax(classifier(tanh(pooler(x of the first token))))[1]

Bulian et al., Tomayto, Tomahto. Beyond Token-level Answer Equivalence for Question Answering
Evaluation, 2022; the graph of its published weights (TFHub google/answer_equivalence/bem/1). Keys
whose id is 0 are not seen. Left out: dropout, the head of the masked language model, and the
re-trained model of two segments (kortukov/answer-equivalence-bem), which is not the same metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as memoised
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxagent.models.bert import Bert, BertConfig
from jaxagent.models.config import ConfigError
from jaxagent.models.layers import Blueprint, Linear, blueprint, initial_params
from jaxagent.trees import Params

SEGMENTS = 3
EQUIVALENT = 1
"""The logit of answers that are equivalent; the other one is 0."""


def bem_config(fields: Mapping[str, Any]) -> BertConfig:
    """The config of BEM's `config.json`; ConfigError when it is another model's."""
    config = BertConfig.from_hf(fields)
    if config.types != SEGMENTS or config.places_from_pad or not config.tanh_gelu or config.pad:
        raise ConfigError(
            f"This is no BEM: type_vocab_size={config.types}, hidden_act="
            f"{fields.get('hidden_act')!r}, where {SEGMENTS} and the tanh form of gelu are "
            "expected. Convert the published weights."
        )
    return config


class Bem(nnx.Module):
    """BERT, and what makes two logits of its first token."""

    def __init__(self, config: BertConfig):
        self.bert = Bert(config)
        self.pooler = Linear((config.width,), (config.width,), bias=True)
        self.classifier = Linear((config.width,), (2,), bias=True)

    def __call__(self, ids: Int[Array, "b t"], segments: Int[Array, "b t"]) -> Float[Array, "b 2"]:
        hidden = self.bert(ids, ids != self.bert.config.pad, segments)
        return self.classifier(jnp.tanh(self.pooler(hidden[:, 0])))


@memoised
def _blueprint(config: BertConfig) -> Blueprint:
    return blueprint(partial(Bem, config))


@dataclass(frozen=True)
class Model:
    """BEM as pure functions of its parameters; a hashable value without weights."""

    config: BertConfig

    def shapes(self) -> Params:
        """The parameters as `ShapeDtypeStruct`s."""
        return _blueprint(self.config).shapes

    def init(self, key: Key[Array, ""]) -> Params:
        """Random float32 parameters."""
        return initial_params(_blueprint(self.config), key)

    def logits(
        self, params: Params, ids: Int[Array, "b t"], segments: Int[Array, "b t"]
    ) -> Float[Array, "b 2"]:
        """The logits of rows as the module's docstring draws them."""
        return nnx.merge(_blueprint(self.config).graph, params)(ids, segments)

    def scores(
        self, params: Params, ids: Int[Array, "b t"], segments: Int[Array, "b t"]
    ) -> Float[Array, " b"]:
        """The probability that candidate and reference are equivalent, float32."""
        logits = self.logits(params, ids, segments).astype(jnp.float32)
        return jax.nn.softmax(logits, axis=-1)[:, EQUIVALENT]
