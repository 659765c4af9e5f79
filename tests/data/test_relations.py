"""The table of relations keeps the rules that its docstring states."""

from collections import Counter

import pytest

from jaxagent.data.questions import known_facts
from jaxagent.data.relations import (
    BRIDGES,
    COMPARED,
    COMPARED_ELSEWHERE,
    RELATIONS,
    search_phrase,
    search_phrases,
)


@pytest.fixture(scope="module")
def facts(text):
    return known_facts(text.countries, text.passages)


@pytest.mark.parametrize("name", RELATIONS)
def test_no_single_answer_is_right_for_more_than_a_third(facts, name):
    rows = [fact for fact in facts if fact.relation.name == name]
    assert len(rows) > 100
    if RELATIONS[name].kind == "Numerical":
        values = [fact.value for fact in rows]
        right = max(sum(0.9 * v <= guess <= 1.1 * v for v in values) for guess in values)
    else:
        right = Counter(fact.answers[0] for fact in rows).most_common(1)[0][1]
    assert right <= len(rows) / 3


def test_wordings_of_training_are_not_those_of_elsewhere():
    for asked in (*RELATIONS.values(), *BRIDGES):
        assert len(set(asked.asked)) >= 3
        assert len(set(asked.asked_elsewhere)) >= 2
        assert not set(asked.asked) & set(asked.asked_elsewhere)
    assert not set(COMPARED) & set(COMPARED_ELSEWHERE)


def test_every_wording_has_its_place_for_the_country():
    for relation in RELATIONS.values():
        for wording in (*relation.asked, *relation.asked_elsewhere):
            assert wording.count("{c}") == 1
    for wording in (*COMPARED, *COMPARED_ELSEWHERE):
        assert wording.count("{larger}") == 1


def test_a_search_phrase_is_how_the_passage_calls_its_field(text):
    for relation in RELATIONS.values():
        passage = text.passages[f"td-{relation.field}"] if relation.field != "railways" else None
        if passage:
            assert passage.text.lower().startswith(f"{search_phrase(relation.name)}: ")


def test_a_bridge_is_searched_in_two_steps():
    assert search_phrases("longest_border.area") == ("border countries", "total area")
    assert search_phrases("area") == ("total area",)
    assert search_phrase("longest_border.area") == "total area"
