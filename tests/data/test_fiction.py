"""A fiction changes flags and names, consistently, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.agents.protocol import Found, ImageQuery, SummaryQuery, TextQuery, ToolCall
from jaxagent.data.fiction import (
    TWISTS,
    Fiction,
    fictional,
    fictional_tools,
    name_words,
    reworded,
    twisted_images,
    twisted_key,
    untwisted_key,
)
from jaxagent.types import Candidate, Passage, Question

FICTION = Fiction(twist=7, seed="0 1", names=("Chad", "Mali", "Peru"), words=("coal", "wheat"))
QUESTION = Question(
    data_id="q~1",
    images=("view:td:a:L2:1",),
    text="What is the capital of this country?",
    kind="String",
    family="single",
    answers=("N'Djamena",),
    entities=("td",),
    relation="capital",
)
CAPITAL = Passage(id="td-capital", title="Chad", text="Capital: N'Djamena")


def test_every_twist_of_a_lopsided_picture_is_another_picture():
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    images = twisted_images({"kb:td": picture}.__getitem__)
    seen = {images(twisted_key("kb:td", twist)).tobytes() for twist in range(len(TWISTS))}
    assert len(seen) == len(TWISTS) == 24
    np.testing.assert_array_equal(images(twisted_key("kb:td", 0)), picture)


def test_a_twisted_key_leads_back_to_its_image():
    assert untwisted_key(twisted_key("view:td:a:L2:1", 5)) == "view:td:a:L2:1"
    assert twisted_key("kb:td", 0) == "kb:td"
    with pytest.raises(KeyError):
        twisted_images({}.__getitem__)("twist3/kb:td")


def test_the_tools_are_asked_in_the_real_world_and_answer_in_the_fiction():
    asked = []

    def search(calls):
        asked.extend(call.arguments for call in calls)
        chad = Candidate(entity="td", name="Chad", image="kb:td", score=0.5)
        return [Found(candidates=(chad,), passages=(CAPITAL,)) for _ in calls]

    tools = fictional_tools(
        {"search": search}, {QUESTION.data_id: FICTION}, hidden=frozenset({"pe"})
    )
    question = fictional(QUESTION, FICTION)
    chad = FICTION.invented["Chad"]
    calls = [
        ToolCall(question=question, tool="search", arguments=arguments)
        for arguments in (
            ImageQuery(image=question.images[0], top=5, exclude=frozenset({"ml"})),
            TextQuery(queries=(f"{chad}: What is the capital?",), top=3),
            SummaryQuery(question="?", passages=()),
        )
    ]
    (found, *_) = tools["search"](calls)
    assert asked == [
        ImageQuery(image="view:td:a:L2:1", top=5, exclude=frozenset({"ml", "pe"})),
        TextQuery(queries=("Chad: What is the capital?",), top=3),
        SummaryQuery(question="?", passages=()),
    ]
    assert found.candidates[0].name == chad
    assert found.candidates[0].image == "twist7/kb:td"
    assert found.passages[0].title == chad
    assert found.passages[0].text == CAPITAL.text


def test_a_question_without_a_fiction_is_answered_as_it_is_but_never_with_the_hidden():
    def search(calls):
        return [Found(text=" ".join(sorted(call.arguments.exclude))) for call in calls]

    tools = fictional_tools({"search": search}, {}, hidden=frozenset({"pe"}))
    arguments = ImageQuery(image="kb:td", top=5)
    (found,) = tools["search"]([ToolCall(question=QUESTION, tool="search", arguments=arguments)])
    assert found.text == "pe"


def test_a_query_that_begins_with_no_invented_name_is_left_alone():
    assert FICTION.asked("Atlantis: What is the capital?") == "Atlantis: What is the capital?"


def test_names_are_invented_from_words_of_letters():
    texts = ["Coal, 1,200 tons of wheat; (tin)", "N'Djamena"]
    assert name_words(texts) == ["coal", "tons", "wheat"]
    assert name_words(texts, lengths=range(2, 4)) == ["of", "tin"]


def test_a_question_in_other_words_is_searched_for_in_its_own():
    ways = [
        reworded(QUESTION.text, ("coal", "wheat"), np.random.default_rng(seed)) for seed in range(9)
    ]
    assert {way[-1] for way in ways} == {"?", "."}
    told = ways[0]
    assert told.split(" ")[0] == "What"
    assert told != QUESTION.text
    assert len(told.split(" ")) == len(QUESTION.text.split(" "))
    fiction = replace(FICTION, text=QUESTION.text, asked_as=told)
    assert fictional(QUESTION, fiction).text == told
    query = f"{fiction.invented['Mali']}: {told}"
    assert fiction.asked(query) == f"Mali: {QUESTION.text}"

    def summarise(calls):
        return [Found(text=call.arguments.question) for call in calls]

    tools = fictional_tools(
        {"summarise": summarise}, {QUESTION.data_id: fiction}, hidden=frozenset()
    )
    call = ToolCall(
        question=fictional(QUESTION, fiction),
        tool="summarise",
        arguments=SummaryQuery(question=told, passages=(CAPITAL,)),
    )
    assert tools["summarise"]([call]) == [Found(text=QUESTION.text)]
