"""Tiny random encoders of the BERT family in transformers, their folders, and both on one batch.

Nothing hides in them: weights have the scale of their fan-in, biases and norm scales are random,
and the norms' epsilon is large enough to be seen.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from jaxagent.models.bert import Model
from jaxagent.trees import Params, map_named
from jaxagent.weights.table import Row

VOCAB, PAD = 60, 1
forward = jax.jit(Model.forward, static_argnums=0)
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-2,
    "attn_implementation": "eager",
}


def bert(**sizes) -> BertModel:
    """A BERT; keywords change its sizes."""
    fields = _SIZES | {"max_position_embeddings": 20, "pad_token_id": 0} | sizes
    return randomised(BertModel(BertConfig(**fields)))


def xlm_roberta(**sizes) -> XLMRobertaModel:
    """An XLM-RoBERTa: places for 20 tokens behind those of padding, one token type."""
    fields = {"max_position_embeddings": 22, "pad_token_id": PAD, "type_vocab_size": 1} | sizes
    return randomised(XLMRobertaModel(XLMRobertaConfig(**_SIZES | fields)))


def bem(**sizes) -> BertForSequenceClassification:
    """A BEM: three segments, the tanh form of gelu, two logits."""
    fields = {
        "max_position_embeddings": 40,
        "type_vocab_size": 3,
        "num_labels": 2,
        "hidden_act": "gelu_new",
    }
    return randomised(BertForSequenceClassification(BertConfig(**_SIZES | fields | sizes)))


TWINS: dict[str, Callable[..., PreTrainedModel]] = {"bert": bert, "xlm-roberta": xlm_roberta}


def randomised(model: PreTrainedModel, *, seed: int = 0) -> PreTrainedModel:
    """The model with random parameters of the kind that the module's docstring tells."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=numbers)
            if "embeddings" in name and parameter.ndim == 2:
                parameter.copy_(values)
            elif parameter.ndim == 2:
                parameter.copy_(1.5 * values / parameter.shape[1] ** 0.5)
            elif name.endswith("LayerNorm.weight"):
                parameter.copy_(1 + 0.3 * values)
            else:
                parameter.copy_(0.5 * values)
    return model.eval()


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """The folder, with the model in it."""
    model.save_pretrained(folder)
    return folder


def batch(family: str = "bert") -> tuple[np.ndarray, np.ndarray]:
    """Three rows of ids, padded on the right, and which are real.

    The first row of XLM-RoBERTa has a padding id among its words, as a literal `<pad>` makes one.
    """
    ids = np.random.default_rng(0).integers(4, VOCAB, (3, 9)).astype(np.int32)
    real = np.arange(9)[None, :] < np.array([9, 5, 1])[:, None]
    if family == "xlm-roberta":
        ids = np.where(real, ids, PAD).astype(np.int32)
        ids[0, 3] = PAD
    return ids, real


def hidden_states(model: PreTrainedModel, family: str) -> list[np.ndarray]:
    """transformers' hidden states of `batch`: behind the embeddings and behind each layer."""
    ids, real = batch(family)
    with torch.no_grad():
        states = model(
            torch.tensor(ids, dtype=torch.long),
            attention_mask=torch.tensor(real),
            output_hidden_states=True,
        ).hidden_states
    return [state.float().numpy() for state in states]


def first_layers(model: Model, params: Params, num: int) -> tuple[Model, Params]:
    """The model of the first layers alone."""
    cut = map_named(lambda name, leaf: leaf[:num] if name.startswith("layers/") else leaf, params)
    return Model(replace(model.config, layers=num)), cut


def our_states(model: Model, params: Params, family: str) -> list[np.ndarray]:
    """Our hidden states of `batch` behind each layer."""
    ids, real = map(jnp.asarray, batch(family))
    states = []
    for num in range(1, model.config.layers + 1):
        shorter, cut = first_layers(model, params, num)
        states.append(forward(shorter, cut, ids, real))
    return [np.asarray(state.astype(jnp.float32)) for state in states]


def by_key(rows: list[Row], named: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Parameters, or their gradients, as transformers names and shapes them."""
    found = {}
    for row in rows:
        whole = np.asarray(named[row.name])
        layers = [whole] if row.layers is None else whole
        for key, layer in zip(row.hf_keys(), layers, strict=True):
            found[key] = np.array(row.exported(layer))
    return found


def gradient_errors(ours: dict[str, np.ndarray], model: torch.nn.Module) -> dict[str, float]:
    """The relative distance of each gradient from torch's, by key.

    A gradient below a thousandth of all together counts as that much: that of a key's bias is 0 but
    for rounding, since what a bias adds to all scores of a query falls out of the softmax.
    """
    theirs = {
        name: parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    floor = 1e-3 * np.sqrt(sum(np.sum(gradient**2) for gradient in theirs.values()))
    assert set(theirs) == set(ours)
    return {
        name: float(np.linalg.norm(ours[name] - it) / max(np.linalg.norm(it), floor))
        for name, it in theirs.items()
    }
