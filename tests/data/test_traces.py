"""The experts act by the truth through the methods' own rules, and what fails is not usable."""

from collections.abc import Callable

import pytest

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.agents.protocol import Begin, Call, Done, Found, Generate, Returned, Said, begin
from jaxagent.data.traces import expert, glancer, text_of, usable
from jaxagent.services.summariser import extract
from jaxagent.types import Candidate, Dialogue, Passage, Question

NAMES = {"td": "Chad", "ro": "Romania", "ml": "Mali", "fr": "France", "gn": "Guinea"}
NAMES |= {f"x{number}": f"Land {number}" for number in range(20)} | {"sd": "Sudan"}
TEXTS = {
    "td-capital": "Capital: N'Djamena",
    "td-borders": "Border countries: Cameroon 1,116 km; Niger 1,196 km; Sudan 1,403 km",
    "td-area": "Total area: 1,284,000 sq km",
    "td-independence": "Independence: 11 August 1960 (from France)",
    "ro-area": "Total area: 238,391 sq km",
    "ro-independence": "Independence: 9 May 1877 (independence proclaimed)",
    "sd-capital": "Capital: Khartoum",
}
PASSAGES = {
    name: Passage(id=name, title=NAMES[name[:2]], text=text) for name, text in TEXTS.items()
}
SINGLE = Question(
    data_id="single",
    images=("view:td",),
    text="What is the capital of this country?",
    kind="String",
    family="single",
    answers=("N'Djamena",),
    entities=("td",),
    relation="capital",
    evidence=("td-capital",),
)
BRIDGE = Question(
    data_id="bridge",
    images=("view:td",),
    text="This country has its longest land border with another country. Name its capital.",
    kind="String",
    family="bridge",
    answers=("Khartoum",),
    entities=("td",),
    relation="longest_border.capital",
    evidence=("td-borders", "sd-capital"),
)
COMPARE = Question(
    data_id="compare",
    images=("view:td", "view:ro"),
    text="Which of these two countries has the larger total area?",
    kind="String",
    family="compare",
    answers=("Chad",),
    entities=("td", "ro"),
    relation="area",
    evidence=("td-area", "ro-area"),
)
LATER = Question(
    **vars(COMPARE)
    | {
        "text": "Which of these two countries became independent later?",
        "relation": "independence_year",
        "evidence": ("td-independence", "ro-independence"),
    }
)


def base(rank: int, *, deaf: bool = False) -> Callable[[Call, Question], Found]:
    """Tools that rank the truth at `rank` (from 0) and find passages by title and label's stem."""

    def answer(call: Call, question: Question) -> Found:
        arguments = call.arguments
        if call.tool in ("search_images", "search_pages"):
            truth = question.entities[question.images.index(arguments.image)]
            order = [entity for entity in NAMES if entity != truth]
            order.insert(rank, truth)
            kept = [one for one in order if one not in arguments.exclude][: arguments.top]
            found = tuple(
                Candidate(entity=one, name=NAMES[one], image=f"kb:{one}", score=0.1) for one in kept
            )
            names = {one.name for one in found}
            pages = tuple(row for row in PASSAGES.values() if row.title in names)
            return Found(candidates=found, passages=pages if call.tool == "search_pages" else ())
        if call.tool == "summarise":
            return Found(text=extract(arguments))
        return Found(
            passages=tuple(
                row
                for query in arguments.queries
                for row in PASSAGES.values()
                if not deaf
                and row.title in query
                and row.text.partition(":")[0].lower()[:9] in query.lower()
            )
        )

    return answer


def played(config: MMAgentR2 | ProMSA, question: Question, tools, author=expert) -> Dialogue:
    """The expert's dialogue."""
    module = mmagent_r2 if isinstance(config, MMAgentR2) else promsa
    method, script = module.method(config), author(config, PASSAGES.values())
    dialogue, (request,) = method.advance(begin(question), Begin(question))
    while not isinstance(request, Done):
        if isinstance(request, Generate):
            event = Said(text=script(dialogue), finish="stop")
        else:
            event = Returned(request=request, result=tools(request, question))
        dialogue, (request,) = method.advance(dialogue, event)
    return dialogue


def lines(dialogue: Dialogue) -> list[str]:
    return [turn.text if turn.author == "policy" else text_of(turn) for turn in dialogue.turns]


def test_mmagent_single():
    dialogue = played(MMAgentR2(prompt="short"), SINGLE, base(1))
    assert lines(dialogue) == [
        '<reason>Find.</reason><search_call>{"image": 1}</search_call>',
        "Romania\nChad\nMali\nFrance\nGuinea\n",
        "<reason>no yes no no no</reason><rerank>Chad</rerank>",
        'Image 1 is "Chad".',
        "<reason>Read.</reason>"
        '<search_call>{"text": ["Chad: What is the capital of this country?"]}</search_call>',
        "Chad. Capital: N'Djamena",
        "<reason>Found.</reason><answer> N'Djamena</answer>",
    ]
    assert usable(dialogue, PASSAGES)


def test_mmagent_chooses_by_number_where_the_settings_say_so():
    by_number, by_name = (
        played(MMAgentR2(prompt="short", choice=choice), SINGLE, base(1))
        for choice in ("number", "name")
    )
    assert lines(by_number)[1] == "1\nRomania\n2\nChad\n3\nMali\n4\nFrance\n5\nGuinea\n"
    assert lines(by_number)[2] == "<reason>1 no 2 yes 3 no 4 no 5 no</reason><rerank>2</rerank>"
    assert lines(by_number)[3:] == lines(by_name)[3:]
    assert usable(by_number, PASSAGES)


