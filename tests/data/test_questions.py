"""Laws of the questions: what stands where, and what no split may know of another."""

import re
from collections import Counter

import pytest

from jaxagent.data.config import FlagsConfig
from jaxagent.data.questions import (
    SPLITS,
    entity_splits,
    entity_views,
    known_facts,
    make_questions,
    neighbours,
)
from jaxagent.data.views import is_ambiguous, parsed_view_key


def of(text, **wanted):
    return [
        row
        for row in text.questions
        if all(getattr(row, name) == value for name, value in wanted.items())
    ]


def test_the_first_answer_stands_literally_in_the_last_evidence(text):
    for row in text.questions:
        passages = [text.passages[id] for id in row.evidence]
        if row.family == "compare":
            assert row.answers[0] in [passage.title for passage in passages]
        else:
            assert row.answers[0] in passages[-1].text


def test_evidence_begins_at_the_countries_in_the_images(text):
    for row in text.questions:
        shown = [parsed_view_key(key).entity for key in row.images]
        assert tuple(shown) == row.entities
        assert [id.split("-")[0] for id in row.evidence][: len(shown)] == shown


def test_a_bridge_goes_over_a_neighbour_that_the_first_passage_names(text):
    names = {c.id: (c.name, *c.aliases) for c in text.countries}
    spoken = {"ae": "UAE", "ci": "Cote d'Ivoire", "us": "US", "gb": "UK"}
    for row in of(text, family="bridge"):
        first, second = row.evidence
        neighbour = second.split("-")[0]
        known = (*names[neighbour], spoken.get(neighbour, names[neighbour][0]))
        assert any(name in text.passages[first].text for name in known)


def test_the_longest_and_the_shortest_border_are_found(text):
    found = neighbours(text.countries, text.passages)
    # Cameroon 1,116; Central African Republic 1,556; Libya 1,050; Niger 1,196; Nigeria 85; Sudan
    # 1,403
    assert found["td", "longest_border"] == "cf"
    assert found["td", "shortest_border"] == "ng"
    # Portugal has one neighbour.
    assert found["pt", "longest_border"] == "es"
    assert ("pt", "shortest_border") not in found


def test_a_comparison_names_the_country_with_the_larger_value(text):
    facts = {
        (f.country, f.relation.name): f.value
        for f in known_facts(text.countries, text.passages)
        if f.relation.larger
    }
    names = {country.id: country.name for country in text.countries}
    for row in of(text, family="compare"):
        first, second = (facts[country, row.relation] for country in row.entities)
        assert row.answers[0] == names[row.entities[0] if first > second else row.entities[1]]
        assert first != pytest.approx(second, rel=0.0005)
    winners = Counter(
        row.answers[0] == names[row.entities[0]] for row in of(text, family="compare")
    )
    assert min(winners.values()) > 0.45 * sum(winners.values())


def test_numerical_answers_have_infoseeks_range_and_no_others_do(text):
    for row in text.questions:
        if row.kind != "Numerical":
            assert row.answer_range is None
            continue
        low, high = row.answer_range
        value = float(row.answers[0].replace(",", ""))
        assert low == pytest.approx(0.9 * value)
        assert high == pytest.approx(1.1 * value)


def test_training_asks_nothing_about_an_unseen_entity_and_shows_none(text):
    for row in of(text, split="train"):
        named = {id.split("-")[0] for id in row.evidence}
        assert {text.splits[country] for country in named.union(row.entities)} == {"train"}


def test_unseen_entities_are_those_of_their_split(text):
    for row in text.questions:
        dealt = {text.splits[country] for country in row.entities}
        unseen_question = row.split in ("train", "val_unseen_question", "unseen_question")
        assert dealt == {"train" if unseen_question else row.split}
    assert Counter(text.splits.values())["unseen_entity"] == 58
    assert Counter(text.splits.values())["val_unseen_entity"] == 36


def test_no_fact_is_asked_in_two_splits_of_the_training_entities(text):
    splits = {}
    for row in text.questions:
        if row.split not in ("train", "val_unseen_question", "unseen_question"):
            continue
        asked = row.evidence if row.family == "compare" else row.evidence[-1:]
        for passage in asked:
            fact = (passage.split("-")[0], row.relation.rpartition(".")[2])
            assert splits.setdefault(fact, row.split) == row.split


def test_wordings_and_views_of_training_are_seen_nowhere_else(text):
    def texts(rows):
        return {re.sub("(this|that) country", "", row.text) for row in rows}

    train = of(text, split="train")
    other = [row for row in text.questions if row.split != "train"]
    assert not texts(train) & texts(other)
    views = {
        split: {key for row in of(text, split=split) for key in row.images} for split in SPLITS
    }
    assert sum(map(len, views.values())) == len(set().union(*views.values()))


def test_an_entity_is_shown_in_several_views_that_follow_the_mix(text):
    keys = entity_views("td", "train", text.config)
    assert len(set(keys)) == text.config.views
    used = Counter(parsed_view_key(key).level for row in text.questions for key in row.images)
    assert used["L2"] / sum(used.values()) == pytest.approx(0.5, abs=0.03)
    for row in text.questions[:100]:
        assert set(row.images) <= {
            key for country in row.entities for key in entity_views(country, row.split, text.config)
        }


def test_rows_say_whether_a_view_leaves_out_too_much(text):
    for row in text.questions[:500]:
        assert row.ambiguous == any(is_ambiguous(key) for key in row.images)


def test_ids_are_unique_and_the_same_config_gives_the_same_rows(text):
    assert len({row.data_id for row in text.questions}) == len(text.questions)
    few = text.countries[:25]
    made = [make_questions(few, text.passages, text.config, text.splits) for _ in range(2)]
    assert made[0] == made[1]
    assert {row for row in made[0] if row.family == "single"} <= set(text.questions)


def test_the_first_rows_of_a_split_are_a_sample_of_it(text):
    rows = of(text, split="unseen_entity")
    share = {
        family: sum(row.family == family for row in rows) / len(rows)
        for family in text.config.families
    }
    for family, whole in share.items():
        first = sum(row.family == family for row in rows[:300]) / 300
        assert first == pytest.approx(whole, abs=0.09)


def test_families_can_be_left_out(text):
    config = FlagsConfig(families=("single",))
    rows = make_questions(text.countries[:25], text.passages, config, text.splits)
    assert {row.family for row in rows} == {"single"}


def test_too_many_held_out_entities_are_refused():
    with pytest.raises(ValueError, match="leave none of 3 .* Lower data.flags.test_entities"):
        entity_splits(["aa", "bb", "cc"], FlagsConfig())
