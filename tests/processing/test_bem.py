"""BEM's packing, its scores in any company, and the conversion of its published weights."""

import json

import jax
import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, BertTokenizer

from jaxagent.models.bem import Model
from jaxagent.processing import bem
from jaxagent.processing.bem import Bem, BemError, Packing, Pair
from jaxagent.processing.bem_conversion import (
    README_PAIRS,
    convert_bem,
    found_order,
)
from jaxagent.trees import flat
from jaxagent.weights.bem import (
    Order,
    variables_config,
    variables_params,
    write_bem,
)
from jaxagent.weights.safetensors import WeightsError
from tests.weights.bem_network import SAVED_MODEL, network
from tests.weights.test_bem import ALPHABETICAL

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] the menger family hotel bak ##er name sep [ ] ? cafe 3 . 5 a b c d e"
)
PAIRS = [
    Pair(" ".join(np.random.default_rng(i).choice([*"abcde", "hotel", "cafe"], 3)), "a b", "?")
    for i in range(24)
]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS.split()) + "\n")
    return path


def words(packed):
    return " ".join(WORDS.split()[one] for one in packed.ids)


def test_a_pair_is_packed_as_the_metric_packs_it(vocabulary):
    packed = Packing(vocabulary)(Pair("the Baker family", "The  MENGER family", "Hotel name?"))
    # segments     0     0   0     0       0      0     1    1       1      1     2     2    2   2
    assert (
        words(packed)
        == "[CLS] the bak ##er family [SEP] the menger family [SEP] hotel name ? [SEP]"
    )
    assert packed.segments == [0] * 6 + [1] * 4 + [2] * 4


def test_accents_go_and_unknown_words_are_one_piece(vocabulary):
    assert (
        words(Packing(vocabulary)(Pair("Café 3.5", "zzz", "")))
        == "[CLS] cafe 3 . 5 [SEP] [UNK] [SEP] [SEP]"
    )


@pytest.mark.parametrize("too_long", ["candidate", "reag"])
def test_a_lone_surrogate_in_a_text_is_a_question_mark(vocabulary, too_long):
    packing = Packing(vocabulary)
    packed = packing(Pair("a \ud800", "\udfff", "b\ud800"), too_long=too_long)
    assert words(packed) == "[CLS] a ? [SEP] ? [SEP] b ? [SEP]"


def test_a_literal_separator_is_three_pieces(vocabulary):
    packed = Packing(vocabulary)(Pair("[SEP]", "a", "b"))
    assert words(packed) == "[CLS] [ sep ] [SEP] a [SEP] b [SEP]"
    kept = BertTokenizer(str(vocabulary)).tokenize("[SEP]")
    assert kept == ["[SEP]"]  # the trap: transformers keeps it whole


def test_an_empty_candidate_leaves_its_separator(vocabulary):
    packed = Packing(vocabulary)(Pair("", "a", "b"))
    assert words(packed) == "[CLS] [SEP] a [SEP] b [SEP]"
    assert packed.segments == [0, 0, 1, 1, 2, 2]


def test_too_long_an_input_loses_the_end_of_its_candidate(vocabulary):
    packing = Packing(vocabulary, max_tokens=9)
    assert words(packing(Pair("a b c d e", "a", "b"))) == "[CLS] a b c [SEP] a [SEP] b [SEP]"
    assert words(packing(Pair("a b c", "a", "b"))) == "[CLS] a b c [SEP] a [SEP] b [SEP]"
    assert words(packing(Pair("a", "a b c", "d e"))) == "[CLS] [SEP] a b c [SEP] d e [SEP]"
    with pytest.raises(BemError, match="are 10 tokens .* reads 9: 'd e'. Shorten"):
        packing(Pair("a", "a b c d", "d e"))


def test_reags_cut_takes_128_characters_and_512_tokens(vocabulary):
    packing = Packing(vocabulary)
    packed = packing(Pair("a " * 100, "b", "c"), too_long="reag")
    assert words(packed) == "[CLS]" + " a" * 64 + " [SEP] b [SEP] c [SEP]"
    packed = packing(Pair("a " * 100, "b " * 300, "c " * 300), too_long="reag")
    assert len(packed.ids) == len(packed.segments) == 512
    assert words(packed).endswith(
        "b [SEP] " + "c " * 144 + "c"
    )  # not even the last separator is left


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[PAD] [UNK] a", r"\[CLS\], \[SEP\] is not in it"),
        ("a [PAD] [UNK] [CLS] [SEP]", r"\[PAD\] is not its first line"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path, text, message):
    path = tmp_path / "vocab.txt"
    path.write_text(text.replace(" ", "\n"))
    with pytest.raises(BemError, match=message):
        Packing(path)
    with pytest.raises(BemError, match="cannot be read as a vocabulary"):
        Packing(tmp_path / "nowhere")


