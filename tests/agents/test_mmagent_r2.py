"""MMAgent-R2's rules, turn by turn, and its wire form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.agents.mmagent_r2 import (
    Answer,
    MMAgentR2,
    Reject,
    Rerank,
    SearchImage,
    SearchText,
    Verification,
    format_turn,
    method,
    parse,
)
from jaxagent.agents.protocol import Call, Failed, Found
from jaxagent.agents.wire import Malformed
from tests.agents.dialogues import COUNTRIES, candidate, failing, play, question, shown, tools

# The type checks of dataclasses draw which list items to look at.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

SEARCH = '<reason>look</reason><search_call>{"image": 1}</search_call>'
SECOND = '<reason>look</reason><search_call>{"image": 2}</search_call>'
REJECT = "<reason>none</reason><rerank>None</rerank>"
READ = '<reason>read</reason><search_call>{"text": ["Land td capital"]}</search_call>'
ANSWER = "<reason>found</reason><answer>N'Djamena</answer>"


def rerank(name: str) -> str:
    return f"<reason>it</reason><rerank>{name}</rerank>"


def test_a_whole_dialogue():
    dialogue, asked = play(
        method(MMAgentR2()), question(), [SEARCH, rerank("Land td"), READ, ANSWER]
    )
    assert [shown(request.parts) for request in asked] == [
        "<view:td>Question: What is the capital of this country?",
        "<kb:td>1\nLand td\n<kb:ro>2\nLand ro\n<kb:ad>3\nLand ad\n"
        "<kb:md>4\nLand md\n<kb:be>5\nLand be\n",
        'Image 1 is "Land td".',
        "Land td. Capital: N'Djamena\n" * 2 + "Land td. Capital: N'Djamena",
    ]
    assert dialogue.answer == "N'Djamena"
    assert dialogue.state.images[0].entity == candidate("td")
    assert dialogue.state.faults == ()
    assert dialogue.state.num_turns == 4
    assert [turn.author for turn in dialogue.turns] == ["policy", "environment"] * 3 + ["policy"]
    assert all(request.prime == "" for request in asked)


def test_answering_with_no_call_is_allowed():
    dialogue, _ = play(method(MMAgentR2()), question(), [ANSWER])
    assert dialogue.answer == "N'Djamena"
    assert (dialogue.state.num_calls, dialogue.state.faults) == (0, ())


def test_batches_never_overlap_and_the_third_reject_meets_the_boundary():
    dialogue, asked = play(method(MMAgentR2()), question(), [SEARCH, REJECT, REJECT, REJECT])
    batches = [[one.entity for one in batch] for batch in dialogue.state.images[0].batches]
    assert batches == [list(COUNTRIES[:5]), list(COUNTRIES[5:10]), list(COUNTRIES[10:14])]
    assert dialogue.state.images[0].rejections == 2
    assert shown(asked[-1].parts) == (
        "No more batches for image 1. Rerank one of the last batch or go on."
    )
    assert [one.chosen for one in dialogue.state.verifications] == [None] * 3
    assert dialogue.state.faults == ()


def test_asking_again_cannot_dodge_the_limit_of_rejections():
    dialogue, asked = play(method(MMAgentR2()), question(), [SEARCH] * 4 + [REJECT])
    assert len(dialogue.state.images[0].batches) == 3
    assert shown(asked[4].parts).startswith("No more batches for image 1.")
    assert shown(asked[5].parts).startswith("No more batches for image 1.")
    assert dialogue.state.images[0].rejections == 0


def test_an_image_is_resumed_where_it_was_left():
    script = [SEARCH, SECOND, SEARCH, rerank("Land ml"), SECOND, rerank("Land gn")]
    dialogue, asked = play(method(MMAgentR2()), question("ml", "gn"), script)
    first, second = dialogue.state.images
    assert [len(search.batches) for search in (first, second)] == [2, 2]
    assert [search.entity.entity for search in (first, second)] == ["ml", "gn"]
    assert shown(asked[-1].parts) == 'Image 2 is "Land gn".'
    assert shown(asked[0].parts).startswith("1 <view:ml> 2 <view:gn> Question: What")


def test_only_the_current_batch_can_be_reranked():
    dialogue, asked = play(
        method(MMAgentR2()), question(), [SEARCH, REJECT, rerank("Land td"), rerank("Land ml")]
    )
    assert shown(asked[3].parts) == "Error: that name is not in the current batch."
    assert dialogue.state.images[0].entity == candidate("ml")
    assert len(dialogue.state.faults) == 1
    assert dialogue.state.verifications == (
        Verification(turn=2, image=0, batch=0, chosen=None),
        Verification(turn=4, image=0, batch=1, chosen="ml"),
    )


def test_names_match_in_normal_form_and_the_last_rerank_is_recorded():
    def accented(call: Call) -> Found:
        named = candidate("ci")
        return Found(candidates=(type(named)(**vars(named) | {"name": "Côte d'Ivoire"}),))

    for written in ("Côte d'Ivoire", "  CO\u0302TE\n  d'ivoire ", "Co\u0302te d'Ivoire"):
        dialogue, _ = play(
            method(MMAgentR2()), question(), [SEARCH, rerank(written)], answer=accented
        )
        assert dialogue.state.images[0].entity.entity == "ci"
    dialogue, _ = play(
        method(MMAgentR2()), question(), [SEARCH, rerank("Land ro"), rerank("Land td")]
    )
    assert dialogue.state.images[0].entity == candidate("td")
    assert [one.chosen for one in dialogue.state.verifications] == ["ro", "td"]


def test_a_candidate_is_chosen_by_its_number_where_the_settings_say_so():
    by_number = method(MMAgentR2(choice="number"))
    turns = [SEARCH, rerank("6"), rerank("Land ro"), rerank("0"), rerank(" 2 ")]
    dialogue, asked = play(by_number, question(), turns)
    assert [shown(one.parts) for one in asked[2:]] == [
        *["Error: that number is not in the current batch."] * 3,
        'Image 1 is "Land ro".',
    ]
    assert [one.chosen for one in dialogue.state.verifications] == ["ro"]
    dialogue, asked = play(method(MMAgentR2()), question(), [SEARCH, rerank("2")])
    assert shown(asked[2].parts) == "Error: that name is not in the current batch."


@pytest.mark.parametrize("marker", ["None", " none ", "NONE"])
def test_the_reject_marker_is_read_in_normal_form(marker: str):
    assert parse(rerank(marker)).action == Reject()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (REJECT, "search an image before <rerank>"),
        (rerank("Land td"), "search an image before <rerank>"),
        (rerank(" "), "a name or None must stand in <rerank>"),
        ('<search_call>{"image": 0}</search_call>', "images are numbered 1 to 1"),
        ('<search_call>{"image": 9999999999999}</search_call>', "images are numbered 1 to 1"),
        ('<search_call>{"image": true}</search_call>', "<search_call> must hold"),
        ('<search_call>{"image": "1"}</search_call>', "<search_call> must hold"),
        ('<search_call>{"image": 1, "text": ["x"]}</search_call>', "<search_call> must hold"),
        ('<search_call>{"text": []}</search_call>', "<search_call> must hold"),
        ('<search_call>{"text": ["a", " "]}</search_call>', "<search_call> must hold"),
        ('<search_call>{"text": "a"}</search_call>', "<search_call> must hold"),
        ('<search_call>{"text": [["a"]]}</search_call>', "<search_call> must hold"),
        ('<search_call>{"text": ["a", "b", "c", "d", "e"]}</search_call>', "at most 4 queries"),
        ("<search_call>{image: 1}</search_call>", "<search_call> is not valid JSON"),
        ("<search_call>[1]</search_call>", "<search_call> is not a JSON object"),
        ("<search_call>" + "[" * 19_000 + "</search_call>", "<search_call> is not valid JSON"),
        ("<search_call>" + "[" * 1_000_000 + "</search_call>", "<search_call> is more than 20000"),
        ('<search_call>{"image": 9e999999}</search_call>', "<search_call> must hold"),
        ('<search_call>{"image": ' + "9" * 5000 + "}</search_call>", "<search_call> is not valid"),
        ("__import__('os')</search_call>", "</search_call> without <search_call>"),
        ("<answer> </answer>", "the answer is empty"),
        ("<answer>x", "no action; write one of"),
        ("", "no action; write one of"),
    ],
    ids=lambda text: text[:40],
)
def test_a_bad_turn_is_answered_in_one_line_and_the_dialogue_goes_on(text: str, line: str):
    text = text if text.startswith("<reason>") else f"<reason>x</reason>{text}"
    dialogue, asked = play(method(MMAgentR2()), question(), [text])
    (error,) = asked[-1].parts
    assert error.startswith(f"Error: {line}")
    assert "\n" not in error
    assert len(error) < 120
    assert dialogue.state.num_turns == 1
    assert len(dialogue.state.faults) == 1
    assert not dialogue.done


@pytest.mark.parametrize(
    "text",
    [
        "<answer>x</answer>",
        "thus <reason>a</reason><answer>x</answer>",
        "<reason>a</reason> so <answer>x</answer>",
        "<reason>a<answer>x</answer>",
        "<reason>a</reason><reason>b</reason><answer>x</answer>",
    ],
)
def test_an_action_without_its_reason_is_executed_and_loses_the_format(text: str):
    dialogue, _ = play(method(MMAgentR2()), question(), [text])
    assert dialogue.answer == "x"
    assert dialogue.state.faults == ("turn 1: no <reason>…</reason> before the action",)


def test_a_base_without_more_candidates_says_so():
    dialogue, asked = play(
        method(MMAgentR2()), question(), [SEARCH, REJECT, REJECT], answer=tools(["td", "ro"])
    )
    assert shown(asked[1].parts) == "<kb:td>1\nLand td\n<kb:ro>2\nLand ro\n"
    assert shown(asked[2].parts) == "The base has no more candidates for image 1."
    assert shown(asked[3].parts) == "The base has no more candidates for image 1."
    assert dialogue.state.images[0].rejections == 0
    assert dialogue.state.faults == ()


def test_a_failed_search_takes_nothing_from_the_pool_and_is_no_fault_of_the_policy():
    broken = failing("search_images", "search_passages", then=tools())
    dialogue, asked = play(method(MMAgentR2()), question(), [SEARCH, READ, REJECT], answer=broken)
    assert [shown(request.parts) for request in asked[1:]] == ["The search failed."] * 3
    assert dialogue.state.images[0].batches == ()
    assert dialogue.state.faults == ()
    assert dialogue.state.verifications == ()


def test_no_passage_found_is_said():
    _, asked = play(method(MMAgentR2()), question(), [READ], answer=lambda call: Found(passages=()))
    assert shown(asked[1].parts) == "No passage was found."


def test_passages_come_for_each_query_in_order():
    seen = []

    def watch(call: Call) -> Found | Failed:
        seen.append(call)
        return tools()(call)

    text = '<reason>r</reason><search_call>{"text": ["a", "b"]}</search_call>'
    dialogue, _ = play(method(MMAgentR2()), question(), [text], answer=watch)
    assert seen[0].arguments.queries == ("a", "b")
    assert seen[0].arguments.top == 3
    assert seen[0].arguments.exclude == frozenset()
    assert len(dialogue.turns[-1].found) == 6


def test_the_last_turn_is_executed_and_then_the_answer_is_forced():
    config = MMAgentR2(max_turns=2)
    dialogue, asked = play(method(config), question(), [SEARCH, READ, " N'Djamena </answer>"])
    assert [request.prime for request in asked] == ["", "", "<answer>"]
    assert asked[-1].stops == ("</answer>",)
    assert shown(asked[-1].parts).startswith("Land td.")
    assert dialogue.answer == "N'Djamena"
    assert dialogue.state.num_turns == 2
    assert dialogue.turns[-1].forced


def test_a_forced_answer_that_is_blank_is_none():
    dialogue, _ = play(method(MMAgentR2(max_turns=1)), question(), [SEARCH, " </answer>"])
    assert dialogue.answer is None


def test_an_answer_on_the_last_turn_is_not_forced():
    dialogue, asked = play(method(MMAgentR2(max_turns=2)), question(), [SEARCH, ANSWER])
    assert len(asked) == 2
    assert not dialogue.state.forced


def test_without_verification_the_best_match_is_recorded_at_once():
    config = MMAgentR2(variant="neither")
    dialogue, asked = play(method(config), question(), [SEARCH, SEARCH, rerank("Land td")])
    assert shown(asked[1].parts) == '<kb:td>1\nLand td\nImage 1 is "Land td".'
    assert shown(asked[2].parts) == "No more batches for image 1."
    assert shown(asked[3].parts) == "Error: <rerank> is not an action here."
    assert dialogue.state.images[0].entity == candidate("td")
    assert dialogue.state.verifications == ()


def test_rerank_only_has_one_batch_and_takes_no_rejection():
    config = MMAgentR2(variant="rerank_only")
    dialogue, asked = play(method(config), question(), [SEARCH, REJECT, SEARCH, rerank("Land td")])
    assert shown(asked[2].parts) == "Error: no batch can be rejected here."
    assert shown(asked[3].parts).startswith("No more batches for image 1.")
    assert dialogue.state.images[0].entity == candidate("td")
    assert len(dialogue.state.faults) == 1
    assert [one.chosen for one in dialogue.state.verifications] == ["td"]


def test_only_what_asks_for_retrieval_is_a_call():
    dialogue, _ = play(
        method(MMAgentR2()), question(), [SEARCH, REJECT, rerank("Land ml"), READ, "x", ANSWER]
    )
    assert method(MMAgentR2()).num_calls(dialogue) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "mmagent_r2.batch_size is 0; it must be at least 1"),
        ({"rej_max": -1}, "mmagent_r2.rej_max is -1; it must be at least 0"),
    ],
)
def test_a_bad_setting_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        MMAgentR2(**fields)


def test_an_unknown_variant_is_refused():
    config = MMAgentR2()
    object.__setattr__(config, "variant", "rerank")  # past the type check that tests switch on
    with pytest.raises(ValueError, match="mmagent_r2.variant is 'rerank'; it is one of both, rera"):
        config.__post_init__()


plain = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), min_size=1)
plain = plain.map(str.strip).filter(bool)
queries = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).map(str.strip)
actions = (
    st.builds(SearchImage, st.integers(-(10**9), 10**9))
    | st.builds(SearchText, st.lists(queries.filter(bool), min_size=1).map(tuple))
    | st.builds(Rerank, plain.filter(lambda name: name.casefold() != "none"))
    | st.just(Reject())
    | st.builds(Answer, plain)
)


@given(st.text(st.characters(exclude_characters="<>")).map(str.strip), actions)
def test_parse_undoes_format(reason: str, action):
    written = parse(format_turn(reason, action))
    assert (written.reason, written.action, written.fault) == (reason, action, "")


pieces = st.sampled_from(
    ["<reason>", "</reason>", "<search_call>", "</search_call>", "<rerank>", "</rerank>"]
    + ["<answer>", "</answer>", '{"image": 1}', '{"text": ["q"]}', "None", "\\ud800", "{", "["]
)


@given(st.text() | st.lists(pieces | st.text(max_size=4)).map("".join))
def test_parse_never_raises_and_a_turn_always_goes_on(text: str):
    action = parse(text).action
    assert not isinstance(action, Malformed) or action.reason
    dialogue, asked = play(method(MMAgentR2()), question(), [text])
    assert dialogue.done or len(asked) == 2


def test_a_lone_surrogate_in_a_query_can_be_encoded():
    written = parse('<reason>r</reason><search_call>{"text": ["\\ud800x"]}</search_call>')
    assert written.action == SearchText(("?x",))
