"""BERT and XLM-RoBERTa against transformers: tiny random twins, and one layer of the large size."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertConfig as HfBertConfig
from transformers import BertModel, XLMRobertaConfig, XLMRobertaModel

from jaxagent.models.bert import BertConfig, Model, pooled
from jaxagent.models.config import ConfigError
from jaxagent.trees import flat, map_named, num_parameters
from jaxagent.weights.bert import read_bert, table
from tests.models import bert_twins as twins

LAYER = 2.5e-6  # below the suite's 1e-5, so that the tanh form of gelu shows 100 times over
families = pytest.mark.parametrize("family", twins.TWINS)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each family's twin, our model and its parameters."""
    made = {}
    for family, make in twins.TWINS.items():
        twin = make()
        config, params = read_bert(twins.saved(twin, tmp_path_factory.mktemp(family)))
        made[family] = (twin, Model(config), jax.device_put(params))
    return made


@families
def test_the_hidden_states_of_every_layer_equal_those_of_transformers(opened, family):
    twin, model, params = opened[family]
    _, real = twins.batch(family)
    expected = twins.hidden_states(twin, family)[1:]
    assert len(expected) == 2
    assert np.std(expected[-1]) > 0.8
    for ours, theirs in zip(twins.our_states(model, params, family), expected, strict=True):
        np.testing.assert_allclose(ours[real], theirs[real], rtol=LAYER, atol=LAYER)


def mutations(family):
    """What may go wrong, as a change of config or of parameters by name.

    A key's bias is not among them: what it adds to all scores of a query falls out of the softmax.
    """
    zeros = [
        f"layers/{part}/bias"
        for part in ("q", "v", "o", "attention_norm", "mlp/up", "mlp/down", "mlp_norm")
    ]
    ones = ["norm/scale", "layers/attention_norm/scale", "layers/mlp_norm/scale"]
    made = {f"without {name}": ({}, {name: 0.0}) for name in [*zeros, "norm/bias", "type/table"]}
    made |= {f"without {name}": ({}, {name: 1.0}) for name in ones}
    made["the epsilon of another family"] = ({"norm_epsilon": 1e-12}, {})
    made["the tanh form of gelu"] = ({"tanh_gelu": True}, {})
    if family == "xlm-roberta":
        made["places from 0"] = ({"places_from_pad": False}, {})
        made["places from another padding"] = ({"pad": 0}, {})
    return made


@families
def test_each_part_that_is_left_out_changes_the_hidden_states_100_times_the_tolerance(
    opened, family
):
    _, model, params = opened[family]
    ids, real = map(jnp.asarray, twins.batch(family))
    right = twins.forward(model, params, ids, real)
    changes = {}
    for name, (fields, constants) in mutations(family).items():
        changed = map_named(
            lambda key, leaf, constants=constants: (
                jnp.full_like(leaf, constants[key]) if key in constants else leaf
            ),
            params,
        )
        wrong = twins.forward(Model(replace(model.config, **fields)), changed, ids, real)
        changes[name] = np.abs(np.asarray(wrong - right))[np.asarray(real)].max()
    unmasked = twins.forward(model, params, ids, jnp.ones_like(real))
    changes["padding is seen"] = np.abs(np.asarray(unmasked - right))[np.asarray(real)].max()
    assert min(changes.values()) > 100 * LAYER, changes


@families
def test_in_bfloat16_no_layer_is_further_off_than_transformers(opened, family, tmp_path):
    twin, model, params = opened[family]
    _, real = twins.batch(family)
    exact = twins.hidden_states(twin, family)[1:]
    half = twins.TWINS[family]().to(torch.bfloat16)
    theirs = twins.hidden_states(half, family)[1:]
    ours = twins.our_states(
        model, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params), family
    )
    for a, b, right in zip(ours, theirs, exact, strict=True):
        off, allowed = (np.sqrt(np.mean((x - right)[real] ** 2)) for x in (a, b))
        assert 0 < off <= 1.5 * allowed


