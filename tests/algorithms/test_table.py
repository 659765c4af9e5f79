"""Algorithms are chosen by name, and parts of them by option."""

import pytest

from jaxagent.algorithms.table import ALGORITHMS, algorithm


def test_options_replace_only_what_is_given():
    row = algorithm("tn_gspo", horizon={"c": 0.08}, clip=(0.1, 0.3))
    assert row.log_ratio.keywords == {"c": 0.08, "alpha": 1.0, "offset": 1}
    assert row.clip == (0.1, 0.3)
    assert row.advantage is ALGORITHMS["tn_gspo"].advantage
    assert algorithm("grpo") == ALGORITHMS["grpo"]


def test_a_wrong_name_gets_the_nearest_right_one():
    with pytest.raises(ValueError, match="Did you mean 'tn_gspo'"):
        algorithm("tn-gspo")
    with pytest.raises(ValueError, match="Did you mean 'token_mean'"):
        algorithm("grpo", aggregation="tokens_mean")
    with pytest.raises(ValueError, match="There is no algorithm 'ppo'. Allowed: grpo, gspo, sft, "):
        algorithm("ppo")


def test_a_horizon_needs_an_algorithm_that_has_one():
    with pytest.raises(ValueError, match="has no horizon"):
        algorithm("grpo", horizon={"c": 0.1})


@pytest.mark.parametrize("given", [{"clip": (0.2, -0.1)}, {"horizon": {"c": 0.1, "offset": -1}}])
def test_a_number_below_0_is_refused(given):
    with pytest.raises(ValueError, match="must be at least 0"):
        algorithm("tn_gspo", **given)
