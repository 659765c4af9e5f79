"""Rejection sampling keeps whole, right dialogues: one a question, with the fewest calls."""

import dataclasses

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.scoring.selection import best_of_each, is_kept
from jaxagent.types import Trajectory
from tests.agents.dialogues import play, question, trajectory

PROMSA = promsa.method(ProMSA())
LOOK = '<tool_call>{"name": "image_search_tool"}</tool_call>'
RIGHT, WRONG = "<answer>N'Djamena</answer>", "<answer>Bamako</answer>"


def sample(*script: str, number: int = 0) -> Trajectory:
    return trajectory(play(PROMSA, question(), script)[0], sample=number)


def test_a_wrong_faulty_unfinished_or_cut_dialogue_is_not_kept():
    assert is_kept(sample(LOOK, RIGHT))
    assert not is_kept(sample(LOOK, WRONG))
    assert not is_kept(sample("hm", RIGHT))
    assert not is_kept(sample(*[LOOK] * 4, RIGHT))
    assert not is_kept(sample(LOOK))
    assert not is_kept(dataclasses.replace(sample(RIGHT), truncated=True))


def test_a_forced_answer_is_not_kept():
    method = mmagent_r2.method(MMAgentR2(max_turns=1))
    text = '<reason>r</reason><search_call>{"image": 1}</search_call>'
    dialogue, _ = play(method, question(), [text, "N'Djamena</answer>"])
    assert dialogue.answer == "N'Djamena"
    assert not is_kept(trajectory(dialogue))


def test_the_fewest_calls_then_the_first():
    group = [
        sample(WRONG),
        sample(LOOK, LOOK, RIGHT, number=1),
        sample(LOOK, RIGHT, number=2),
        sample(LOOK, RIGHT, number=3),
    ]
    assert [row.sample for row in best_of_each([group, group[:1], group[:2]])] == [2, 1]
