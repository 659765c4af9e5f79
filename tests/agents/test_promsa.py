"""ProMSA's budgets, served lists and summaries, and its wire form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.agents.promsa import (
    Answer,
    BadCall,
    ImageSearch,
    ProMSA,
    TextSearch,
    format_turn,
    method,
    parse,
)
from jaxagent.agents.protocol import Call, Found, Result
from jaxagent.agents.wire import Malformed
from tests.agents.dialogues import failing, play, question, shown, tools

pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

SHORT = ProMSA(prompt="short")
ANSWER = "<thinking>known</thinking><answer>N'Djamena</answer>"


def call(body: str) -> str:
    return f"<thinking>t</thinking><tool_call>{body}</tool_call>"


LOOK = call('{"name": "image_search_tool", "arguments": {}}')
READ = call('{"name": "text_search_tool", "arguments": {"query": "Land td capital"}}')


def watched(answer=None) -> tuple[list[Call], object]:
    seen: list[Call] = []

    def watch(request: Call) -> Result:
        seen.append(request)
        return (answer or tools())(request)

    return seen, watch


def test_a_whole_dialogue():
    dialogue, asked = play(method(SHORT), question(), [LOOK, READ, ANSWER])
    assert [shown(request.parts) for request in asked] == [
        "<view:td>Question: What is the capital of this country?",
        "Land td: Capital: N'Djamena Land ro: Capital: N'Djamena Land ad: Capital: N'Djamena",
        "Land td: Capital: N'Djamena Land td: Capital: N'Djamena Land td: Capital: N'Djamena",
    ]
    assert dialogue.answer == "N'Djamena"
    state = dialogue.state
    assert (state.num_steps, state.num_calls, state.image_calls, state.text_calls) == (3, 2, 1, 1)
    assert state.served_pages == (("td", "ro", "ad"),)
    assert state.served_passages == ("td-capital", "td-area", "td-anthem")
    assert state.faults == ()
    assert [one.entity for one in dialogue.turns[1].found] == ["td", "ro", "ad"]


def test_a_search_is_summarised_before_it_enters_the_context():
    seen, watch = watched()
    play(method(SHORT), question(), [LOOK], answer=watch)
    assert [request.tool for request in seen] == ["search_pages", "summarise"]
    assert seen[1].arguments.question == "What is the capital of this country?"
    assert [one.id for one in seen[1].arguments.passages] == [
        "td-capital",
        "ro-capital",
        "ad-capital",
    ]


def test_what_was_served_is_left_out_of_later_searches():
    seen, watch = watched()
    play(method(SHORT), question(), [LOOK, LOOK, READ, READ], answer=watch)
    searches = [request.arguments for request in seen if request.tool != "summarise"]
    assert [sorted(query.exclude) for query in searches] == [
        [],
        ["ad", "ro", "td"],
        [],
        ["td-anthem", "td-area", "td-capital"],
    ]


@pytest.mark.parametrize("broken", ["search_pages", "summarise"])
def test_a_failed_search_or_summary_does_not_advance_the_served_list(broken: str):
    dialogue, asked = play(method(SHORT), question(), [LOOK], answer=failing(broken, then=tools()))
    assert shown(asked[1].parts) == "The call failed."
    assert dialogue.state.served_pages == ((),)
    assert dialogue.state.pending is None
    assert (dialogue.state.num_calls, dialogue.state.image_calls) == (1, 1)
    assert dialogue.state.faults == ()


def test_a_call_past_its_budget_returns_nothing_and_still_counts():
    seen, watch = watched()
    dialogue, asked = play(method(SHORT), question(), [LOOK] * 4 + [READ], answer=watch)
    assert shown(asked[4].parts) == "Error: limit reached, 3 calls of image_search_tool."
    assert [request.tool for request in seen].count("search_pages") == 3
    assert dialogue.state.num_calls == 5
    assert dialogue.state.faults == ("step 4: limit reached, 3 calls of image_search_tool",)
    assert shown(asked[5].parts).startswith("Land td:")


@pytest.mark.parametrize(
    ("body", "image_calls", "text_calls"),
    [
        ('{"name": "image_search_tool", "arguments": {"image": true}}', 1, 0),
        ('{"name": "image_search_tool", "arguments": {"image": 9}}', 1, 0),
        ('{"name": "image_search_tool", "arguments": {"top_k": 2}}', 1, 0),
        ('{"name": "text_search_tool"}', 0, 1),
        ('{"name": "text_search_tool", "arguments": [1]}', 0, 1),
        ('{"name": "web_search"}', 0, 0),
    ],
)
def test_a_bad_call_takes_from_the_budget_of_the_tool_that_it_names(
    body: str, image_calls: int, text_calls: int
):
    config = ProMSA(prompt="short", image_calls=1, text_calls=1)
    seen, watch = watched()
    state = play(method(config), question(), [call(body), LOOK, READ], answer=watch)[0].state
    assert state.num_calls == 3
    assert (state.image_calls, state.text_calls) == (1 + image_calls, 1 + text_calls)
    searches = [request.tool for request in seen if request.tool != "summarise"]
    allowed = {"search_pages": image_calls == 0, "search_passages": text_calls == 0}
    assert searches == [tool for tool, is_allowed in allowed.items() if is_allowed]


def test_a_tool_can_be_taken_away():
    config = ProMSA(prompt="short", text_calls=0)
    _, asked = play(method(config), question(), [READ])
    assert shown(asked[1].parts) == "Error: limit reached, 0 calls of text_search_tool."
    assert "text_search_tool" not in method(ProMSA(text_calls=0)).system


@pytest.mark.parametrize(
    ("text", "line", "num_calls"),
    [
        (call('{"name": "web_search", "arguments": {}}'), "the tools are image_search_tool", 1),
        (call('{"name": "text_search_tool"}'), 'text_search_tool needs {"query": "…"}', 1),
        (call('{"name": "text_search_tool", "arguments": {"query": " "}}'), "text_search_tool", 1),
        (call('{"name": "text_search_tool", "arguments": {"q": "x"}}'), "text_search_tool ta", 1),
        (call('{"name": "image_search_tool", "arguments": {"image": 2}}'), "images are numb", 1),
        (call('{"name": "image_search_tool", "arguments": {"image": true}}'), "image is a n", 1),
        (call('{"name": "image_search_tool", "arguments": [1]}'), "image_search_tool takes", 1),
        (call('{"name": "image_search_tool", "arguments": []}'), "image_search_tool takes", 1),
        (call('{"name": "image_search_tool", "arguments": false}'), "image_search_tool takes", 1),
        (call('{"name": ["image_search_tool"], "arguments": {}}'), "the tools are", 1),
        (call('{"name": "image_search_tool", "arguments": {"top_k": 2}}'), "image_search_to", 1),
        (call("{}"), "the tools are", 1),
        (call("[]"), "<tool_call> is not a JSON object", 0),
        (call("{"), "<tool_call> is not valid JSON", 0),
        (call("[" * 19_000), "<tool_call> is not valid JSON", 0),
        (call("[" * 1_000_000), "<tool_call> is more than 20000 characters", 0),
        ("<thinking>nothing to do", "no action; write one of <tool_call>, <answer>", 0),
        ("<answer>\n</answer>", "the answer is empty", 0),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_step_is_answered_in_one_line_and_the_dialogue_goes_on(
    text: str, line: str, num_calls: int
):
    dialogue, asked = play(method(SHORT), question(), [text])
    (error,) = asked[-1].parts
    assert error.startswith(f"Error: {line}")
    assert "\n" not in error
    assert dialogue.state.num_calls == num_calls
    assert dialogue.state.num_steps == 1
    assert len(dialogue.state.faults) == 1


def test_the_last_step_without_an_answer_ends_without_one():
    config = ProMSA(prompt="short", max_turns=2)
    seen, watch = watched()
    dialogue, asked = play(method(config), question(), [LOOK, READ], answer=watch)
    assert dialogue.done
    assert dialogue.answer is None
    assert dialogue.state.num_calls == 2
    assert "search_passages" not in [request.tool for request in seen]
    dialogue, _ = play(method(config), question(), [LOOK, "nothing"])
    assert dialogue.done
    assert dialogue.answer is None
    dialogue, _ = play(method(config), question(), [LOOK, ANSWER])
    assert dialogue.answer == "N'Djamena"
    assert all(request.prime == "" for request in asked)


def test_nothing_new_is_said_and_not_summarised():
    seen, watch = watched(lambda request: Found())
    _, asked = play(method(SHORT), question(), [READ], answer=watch)
    assert shown(asked[1].parts) == "Nothing new was found."
    assert len(seen) == 1


def test_each_of_several_images_has_its_own_served_pages():
    second = call('{"name": "image_search_tool", "arguments": {"image": 2}}')
    dialogue, _ = play(method(SHORT), question("td", "ro"), [LOOK, second])
    assert dialogue.state.served_pages == (("td", "ro", "ad"), ("td", "ro", "ad"))


def test_names_of_tools_are_settings():
    config = ProMSA(prompt="short", image_tool="img_search", text_tool="text_search")
    _, asked = play(
        method(config), question(), [call('{"name": "img_search", "arguments": {}}'), LOOK]
    )
    assert shown(asked[1].parts).startswith("Land td")
    assert shown(asked[2].parts) == "Error: the tools are img_search and text_search."


def test_the_papers_arguments_are_taken_when_asked_for():
    config = ProMSA(prompt="short", arguments="paper")
    seen, watch = watched()
    text = call('{"name": "image_search_tool", "arguments": {"top_k": 2, "exclude": ["ro"]}}')
    dialogue, _ = play(method(config), question(), [text], answer=watch)
    assert dialogue.state.served_pages == (("td", "ro"),)
    for bad in ('{"top_k": 0}', '{"top_k": 11}', '{"top_k": true}', '{"exclude": "ro"}'):
        body = f'{{"name": "image_search_tool", "arguments": {bad}}}'
        assert isinstance(parse(config, call(body)).action, BadCall)


@pytest.mark.parametrize(("word", "num_faults"), [("free", 0), ("required", 1)])
def test_thinking_may_be_required(word: str, num_faults: int):
    config = ProMSA(prompt="short", thinking=word)
    dialogue, _ = play(method(config), question(), ["<answer>N'Djamena</answer>"])
    assert dialogue.answer == "N'Djamena"
    assert len(dialogue.state.faults) == num_faults


def test_the_full_prompt_wraps_what_tools_return():
    _, asked = play(method(ProMSA()), question(), [LOOK])
    assert shown(asked[1].parts).startswith("<tool_response>Land td: Capital")
    assert shown(asked[1].parts).endswith("</tool_response>")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_turns": 0}, "promsa.max_turns is 0; it must be at least 1"),
        ({"text_calls": -1}, "promsa.text_calls is -1; it must be at least 0"),
        ({"image_tool": "a", "text_tool": "a"}, "Both tools are called 'a'"),
    ],
)
def test_a_bad_setting_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ProMSA(**fields)


plain = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), min_size=1)
queries = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).map(str.strip)
tops = st.none() | st.integers(1, 10)
actions = (
    st.builds(ImageSearch, image=st.integers(-5, 5), top=tops)
    | st.builds(TextSearch, query=queries.filter(bool), top=tops)
    | st.builds(Answer, plain.map(str.strip).filter(bool))
)


@given(st.text(st.characters(exclude_characters="<>")).map(str.strip), actions)
def test_parse_undoes_format(thinking: str, action):
    config = ProMSA(arguments="paper", thinking="required")
    written = parse(config, format_turn(config, thinking, action))
    assert (written.thinking, written.action, written.fault) == (thinking, action, "")


pieces = st.sampled_from(
    ["<thinking>", "</thinking>", "<tool_call>", "</tool_call>", "<answer>", "</answer>"]
    + ['{"name": "image_search_tool", "arguments": {}}', '{"name": 1}', "\\ud800", "{", "null"]
)


@given(st.text() | st.lists(pieces | st.text(max_size=4)).map("".join))
def test_parse_never_raises_and_a_step_always_goes_on(text: str):
    action = parse(SHORT, text).action
    assert not isinstance(action, Malformed | BadCall) or action.reason
    dialogue, asked = play(method(SHORT), question(), [text])
    assert dialogue.done or len(asked) == 2
