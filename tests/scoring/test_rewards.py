"""Rewards: every term, the guard against paid repetition, and errors that name the sample."""

from dataclasses import replace

import pytest

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.agents.protocol import Method
from jaxagent.scoring.rewards import (
    MMAgentR2Reward,
    ProMSAReward,
    RewardError,
    scores,
)
from jaxagent.types import Question, Score, Trajectory
from tests.agents.dialogues import play, question, trajectory

R2 = mmagent_r2.method(MMAgentR2())
PROMSA = promsa.method(ProMSA())
REWARDS = {R2.name: MMAgentR2Reward(), PROMSA.name: ProMSAReward()}
SEARCH = '<reason>look</reason><search_call>{"image": 1}</search_call>'
SECOND = '<reason>look</reason><search_call>{"image": 2}</search_call>'
REJECT = "<reason>none</reason><rerank>None</rerank>"
RIGHT = "<reason>found</reason><answer>N'Djamena</answer>"
WRONG = "<reason>found</reason><answer>Bamako</answer>"
LOOK = '<thinking>t</thinking><tool_call>{"name": "image_search_tool"}</tool_call>'


def rerank(entity: str) -> str:
    return f"<reason>it</reason><rerank>Land {entity}</rerank>"


def terms(script: list[str], *, asked: Question | None = None, method: Method = R2) -> dict:
    dialogue, _ = play(method, asked or question(), script)
    score = REWARDS[method.name](trajectory(dialogue))
    assert score.total == pytest.approx(sum(score.terms.values()))
    return dict(score.terms)


@pytest.mark.parametrize(
    ("truth", "script", "expected"),
    [
        ("td", [SEARCH, rerank("td"), RIGHT], (1.0, 1.0, 1.0)),
        ("td", [SEARCH, rerank("td"), WRONG], (0.0, 1.0, 1.0)),
        ("td", [SEARCH, rerank("ro"), RIGHT], (1.0, 1.0, 0.0)),
        ("td", [SEARCH, REJECT, RIGHT], (1.0, 1.0, 0.0)),
        ("ml", [SEARCH, REJECT, rerank("ml"), RIGHT], (1.0, 1.0, 1.2)),
        ("et", [SEARCH, REJECT, REJECT, rerank("et"), RIGHT], (1.0, 1.0, 1.4)),
        ("zz", [SEARCH, REJECT, REJECT, REJECT, RIGHT], (1.0, 1.0, 0.6)),
        ("td", [RIGHT], (1.0, 1.0, 0.0)),
        ("td", [REJECT, RIGHT], (1.0, 0.0, 0.0)),
        ("td", ["<answer>N'Djamena</answer>"], (1.0, 0.0, 0.0)),
        ("td", [SEARCH, rerank("ml"), rerank("td"), RIGHT], (1.0, 0.0, 1.0)),
    ],
)
def test_terms_of_mmagent_r2(truth: str, script: list[str], expected: tuple):
    found = terms(script, asked=question(truth))
    assert list(found) == ["outcome", "format", "verification"]
    assert tuple(found.values()) == pytest.approx(expected)


def test_the_policy_that_reranks_every_batch_is_paid_once():
    cheat = [SEARCH, rerank("td"), SEARCH, rerank("ml"), SEARCH, rerank("cm"), RIGHT]
    assert terms(cheat)["verification"] == 1.0
    again = [SEARCH, rerank("td"), rerank("td"), rerank("td"), RIGHT]
    assert terms(again)["verification"] == 1.0


def test_the_policy_that_rejects_after_a_right_rerank_is_paid_once():
    cheat = [SEARCH, rerank("td"), SEARCH, REJECT, REJECT, REJECT, RIGHT]
    assert terms(cheat)["verification"] == 1.0


def test_a_batch_is_scored_by_its_first_verification():
    assert terms([SEARCH, REJECT, REJECT, REJECT, REJECT, RIGHT], asked=question("zz"))[
        "verification"
    ] == pytest.approx(0.6)
    assert terms([SEARCH, rerank("ro"), rerank("td"), RIGHT])["verification"] == 0.0
    limit = [SEARCH, REJECT, REJECT, REJECT, rerank("et"), RIGHT]
    assert terms(limit, asked=question("et"))["verification"] == pytest.approx(0.4)


