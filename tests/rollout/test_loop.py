"""The event loop with a scripted author: everything that needs no model."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.agents.protocol import Failed, Found, ImageQuery, Method, ToolCall
from jaxagent.rollout.loop import PromptError
from jaxagent.rollout.scripted import scripted_rollout
from jaxagent.rollout.tools import ToolFailure, Workers
from jaxagent.types import ImageRef
from tests import tiny
from tests.rollout import fakes

QUESTIONS = [fakes.question(f"q{at}", "a") for at in range(4)]


def script(dialogue) -> str:
    return f"<answer>turn {len(dialogue.turns)}</answer>"


def observe(dialogue, num):
    if num > 2:
        return None
    return ("1 ", ImageRef(f"tall:{num}"), f" found {dialogue.turns[-1].text}")


METHOD = fakes.method(observe, max_tokens=40)
TOOL_METHOD = fakes.method(observe, max_tokens=40, tool="search")


def run(method=METHOD, *, script=script, questions=QUESTIONS, config=fakes.CONFIG, **fields):
    fields = {"tools": {"search": fakes.nothing}} | fields
    return scripted_rollout(
        script,
        questions,
        policy=tiny.policy().policy,
        method=method,
        images=fakes.images,
        config=config,
        **fields,
    )


def chat():
    return tiny.policy().policy.chat


def text_of(ids: np.ndarray) -> str:
    return chat().decode(ids.tolist())


def test_a_script_leaves_the_traces_of_a_policy():
    out = run(samples=2)
    assert [len(group) for group in out.trajectories] == [2] * 4
    for group in out.trajectories:
        for sample, trajectory in enumerate(group):
            assert trajectory.sample == sample
            assert trajectory.dialogue.answer == "<answer>turn 4</answer>"
            written = trajectory.ids[trajectory.written]
            assert text_of(written) == "".join(f"<answer>turn {num}</answer>" for num in (0, 2, 4))
            assert trajectory.num_calls == 2
            assert not trajectory.truncated
    assert out.metrics["tokens_wasted"] == 0


def test_text_after_a_stop_string_is_dropped_and_counted():
    method = fakes.method(lambda dialogue, num: None, max_tokens=40)
    out = run(method, script=lambda _: "<answer>Rome</answer> and more", questions=QUESTIONS[:1])
    trajectory = out.trajectories[0][0]
    assert trajectory.dialogue.turns[0].text == "<answer>Rome</answer>"
    assert " more" not in text_of(trajectory.ids)
    assert out.metrics["tokens_wasted"] > 0


def test_the_end_token_is_written_once():
    method = fakes.method(lambda dialogue, num: None if num > 1 else ("go on",), max_tokens=40)
    trajectory = run(method, script=lambda _: "no stop here").trajectories[0][0]
    text = text_of(trajectory.ids)
    turn = "no stop here<|im_end|>"
    assert text.endswith(
        f"{turn}\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n{turn}"
    )
    assert (trajectory.ids[trajectory.written] == chat().end_id).sum() == 2


def test_control_tokens_in_an_observation_are_plain_text():
    method = fakes.method(
        lambda dialogue, num: None if num > 1 else ("<|im_end|> <|image_pad|> </answer>",),
        max_tokens=40,
    )
    trajectory = run(method).trajectories[0][0]
    plain = trajectory.ids[~trajectory.written]
    assert (plain == chat().image_id).sum() == 4, "the query image's own placeholders"
    assert (plain == chat().end_id).sum() == 4, "system, question, first turn, observation"


def test_a_prime_is_read_and_not_trained():
    method = fakes.method(lambda dialogue, num: None, max_tokens=40, prime="<answer>")
    trajectory = run(method, script=lambda _: "Rome</answer>").trajectories[0][0]
    first = int(np.argmax(trajectory.written))
    prime = chat().plain("<answer>")
    assert trajectory.ids[first - len(prime) : first].tolist() == prime
    assert text_of(trajectory.ids[first:]) == "Rome</answer>"
    assert trajectory.dialogue.turns[0].text == "Rome</answer>"


def test_an_observation_that_does_not_fit_is_left_out_whole():
    whole = run(questions=QUESTIONS[:1]).trajectories[0][0]
    last_image = whole.images[-1]
    before = int(np.flatnonzero(whole.written[: last_image.start])[-1]) + 1
    for context in (last_image.start + 2, len(whole.ids) - 1):
        config = replace(fakes.CONFIG, context=context)
        trajectory = run(questions=QUESTIONS[:1], config=config).trajectories[0][0]
        assert trajectory.truncated
        assert trajectory.dialogue.done
        fits = context == len(whole.ids) - 1  # all but the last token of the last turn
        kept = trajectory.ids.tolist()
        assert kept == whole.ids[: context if fits else before].tolist()
        assert [image.key for image in trajectory.images] == (
            ["a", "tall:1", "tall:2"] if fits else ["a", "tall:1"]
        )
        assert kept.count(chat().image_id) == (8 if fits else 6)


def test_a_prompt_that_does_not_fit_says_so():
    config = replace(fakes.CONFIG, context=16)
    with pytest.raises(PromptError, match="prompt of question 'q0' takes .* rollout.context = 16"):
        run(config=config)


def test_a_missing_tool_is_named():
    with pytest.raises(ValueError, match="fake calls search; found look, read"):
        run(TOOL_METHOD, tools={"look": fakes.nothing, "read": fakes.nothing})


def test_a_method_that_asks_for_nothing_is_an_error():
    silent = replace(METHOD, advance=lambda dialogue, event: (dialogue, ()))
    with pytest.raises(RuntimeError, match="fake asked for nothing in any of 4 open dialogues"):
        run(silent)


def test_calls_of_many_dialogues_are_one_batch_in_their_order():
    batches = []

    def search(calls):
        batches.append([call.arguments.image for call in calls])
        return fakes.nothing(calls)

    run(TOOL_METHOD, tools={"search": search})
    assert batches == [[f"q{at}/1" for at in range(4)], [f"q{at}/2" for at in range(4)]]


def test_the_order_of_slots_and_arrivals_leaves_no_trace():
    few = replace(fakes.CONFIG, slots=3)
    late = replace(few, deterministic=False)
    for config in (few, late):
        out = run(TOOL_METHOD, config=config, samples=2)
        same = run(TOOL_METHOD, samples=2)
        for group, other in zip(out.trajectories, same.trajectories, strict=True):
            for one, two in zip(group, other, strict=True):
                np.testing.assert_array_equal(one.ids, two.ids)
                assert one.dialogue == two.dialogue


def bad_for(*names):
    def search(calls):
        if any(call.question.data_id in names for call in calls):
            raise ValueError("no such\nimage")
        return fakes.nothing(calls)

    return search


def test_a_call_that_raises_is_answered_with_one_line_and_counted():
    config = replace(fakes.CONFIG, max_failure_rate=0.5)
    out = run(TOOL_METHOD, tools={"search": bad_for("q1")}, config=config)
    for name, (trajectory,) in zip("0123", out.trajectories, strict=True):
        text = text_of(trajectory.ids[~trajectory.written])
        assert text.count("The search failed.") == (2 if name == "1" else 0)
        assert trajectory.failures == ({"search": 2} if name == "1" else {})
        assert trajectory.dialogue.answer is not None
    assert out.metrics["tool_failures"] == 2
    assert out.metrics["tool_calls"] == 8


def test_too_many_failures_stop_the_run():
    questions = [fakes.question(f"q{at}", "a") for at in range(4)]
    with pytest.raises(ToolFailure, match="4 of 4 tool calls failed.*ValueError: no such image"):
        run(
            TOOL_METHOD,
            questions=questions,
            tools={"search": bad_for("q0", "q1", "q2", "q3")},
        )


def test_a_tool_that_hangs_delays_nobody_beyond_its_deadline():
    release = threading.Event()

    def search(calls):
        release.wait(20)
        return fakes.nothing(calls)

    config = replace(fakes.CONFIG, tool_seconds=0.1, max_failure_rate=1.0)
    started = time.monotonic()
    out = run(TOOL_METHOD, tools={"search": search}, config=config)
    assert time.monotonic() - started < 10
    release.set()
    assert out.metrics["tool_failures"] == 8
    for (trajectory,) in out.trajectories:
        assert trajectory.failures == {"search": 2}
        assert trajectory.dialogue.answer == "<answer>turn 4</answer>"


def call(name: str) -> ToolCall:
    query = ImageQuery(image=name, top=1)
    return ToolCall(question=fakes.question(name, "a"), tool="search", arguments=query)


@pytest.mark.parametrize(
    "answer", [lambda calls: None, lambda calls: [], lambda calls: ["text"] * len(calls)]
)
def test_a_malformed_answer_is_a_failure(answer):
    workers = Workers({"search": answer}, seconds=5.0, retries=0, max_failure_rate=1.0)
    workers.submit((0, 0), call("q0"))
    workers.start()
    ((key, result),) = workers.collect(wait=True)
    assert key == (0, 0)
    assert isinstance(result, Failed)
    assert "TypeError" in result.reason


def test_a_call_that_fails_once_is_tried_again():
    tries = []

    def search(calls):
        tries.append(len(calls))
        if len(tries) < 3:
            raise OSError("busy")
        return [Found(text="here")] * len(calls)

    workers = Workers({"search": search}, seconds=5.0, retries=1, max_failure_rate=0.0)
    workers.submit((1, 0), call("q1"))
    workers.submit((0, 0), call("q0"))
    workers.start()
    answers = workers.collect(wait=True)
    assert answers == [((0, 0), Found(text="here")), ((1, 0), Found(text="here"))]
    assert tries == [2, 1, 1, 1], "the batch, then call by call"


def test_a_call_that_keeps_failing_is_tried_as_often_as_asked():
    def search(calls):
        raise OSError("busy")

    workers = Workers({"search": search}, seconds=60.0, retries=3000, max_failure_rate=1.0)
    workers.submit((0, 0), call("q0"))
    workers.start()
    assert workers.collect(wait=True) == [((0, 0), Failed("OSError: busy"))]


def test_a_busy_tool_gathers_the_next_batch():
    release = threading.Event()
    batches = []

    def search(calls):
        batches.append(len(calls))
        release.wait(20)
        return fakes.nothing(calls)

    workers = Workers({"search": search}, seconds=20.0, retries=0, max_failure_rate=0.0)
    for at in range(3):
        workers.submit((at, 0), call(f"q{at}"))
        workers.start()
        assert workers.collect(wait=False) == []
    release.set()
    assert len(workers.collect(wait=True)) == 1
    workers.start()
    assert len(workers.collect(wait=True)) == 2
    assert batches == [1, 2]
    assert not workers.busy


def test_a_method_needs_no_tool():
    assert isinstance(METHOD, Method)
    assert run(questions=QUESTIONS[:1], tools={}).metrics["tool_calls"] == 0


def test_no_questions_are_no_dialogues():
    out = run(questions=[])
    assert out.trajectories == []
    assert out.metrics["dialogues"] == 0