def listed(order):
    """The variables of `network` as a tree of another order would list them."""
    variables = network()
    layers = [variables[5 + 16 * i : 21 + 16 * i] for i in range(12)]
    if order.layers == "by_number":
        layers = [layers[sorted(range(12), key=str).index(i)] for i in range(12)]
    if order.first_norm == "mlp":
        layers = [[*one[14:], *one[2:14], *one[:2]] for one in layers]
    places = {"k": 2, "q": 6, "v": 8}
    moved = []
    for one in layers:
        moved += one
        for slot, part in zip("kqv", order.projections, strict=True):
            start = len(moved) - 16 + places[slot]
            moved[start : start + 2] = one[places[part] : places[part] + 2]
    return [*variables[:5], *moved, *variables[197:]]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The network, its packing, and verdicts of it that are not near the threshold."""
    path = tmp_path_factory.mktemp("known") / "vocab.txt"
    path.write_text("\n".join(WORDS.split()) + "\n")
    model = Model(variables_config(network()))
    packing = Packing(path, max_tokens=40)
    params = variables_params(network(), model.config, ALPHABETICAL)
    probabilities = bem.scores(model, params, packing, PAIRS)
    sure = {
        pair: bool(probability >= 0.5)
        for pair, probability in zip(PAIRS, probabilities, strict=True)
        if abs(probability - 0.5) > 0.01
    }
    assert 5 <= sum(sure.values()) <= len(sure) - 5
    return model, params, packing, sure


@pytest.mark.parametrize(
    "order",
    [
        ALPHABETICAL,
        Order("by_number", "attention", ("k", "q", "v")),
        Order("by_text", "mlp", ("k", "q", "v")),
        Order("by_number", "attention", ("q", "k", "v")),
    ],
)
def test_the_order_is_found_by_known_verdicts(known, order):
    model, params, packing, verdicts = known
    found = found_order(model, listed(order), packing, verdicts)
    assert found.order == order
    for name, leaf in flat(found.params).items():
        np.testing.assert_array_equal(leaf, flat(params)[name])


def test_no_order_and_several_orders_are_refused(known):
    model, _, packing, verdicts = known
    wrong = {pair: not verdict for pair, verdict in verdicts.items()}
    with pytest.raises(WeightsError, match=r"No order .* known verdicts; the best gives \d+, with"):
        found_order(model, network(), packing, wrong)
    first = dict(list(verdicts.items())[:1])
    with pytest.raises(WeightsError, match="orders of the variables give all 1 known verdicts"):
        found_order(model, network(), packing, first)


def test_a_saved_model_becomes_a_folder_that_transformers_scores_alike(known, vocabulary, tmp_path):
    _, _, _, verdicts = known
    folder = tmp_path / "bem"
    assert convert_bem(SAVED_MODEL, vocabulary, folder, pairs=verdicts).order == ALPHABETICAL
    card = json.loads((folder / "card.json").read_text())
    assert card["order"]["layers"] == "by_text"
    assert [row["equivalent"] for row in card["pairs"]] == list(verdicts.values())

    opened = Bem(folder)
    ours = opened.scores(list(verdicts))
    assert ((ours >= 0.5) == list(verdicts.values())).all()
    theirs = BertForSequenceClassification.from_pretrained(folder).eval()
    for pair, probability in zip(verdicts, ours, strict=True):
        packed = opened.packing(pair)
        with torch.no_grad():
            logits = theirs(
                torch.tensor([packed.ids]), token_type_ids=torch.tensor([packed.segments])
            ).logits
        assert abs(float(logits.softmax(-1)[0, 1]) - probability) < 1e-4


def test_a_score_does_not_depend_on_the_other_pairs(known):
    model, params, packing, _ = known
    mixed = [*PAIRS[:3], Pair("a b c d " * 8, "a", "b"), *PAIRS[3:]]
    together = bem.scores(model, params, packing, mixed)
    alone = [bem.scores(model, params, packing, [pair])[0] for pair in mixed[:4]]
    np.testing.assert_allclose(together[:4], alone, atol=1e-4)
    assert bem.scores(model, params, packing, []).shape == (0,)


def test_the_readmes_pairs_hold_both_verdicts():
    assert sorted(README_PAIRS.values()) == [False, True]


def test_pairs_of_one_verdict_are_refused(tmp_path):
    with pytest.raises(ValueError, match="The 1 known pairs hold one kind of verdict only"):
        convert_bem(SAVED_MODEL, tmp_path, tmp_path, pairs={PAIRS[0]: True})


def test_a_vocabulary_of_another_size_is_refused(tmp_path, vocabulary):
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    with pytest.raises(BemError, match="has 25 words and the weights 24"):
        convert_bem(
            SAVED_MODEL,
            vocabulary,
            tmp_path / "bem",
            pairs=dict.fromkeys(PAIRS, True) | {PAIRS[0]: False},
        )
    assert not (tmp_path / "bem").exists()


def test_a_tiny_bem_of_random_weights_can_be_opened(tmp_path, vocabulary):
    config = variables_config(network())
    write_bem(tmp_path, config, Model(config).init(jax.random.key(0)))
    assert 0 <= Bem(tmp_path).scores(PAIRS[:1])[0] <= 1
