"""BM25: its formula, its order and its words."""

import math

import pytest

from jaxagent.retrieval.lexical import LexicalIndex, terms, unaccented


def test_scores_are_those_of_the_formula():
    index = LexicalIndex(["red red fish", "blue fish", "one two three four"])
    hits = index.search(["red"], 2)
    assert hits.ids.tolist() == [[0, -1]]
    rarity = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert hits.scores[0, 0] == pytest.approx(rarity * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 1)))


def test_rarer_words_weigh_more_and_ties_stand_in_row_order():
    index = LexicalIndex(["fish a", "fish b", "bird a", "fish c"])
    assert index.search(["fish bird"], 4).ids.tolist() == [[2, 0, 1, 3]]


def test_passages_without_a_word_of_the_query_and_excluded_ones_are_no_hits():
    index = LexicalIndex(["fish a", "fish b", "bird"])
    hits = index.search(["fish", "cow"], 3, exclude=[{0}, ()])
    assert hits.ids.tolist() == [[1, -1, -1], [-1, -1, -1]]


def test_words_are_compared_without_case_accents_and_punctuation():
    assert unaccented("Côte d'Ivoire") == "Cote d'Ivoire"
    assert terms("Côte d'Ivoire, 1960") == ["cote", "d", "ivoire", "1960"]
    assert LexicalIndex(["São Tomé"]).search(["sao-tome!"], 1).ids.tolist() == [[0]]