@families
def test_gradients_equal_those_of_transformers(opened, family):
    twin, model, params = opened[family]
    ids, real = twins.batch(family)
    weights = np.random.default_rng(1).standard_normal((*ids.shape, 24)).astype(np.float32)
    weights = np.where(real[:, :, None], weights, 0)

    def loss(params):
        hidden = model.forward(params, jnp.asarray(ids), jnp.asarray(real))
        return jnp.sum(jnp.where(real[:, :, None], hidden, 0) ** 2 * weights)

    twin.zero_grad()
    hidden = twin(torch.tensor(ids, dtype=torch.long), attention_mask=torch.tensor(real))[0]
    (hidden**2 * torch.tensor(weights)).sum().backward()
    gradients = flat(jax.jit(jax.grad(loss))(params))
    ours = twins.by_key(table(model.config), gradients)
    if family == "xlm-roberta":  # torch gives the tables' rows of padding none
        for table_of in ("word", "position"):
            ours[f"embeddings.{table_of}_embeddings.weight"][twins.PAD] = 0
    errors = twins.gradient_errors(ours, twin)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_vector_is_pooled_as_by_sentence_transformers(pooling, normalised):
    """Its Pooling and Normalize, written out in torch."""
    hidden = np.random.default_rng(0).standard_normal((3, 9, 24)).astype(np.float32)
    _, real = twins.batch()
    tokens, mask = torch.tensor(hidden), torch.tensor(real).unsqueeze(-1).float()
    expected = tokens[:, 0]
    if pooling == "mean":
        expected = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    if normalised:
        expected = torch.nn.functional.normalize(expected, p=2, dim=1)
    found = {
        (mode, unit): pooled(jnp.asarray(hidden), jnp.asarray(real), pooling=mode, normalised=unit)
        for mode in ("mean", "cls")
        for unit in (True, False)
    }
    ours = found.pop((pooling, normalised))
    np.testing.assert_allclose(ours, expected.numpy(), atol=1e-6, rtol=0)
    assert min(float(jnp.abs(ours - other).max()) for other in found.values()) > 1e-4


