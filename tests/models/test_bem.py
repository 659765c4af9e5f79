"""BEM against transformers: a tiny random twin of three segments."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertConfig as HfBertConfig
from transformers import BertForSequenceClassification

from jaxagent.models.bem import Model, bem_config
from jaxagent.models.bert import BertConfig
from jaxagent.models.config import ConfigError
from jaxagent.trees import flat, map_named, num_parameters
from jaxagent.weights.bem import read_bem, table
from tests.models import bert_twins as twins

OUTPUT = 2e-6  # below the suite's 1e-4, so that the erf form of gelu shows 100 times over
#   [CLS] c c [SEP] r r [SEP] q [SEP]      and a shorter row
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 2, 0, 0, 0, 0]], np.int32)
IDS = np.random.default_rng(0).integers(4, twins.VOCAB, SEGMENTS.shape).astype(np.int32)
IDS[1, 5:] = 0

logits = jax.jit(Model.logits, static_argnums=0)
scores = jax.jit(Model.scores, static_argnums=0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The twin, our model and its parameters."""
    twin = twins.bem()
    config, params = read_bem(twins.saved(twin, tmp_path_factory.mktemp("bem")))
    return twin, Model(config), jax.device_put(params)


def hf_logits(twin):
    ids = torch.tensor(IDS, dtype=torch.long)
    segments = torch.tensor(SEGMENTS, dtype=torch.long)
    return twin(ids, attention_mask=ids != 0, token_type_ids=segments).logits


def test_logits_and_scores_equal_those_of_transformers(opened):
    twin, model, params = opened
    with torch.no_grad():
        expected = hf_logits(twin)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits(model, params, IDS, SEGMENTS), expected, atol=OUTPUT)
    np.testing.assert_allclose(
        scores(model, params, IDS, SEGMENTS), expected.softmax(-1)[:, 1], atol=OUTPUT
    )


def test_each_part_that_is_left_out_changes_the_logits_100_times_the_tolerance(opened):
    _, model, params = opened
    right = logits(model, params, IDS, SEGMENTS)
    names = [
        name
        for name in flat(params)
        if name.endswith("/bias") and name != "bert/layers/k/bias"  # which falls out of the softmax
    ]
    changes = {}
    for name in [*names, "bert/type/table", "bert/position/table"]:
        changed = map_named(
            lambda key, leaf, name=name: jnp.zeros_like(leaf) if key == name else leaf, params
        )
        changes[f"without {name}"] = logits(model, changed, IDS, SEGMENTS)
    other = Model(replace(model.config, tanh_gelu=False))
    changes["the erf form of gelu"] = logits(other, params, IDS, SEGMENTS)
    changes["one segment"] = logits(model, params, IDS, np.zeros_like(SEGMENTS))
    changes["two segments"] = logits(model, params, IDS, np.minimum(SEGMENTS, 1))
    changes["padding of another id"] = logits(model, params, np.where(IDS == 0, 5, IDS), SEGMENTS)
    sizes = {name: float(jnp.abs(wrong - right).max()) for name, wrong in changes.items()}
    assert min(sizes.values()) > 100 * OUTPUT, sizes


def test_gradients_of_a_cross_entropy_equal_those_of_transformers(opened):
    twin, model, params = opened
    labels = np.array([1, 0])

    def loss(params):
        chances = jax.nn.log_softmax(model.logits(params, jnp.asarray(IDS), jnp.asarray(SEGMENTS)))
        return -jnp.mean(chances[jnp.arange(2), labels])

    twin.zero_grad()
    torch.nn.functional.cross_entropy(hf_logits(twin), torch.tensor(labels)).backward()
    ours = twins.by_key(table(model.config), flat(jax.jit(jax.grad(loss))(params)))
    errors = twins.gradient_errors(ours, twin)
    assert max(errors.values()) < 1e-4, errors


def test_padding_and_other_rows_do_not_change_a_score(opened):
    _, model, params = opened
    alone = scores(model, params, IDS[1:, :5], SEGMENTS[1:, :5])
    np.testing.assert_allclose(scores(model, params, IDS, SEGMENTS)[1], alone[0], atol=1e-6)


def test_in_bfloat16_it_is_no_further_off_than_transformers(opened):
    _, model, params = opened
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    # Two logits are too few to compare errors of, so the vectors of all first tokens are.
    twin, numbers = opened[0], np.random.default_rng(1)
    ids = numbers.integers(4, twins.VOCAB, (32, 9)).astype(np.int32)
    segments = np.broadcast_to(SEGMENTS[:1], ids.shape)
    batch = {
        "input_ids": torch.tensor(ids, dtype=torch.long),
        "token_type_ids": torch.tensor(segments, dtype=torch.long),
    }
    with torch.no_grad():
        exact = twin(**batch).logits.numpy()
        theirs = twins.bem().to(torch.bfloat16)(**batch).logits.float().numpy()
    ours = np.asarray(logits(model, half, ids, segments).astype(jnp.float32))
    off, allowed = (np.sqrt(np.mean((one - exact) ** 2)) for one in (ours, theirs))
    assert 0 < off <= 1.5 * allowed


def test_the_published_size_has_its_number_of_parameters():
    """BERT-base's 109,482,240 with pooler, a third segment of 768, and a classifier of 2 x 769."""
    config = BertConfig(
        vocab=30_522,
        width=768,
        layers=12,
        heads=12,
        mlp_width=3072,
        positions=512,
        types=3,
        norm_epsilon=1e-12,
        tanh_gelu=True,
    )
    with torch.device("meta"):
        theirs = BertForSequenceClassification(HfBertConfig(type_vocab_size=3, num_labels=2))
    count = num_parameters(Model(config).shapes())
    assert count == sum(one.numel() for one in theirs.parameters()) == 109_484_546


@pytest.mark.parametrize(
    "fields", [{"type_vocab_size": 2}, {"hidden_act": "gelu"}, {"pad_token_id": 1}]
)
def test_another_model_is_refused(fields):
    config = twins.bem().config.to_dict()
    assert bem_config(config).types == 3
    with pytest.raises(ConfigError, match="This is no BEM"):
        bem_config(config | fields)
