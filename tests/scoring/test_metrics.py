"""Metrics over dialogues, and intervals that resample entities."""

import numpy as np
import pytest

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.scoring.metrics import (
    answered_right,
    entity_interval,
    identified,
    rejections,
)
from tests.agents.dialogues import play, question

R2 = mmagent_r2.method(MMAgentR2())
PROMSA = promsa.method(ProMSA())
SEARCH = '<reason>look</reason><search_call>{"image": 1}</search_call>'
SECOND = '<reason>look</reason><search_call>{"image": 2}</search_call>'
REJECT = "<reason>none</reason><rerank>None</rerank>"
ANSWER = "<answer>N'Djamena</answer>"
LOOK = '<tool_call>{"name": "image_search_tool"}</tool_call>'


def rerank(entity: str) -> str:
    return f"<reason>it</reason><rerank>Land {entity}</rerank>"


def test_an_entity_is_identified_when_all_images_are():
    both, _ = play(R2, question("td", "ro"), [SEARCH, rerank("td"), SECOND, rerank("ro"), ANSWER])
    one, _ = play(R2, question("td", "ro"), [SEARCH, rerank("td"), ANSWER])
    wrong, _ = play(R2, question(), [SEARCH, rerank("td"), rerank("ro"), ANSWER])
    searched, _ = play(PROMSA, question(), [LOOK, ANSWER])
    assert [identified(row) for row in (both, one, wrong, searched)] == [True, False, False, None]


def test_rejections_past_the_limit_are_not_counted():
    dialogue, _ = play(R2, question(), [SEARCH, REJECT, REJECT, REJECT, REJECT])
    assert rejections(dialogue) == 2
    assert rejections(play(PROMSA, question(), [LOOK])[0]) == 0


def test_an_answer_is_right_by_the_published_metric():
    assert answered_right(question(), "the n'djamena.") == 1.0
    assert answered_right(question(), None) == 0.0
    numerical = question(kind="Numerical", answer_range=(-1.0, 1.0))
    assert answered_right(numerical, "-.5.3") == 0.0
    assert answered_right(numerical, "nothing") == 1.0


def test_the_interval_is_of_entities_not_of_questions():
    rng = np.random.default_rng(0)
    entities = [f"e{number}" for number in range(40) for _ in range(25)]
    values = np.repeat(rng.random(40) < 0.5, 25).astype(np.float64)
    clustered = entity_interval(values, entities, resamples=1000)
    alone = entity_interval(values, [str(number) for number in range(1000)], resamples=1000)
    assert clustered.mean == alone.mean == values.mean()
    width = clustered.high - clustered.low
    # One standard error over 40 entities is about 8 points; over 1,000 questions 1.6.
    assert 0.25 < width < 0.37
    assert width > 4 * (alone.high - alone.low)


def test_a_paired_interval_does_not_see_what_both_share():
    entities = [f"e{number}" for number in range(50)]
    base = np.random.default_rng(1).random(50)
    gain = entity_interval(base + 0.1, entities, minus=base)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1))


def test_intervals_repeat_and_cover_their_mean():
    values = np.random.default_rng(2).random(60)
    entities = [f"e{number % 20}" for number in range(60)]
    first = entity_interval(values, entities)
    assert first == entity_interval(values, entities)
    assert first.low < first.mean < first.high
    wide = entity_interval(values, entities, level=0.99)
    assert wide.low < first.low < first.high < wide.high


def test_uneven_input_is_refused():
    with pytest.raises(ValueError, match="2 values for 1 entities"):
        entity_interval(np.zeros(2), ["a"])
