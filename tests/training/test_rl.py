"""What a step of policy optimisation asks, and what it makes of the scores."""

import numpy as np
import pytest

from jaxagent.algorithms.advantages import centred
from jaxagent.rollout.sampling import Sampling
from jaxagent.training.rl import (
    RLConfig,
    advantages,
    check_sampling,
    combined,
    step_questions,
)
from jaxagent.types import Score
from tests.training.dialogues import question


def scored(*groups):
    return [[Score(total=float(value), terms={}) for value in group] for group in groups]


def test_a_pass_asks_every_question_once_whatever_the_step_size():
    config = RLConfig(questions=3, samples=2)
    names = list("abcdefgh")
    questions = [question(name) for name in names]
    asked = [one.data_id for step in range(8) for one in step_questions(questions, config, step)]
    for start in range(0, 24, 8):
        assert sorted(asked[start : start + 8]) == names
    assert asked[:8] != asked[8:16]


def test_advantages_are_of_each_group():
    found = advantages(scored([1, 3], [5, 5, 8]), centred, RLConfig(), 0)
    np.testing.assert_allclose(found[0], [-1, 1])
    np.testing.assert_allclose(found[1], [-1, -1, 2])


def test_shuffled_advantages_are_the_same_numbers_elsewhere():
    groups = scored([1, 3], [5, 5, 8], [0, 1])
    plain = np.concatenate(advantages(groups, centred, RLConfig(), 0))
    config = RLConfig(shuffle="advantages")
    mixed = advantages(groups, centred, config, 0)
    assert [len(group) for group in mixed] == [2, 3, 2]
    np.testing.assert_array_equal(np.sort(np.concatenate(mixed)), np.sort(plain))
    assert not np.array_equal(np.concatenate(mixed), plain)
    np.testing.assert_array_equal(
        np.concatenate(mixed), np.concatenate(advantages(groups, centred, config, 0))
    )


def test_scalars_of_several_updates_keep_their_extremes():
    reports = [{"loss": 1.0, "max_ratio": 1.5, "min_ratio": 0.5}]
    reports += [{"loss": 2.0, "max_ratio": 1.2, "min_ratio": 0.2}]
    assert combined(reports) == {"loss": 1.5, "max_ratio": 1.5, "min_ratio": 0.2}


@pytest.mark.parametrize(
    "sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(temperature=0.0)]
)
def test_sampling_that_the_update_cannot_score_is_refused(sampling):
    with pytest.raises(ValueError, match="temperature above 0, and no top_k"):
        check_sampling(sampling)
    check_sampling(Sampling(temperature=0.6))


def test_more_minibatches_than_groups_are_refused():
    with pytest.raises(ValueError, match="rl.minibatches is 4, but a step has 2 groups"):
        RLConfig(questions=2, minibatches=4)
