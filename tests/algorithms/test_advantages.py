"""Advantages are centred, and a group without differences teaches nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.algorithms.advantages import centred, standardised

rewards = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=16)


@given(rewards)
@settings(max_examples=50, deadline=None)
def test_a_groups_advantages_sum_to_0(values):
    for advantage in (centred, standardised):
        found = advantage(np.asarray(values, np.float32))
        assert abs(found.sum()) <= 1e-5 * max(1, np.abs(found).max()) * len(values)


@given(st.floats(-5, 5, width=32), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_equal_rewards_give_exactly_0(value, size):
    for advantage in (centred, standardised):
        assert not advantage(np.full(size, value, np.float32)).any()


@pytest.mark.parametrize(
    ("ddof", "wanted"), [(0, [1.0, -1.0, -1.0, 1.0]), (1, [0.8660, -0.8660, -0.8660, 0.8660])]
)
def test_standardised_divides_by_the_standard_deviation(ddof, wanted):
    found = standardised(np.array([1.0, 0, 0, 1.0], np.float32), ddof=ddof)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_centred_keeps_the_scale():
    np.testing.assert_array_equal(centred(np.array([3.0, 1, 2], np.float32)), [1, -1, 0])
