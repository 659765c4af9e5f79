"""The circuit that a new policy starts with: what followed a token before is raised after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.data.induction import with_induction
from jaxagent.data.tiny_policy import PolicySizes, hf_config
from jaxagent.data.tokenizer import trained_tokenizer
from jaxagent.models.policy import Model, PolicyConfig
from tests import tiny

LENGTH = 250
SIZES = PolicySizes()


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = trained_tokenizer(tiny.TEXTS, vocab=512)
    return Model(PolicyConfig.from_hf(hf_config(SIZES, tokenizer)))


def raised(model: Model, text_params) -> float:
    """How much likelier `y` becomes after `x` when `x y` stood in 250 tokens, in nats.

    The control is the same context with another token in the place of `y`; mean of 16 contexts.
    """
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(SIZES.vocab)[:LENGTH] for _ in range(16)])
    other = ids.copy()
    for row in (ids, other):
        row[:, -1] = row[:, 40]
    followed = ids[:, 41].copy()
    other[:, 41] = ids[:, 200]
    params = model.init(jax.random.key(0)) | {"text": text_params}

    def log_probs(ids):
        positions = jnp.broadcast_to(jnp.arange(LENGTH), (3, *ids.shape))
        hidden = model.forward(params, jnp.asarray(ids), positions, jnp.ones_like(ids))
        logits = model.logits(params, hidden[:, -1])
        return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), followed[:, None], 1)

    return float(np.mean(log_probs(ids) - log_probs(other)))


def test_a_new_text_tower_copies(model):
    params = model.init(jax.random.key(0))["text"]
    assert abs(raised(model, params)) < 0.1
    assert raised(model, with_induction(params, model.config.text, seed=0)) > 0.4


def test_a_tower_without_room_for_the_circuit_is_refused():
    with pytest.raises(ValueError, match="a layer behind the last"):
        PolicySizes(layers=2, deepstack=(0, 1))