@pytest.mark.parametrize("config", [MMAgentR2(prompt="short"), ProMSA(prompt="short")])
def test_a_glance_ends_one_turn_after_a_search_has_brought_something(config):
    whole, glance = (played(config, SINGLE, base(7), author=author) for author in (expert, glancer))
    assert lines(glance)[:4] == lines(whole)[:4]
    assert len(glance.turns) == 5 < len(whole.turns)
    assert glance.done
    assert not usable(glance, PASSAGES)


def test_mmagent_rejects_until_the_truth_is_there():
    dialogue = played(MMAgentR2(prompt="short"), SINGLE, base(7))
    assert lines(dialogue)[2] == "<reason>no no no no no</reason><rerank>None</rerank>"
    assert lines(dialogue)[4].startswith("<reason>no no yes no no</reason><rerank>Chad")
    assert usable(dialogue, PASSAGES)


def test_mmagent_bridge_reads_the_border_first():
    dialogue = played(MMAgentR2(prompt="short"), BRIDGE, base(0))
    searches = [line for line in lines(dialogue) if '"text"' in line]
    assert [line.partition('["')[2].partition('"')[0] for line in searches] == [
        "Chad: border countries",
        "Sudan: Name its capital.",
    ]
    assert dialogue.answer == "Khartoum"
    assert usable(dialogue, PASSAGES)


@pytest.mark.parametrize(
    ("question", "query", "reason"),
    [
        (
            COMPARE,
            '"Chad: Which of these two countries has the larger total area?", '
            '"Romania: Which of these two countries has the larger total area?"',
            "Chad 1,284,000\nRomania 238,391",
        ),
        (
            LATER,
            '"Chad: Which of these two countries became independent later?", '
            '"Romania: Which of these two countries became independent later?"',
            "Chad 1960\nRomania 1877",
        ),
    ],
)
def test_mmagent_compares_in_one_text_search(question: Question, query: str, reason: str):
    dialogue = played(MMAgentR2(prompt="short"), question, base(0))
    assert f'{{"text": [{query}]}}' in lines(dialogue)[-3]
    assert lines(dialogue)[-1] == f"<reason>{reason}</reason><answer>Chad</answer>"
    assert [search.entity.entity for search in dialogue.state.images] == ["td", "ro"]
    assert usable(dialogue, PASSAGES)


def test_an_entity_out_of_reach_ends_in_a_guess_that_is_not_usable():
    dialogue = played(MMAgentR2(prompt="short"), SINGLE, base(18))
    assert [one.chosen for one in dialogue.state.verifications][:3] == [None] * 3
    assert dialogue.state.faults == ()
    assert dialogue.done
    assert not usable(dialogue, PASSAGES)


@pytest.mark.parametrize("config", [MMAgentR2(), ProMSA(prompt="short")], ids=["r2", "promsa"])
def test_evidence_that_is_not_found_ends_in_a_guess_that_is_not_usable(config):
    question = BRIDGE
    dialogue = played(config, question, base(0, deaf=True))
    assert dialogue.done
    assert dialogue.state.faults == ()
    assert not usable(dialogue, PASSAGES)


def test_a_forced_answer_is_not_usable():
    dialogue = played(MMAgentR2(max_turns=3), SINGLE, base(0))
    assert dialogue.answer == "N'Djamena"
    assert not usable(dialogue, PASSAGES)


@pytest.mark.parametrize("variant", ["rerank_only", "neither"])
def test_the_variants_have_their_experts(variant: str):
    dialogue = played(MMAgentR2(variant=variant), SINGLE, base(0))
    assert dialogue.state.faults == ()
    assert usable(dialogue, PASSAGES)
    assert not usable(played(MMAgentR2(variant=variant), SINGLE, base(9)), PASSAGES)


def test_promsa_answers_from_a_page_that_holds_the_answer():
    dialogue = played(ProMSA(prompt="short"), SINGLE, base(4))
    assert [turn.text for turn in dialogue.turns if turn.author == "policy"] == [
        "<thinking>Find.</thinking>"
        '<tool_call>{"name": "image_search_tool", "arguments": {}}</tool_call>',
        "<thinking>No.</thinking>"
        '<tool_call>{"name": "image_search_tool", "arguments": {}}</tool_call>',
        "<thinking>Found.</thinking><answer> N'Djamena</answer>",
    ]
    assert usable(dialogue, PASSAGES)


@pytest.mark.parametrize("question", [BRIDGE, COMPARE, LATER], ids=lambda row: row.relation)
def test_promsa_reads_one_fact_after_the_other(question: Question):
    dialogue = played(ProMSA(prompt="short"), question, base(0))
    assert dialogue.answer == question.answers[0]
    assert dialogue.state.faults == ()
    assert usable(dialogue, PASSAGES)


def test_promsa_keeps_a_call_for_every_image_and_within_its_budgets():
    dialogue = played(ProMSA(prompt="short"), COMPARE, base(18))
    assert dialogue.state.image_calls == 3
    assert {
        turn.action.image for turn in dialogue.turns if isinstance(turn.action, promsa.ImageSearch)
    } == {1, 2}
    assert dialogue.state.faults == ()
    assert dialogue.done
