"""BEM's folder, and the parameters behind its published variables."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from jaxagent.models.bert import BertConfig
from jaxagent.models.config import ConfigError
from jaxagent.trees import flat
from jaxagent.weights.bem import (
    Order,
    orders,
    read_bem,
    variables_config,
    variables_params,
    write_bem,
)
from jaxagent.weights.safetensors import WeightsError
from tests.models import bert_twins as twins
from tests.weights.bem_network import SHAPES

CONFIG = BertConfig(
    vocab=24,
    width=6,
    layers=12,
    heads=2,
    mlp_width=5,
    positions=40,
    types=3,
    norm_epsilon=1e-12,
    tanh_gelu=True,
)
ALPHABETICAL = Order("by_text", "attention", ("k", "q", "v"))


def variables():
    """Arrays that hold nothing but their own numbers."""
    return [np.full(shape, i, np.float32) for i, shape in enumerate(SHAPES)]


def test_transformers_loads_what_was_written_bit_for_bit(tmp_path):
    twin = twins.bem()
    config, params = read_bem(twins.saved(twin, tmp_path / "source"))
    write_bem(tmp_path / "target", config, params)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "target")
    assert loaded.config.hidden_act == "gelu_new"
    assert loaded.config.layer_norm_eps == twin.config.layer_norm_eps
    state = loaded.state_dict()
    assert state.keys() == twin.state_dict().keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in twin.state_dict().items())
    again = read_bem(tmp_path / "target")
    assert again.config == config
    for name, leaf in flat(again.params).items():
        np.testing.assert_array_equal(leaf, flat(params)[name])


def test_the_folder_of_a_sentence_encoder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="This is no BEM: type_vocab_size=2"):
        read_bem(twins.saved(twins.bert(), tmp_path))


def test_the_sizes_are_those_of_the_variables():
    assert variables_config(variables()) == CONFIG


def test_the_variables_stand_in_the_order_of_an_alphabetical_tree():
    named = flat(variables_params(variables(), CONFIG, ALPHABETICAL))
    firsts = {name: leaf.ravel()[0] for name, leaf in named.items() if "layers" not in name}
    assert firsts == {
        "bert/norm/bias": 0,
        "bert/norm/scale": 1,
        "bert/position/table": 2,
        "bert/type/table": 3,
        "bert/word/table": 4,
        "pooler/bias": 202,
        "pooler/kernel": 203,
        "classifier/bias": 204,
        "classifier/kernel": 205,
    }
    # layer   0 1 2 .. 9  10 11
    # stands  0 1 4 .. 11  2  3
    stands = [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]
    offsets = ["attention_norm/bias", "attention_norm/scale"]
    offsets += [f"{part}/{leaf}" for part in "koqv" for leaf in ("bias", "kernel")]
    offsets += [f"mlp/{part}/{leaf}" for part in ("up", "down") for leaf in ("bias", "kernel")]
    offsets += ["mlp_norm/bias", "mlp_norm/scale"]
    for offset, name in enumerate(offsets):
        leaf = named[f"bert/layers/{name}"]
        expected = [5 + 16 * place + offset for place in stands]
        assert leaf.reshape(12, -1)[:, 0].tolist() == expected, name


def test_every_order_is_another_one():
    rows = set()
    for order in orders():
        named = flat(variables_params(variables(), CONFIG, order))
        rows.add(tuple(tuple(leaf.reshape(len(leaf), -1)[:, 0]) for leaf in named.values()))
    assert len(rows) == len(orders()) == 24
    assert orders()[0] == ALPHABETICAL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "There are 205 variables; BEM has 206"),
        (lambda rows: rows[:5], "There are 5 variables"),
        (lambda rows: rows[::-1], "BEM has tables, heads and a bias there"),
        (lambda rows: [*rows[:20], np.zeros(9), *rows[21:]], r"variables/20 is \(9,\), not \(6,\)"),
        (lambda rows: [*rows[:100], *rows[110:], *rows[100:110]], "are not BEM's"),
    ],
)
def test_other_variables_are_refused(change, message):
    with pytest.raises(WeightsError, match=message):
        variables_config(change(variables()))