def test_every_image_is_paid_for_itself():
    script = [SEARCH, rerank("td"), SECOND, rerank("ro"), RIGHT]
    assert terms(script, asked=question("td", "ro"))["verification"] == 2.0
    assert terms(script, asked=question("td", "ad"))["verification"] == 1.0


def test_a_forced_answer_counts_and_loses_the_format():
    method = mmagent_r2.method(MMAgentR2(max_turns=1))
    found = terms([SEARCH, "N'Djamena</answer>"], method=method)
    assert (found["outcome"], found["format"]) == (1.0, 0.0)


def test_an_unfinished_dialogue_has_no_format():
    assert terms([SEARCH, rerank("td")])["format"] == 0.0


def test_a_dialogue_out_of_room_has_no_format():
    dialogue, _ = play(R2, question(), [SEARCH, rerank("td"), RIGHT])
    whole = trajectory(dialogue)
    assert MMAgentR2Reward()(whole).terms["format"] == 1.0
    assert MMAgentR2Reward()(replace(whole, truncated=True)).terms["format"] == 0.0


def test_weights_scale_their_terms():
    dialogue, _ = play(R2, question("ml"), [SEARCH, REJECT, RIGHT])
    score = MMAgentR2Reward(reject=0.5, format=0.1)(trajectory(dialogue))
    assert score == Score(total=1.6, terms={"outcome": 1.0, "format": 0.1, "verification": 0.5})


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (["<thinking>t</thinking><answer>N'Djamena</answer>"], (1.0, 0.5, 0.0)),
        (["<answer>N'Djamena</answer>"], (1.0, 0.5, 0.0)),
        ([LOOK, "<answer>N'Djamena</answer>"], (1.0, 0.5, -0.5 / 6)),
        ([LOOK, LOOK, "<answer>Bamako</answer>"], (0.0, 0.5, -1 / 6)),
        ([LOOK] * 4 + ["<answer>N'Djamena</answer>"], (1.0, 0.0, -2 / 6)),
        (["<tool_call>{}</tool_call>", "<answer>N'Djamena</answer>"], (1.0, 0.0, -0.5 / 6)),
        (["<tool_call>{</tool_call>", "<answer>N'Djamena</answer>"], (1.0, 0.0, 0.0)),
        ([LOOK] * 7, (0.0, 0.0, -0.5)),
    ],
)
def test_terms_of_promsa(script: list[str], expected: tuple):
    found = terms(script, method=PROMSA)
    assert list(found) == ["outcome", "format", "cost"]
    assert tuple(found.values()) == pytest.approx(expected)


def test_the_cost_is_clipped_at_lambda():
    dialogue, _ = play(PROMSA, question(), [LOOK] * 7)
    assert dialogue.state.num_calls == 7
    assert ProMSAReward()(trajectory(dialogue)).terms["cost"] == -0.5
    assert ProMSAReward(max_calls=7)(trajectory(dialogue)).terms["cost"] == -0.5
    assert ProMSAReward(max_calls=14)(trajectory(dialogue)).terms["cost"] == -0.25


def test_a_reward_that_raises_names_the_sample():
    broken = question(kind="Numerical")
    dialogue, _ = play(R2, broken, [RIGHT])
    with pytest.raises(RewardError, match="question q1, sample 3, raised ValueError: Question q1"):
        scores(MMAgentR2Reward(), [trajectory(dialogue, sample=3)])


def test_scores_come_in_order():
    right, _ = play(R2, question(), [RIGHT])
    wrong, _ = play(R2, question(), [WRONG])
    found = scores(MMAgentR2Reward(), [trajectory(right), trajectory(wrong)])
    assert [score.total for score in found] == [2.0, 1.0]


@pytest.mark.parametrize(
    "make", [lambda: MMAgentR2Reward(reject=-1), lambda: ProMSAReward(cost=-1)]
)
def test_a_negative_weight_is_refused(make):
    with pytest.raises(ValueError, match="must be at least 0"):
        make()


def test_no_calls_allowed_is_refused():
    with pytest.raises(ValueError, match="max_calls is 0"):
        ProMSAReward(max_calls=0)


def test_a_reward_is_a_function_of_the_trajectory_alone():
    dialogue, _ = play(R2, question(), [SEARCH, rerank("td"), RIGHT])
    rows: list[Trajectory] = [trajectory(dialogue), trajectory(dialogue, sample=1)]
    assert len({score.total for score in scores(MMAgentR2Reward(), rows)}) == 1