@families
def test_padding_and_other_rows_do_not_change_a_vector(opened, family):
    _, model, params = opened[family]
    alone = twins.forward(model, params, jnp.array([[5, 6, 7]]), jnp.ones((1, 3), jnp.bool_))
    # 5 6 7 . .     a longer row beside it, and any ids in the padding
    # 9 8 7 6 5
    ids = jnp.array([[5, 6, 7, 1, 2], [9, 8, 7, 6, 5]])
    real = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], jnp.bool_)
    together = twins.forward(model, params, ids, real)
    np.testing.assert_allclose(together[0, :3], alone[0], atol=LAYER)
    for pooling in ("mean", "cls"):
        vectors = pooled(together.at[0, 3:].set(jnp.nan), real, pooling=pooling)
        expected = pooled(alone, jnp.ones((1, 3), jnp.bool_), pooling=pooling)
        np.testing.assert_allclose(vectors[0], expected[0], atol=1e-6)
        np.testing.assert_allclose(jnp.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert not pooled(together, jnp.zeros_like(real), pooling=pooling).any()


@pytest.mark.parametrize("make", [twins.bert, twins.xlm_roberta])
def test_a_layer_of_the_large_size_equals_that_of_transformers(tmp_path, make):
    large = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    twin = make(num_hidden_layers=1, layer_norm_eps=1e-5, **large)
    family = twin.config.model_type
    config, params = read_bert(twins.saved(twin, tmp_path))
    (ours,) = twins.our_states(Model(config), params, family)
    _, real = twins.batch(family)
    theirs = twins.hidden_states(twin, family)[1]
    np.testing.assert_allclose(ours[real], theirs[real], rtol=1e-5, atol=1e-5)


def sizes(layers, heads, width, *, vocab=30_522, positions=512, types=2):
    return {
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
    }


XLM_R = {"vocab": 250_002, "types": 1}
PUBLISHED = {
    "all-MiniLM-L6-v2": ("bert", sizes(6, 12, 384), 22_713_216),
    "e5-base-v2, bge-base-en-v1.5": ("bert", sizes(12, 12, 768), 109_482_240),
    "e5-large-v2, bge-large-en-v1.5": ("bert", sizes(24, 16, 1024), 335_141_888),
    "multilingual-e5-base": (
        "xlm-roberta",
        sizes(12, 12, 768, positions=514, **XLM_R),
        278_043_648,
    ),
    "multilingual-e5-large": (
        "xlm-roberta",
        sizes(24, 16, 1024, positions=514, **XLM_R),
        559_890_432,
    ),
    "bge-m3": ("xlm-roberta", sizes(24, 16, 1024, positions=8194, **XLM_R), 567_754_752),
}
"""The sizes in each one's `config.json`, and the parameters in its files: with the pooler."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes_have_the_published_number_of_parameters(name):
    family, fields, count = PUBLISHED[name]
    bert = family == "bert"
    kind, hf_config = (BertModel, HfBertConfig) if bert else (XLMRobertaModel, XLMRobertaConfig)
    with torch.device("meta"):  # transformers' own count, without any memory
        theirs = sum(parameter.numel() for parameter in kind(hf_config(**fields)).parameters())
    config = BertConfig.from_hf({"model_type": family, "layer_norm_eps": 1e-12, **fields})
    pooler = config.width * (config.width + 1)
    assert num_parameters(Model(config).shapes()) + pooler == theirs == count
    assert config.max_tokens == {512: 512, 514: 512, 8194: 8192}[config.positions]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "roberta"}, "model_type='roberta' .* 'bert', 'xlm-roberta' can be read"),
        ({}, "model_type=None"),
        ({"model_type": "bert", "hidden_act": "relu"}, "hidden_act='relu'"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder=True"),
        ({"model_type": "bert"}, "lacks the field 'vocab_size'"),
        (
            {"model_type": "bert", "layer_norm_eps": 1e-12, **sizes(1, 5, 384)},
            "hidden_size=384 is no multiple of num_attention_heads=5",
        ),
    ],
)
def test_other_families_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_hf(fields)


def test_a_config_without_a_padding_id_has_its_familys():
    for family, pad in (("bert", 0), ("xlm-roberta", 1)):
        fields = {"model_type": family, "layer_norm_eps": 1e-5, **sizes(1, 2, 4)}
        assert BertConfig.from_hf(fields).pad == pad
        assert BertConfig.from_hf(fields | {"pad_token_id": None}).pad == pad
        assert BertConfig.from_hf(fields | {"pad_token_id": 3}).pad == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "32"}, "hidden_size='32' is no integer of at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads=0 is no integer of at least 1"),
        ({"max_position_embeddings": None}, "max_position_embeddings=None is no integer"),
        ({"vocab_size": 1.5}, r"vocab_size=1\.5 is no integer"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1 is no integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is no integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True is no integer"),
        ({"intermediate_size": [4]}, r"intermediate_size=\[4\] is no integer"),
        ({"type_vocab_size": None}, "type_vocab_size=None is no integer"),
        ({"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\] is not supported here; 'gelu', "),
        ({"hidden_act": None}, "hidden_act=None is not supported here; 'gelu', "),
        ({"model_type": ["bert"]}, r"model_type=\['bert'\] .* 'bert', 'xlm-roberta' can be read"),
        ({"position_embedding_type": []}, r"position_embedding_type=\[\] .* 'absolute' can"),
        ({"is_decoder": "no"}, "is_decoder='no' is neither true nor false"),
        ({"add_cross_attention": 1}, "add_cross_attention=1 is neither true nor false"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps='x' is no number above 0"),
        ({"layer_norm_eps": None}, "layer_norm_eps=None is no number above 0"),
        ({"layer_norm_eps": True}, "layer_norm_eps=True is no number above 0"),
        ({"pad_token_id": "x"}, "pad_token_id='x' is no id of the vocabulary; those are 0 to 59"),
        ({"pad_token_id": False}, "pad_token_id=False is no id"),
        ({"pad_token_id": -1}, "pad_token_id=-1 is no id"),
        ({"pad_token_id": 60}, "pad_token_id=60 is no id"),
        (
            {"model_type": "xlm-roberta", "max_position_embeddings": 2},
            "max_position_embeddings=2 leaves no place for a token; pad_token_id=1",
        ),
    ],
)
def test_a_field_that_is_no_size_or_word_is_refused(changes, message):
    fields = {"model_type": "bert", "layer_norm_eps": 1e-12, **sizes(1, 2, 4, vocab=60)}
    BertConfig.from_hf(fields)
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_hf(fields | changes)
