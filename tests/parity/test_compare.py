"""Differences of two sides: what is judged, and that nothing slips through."""

import numpy as np
import pytest

from jaxagent.parity.compare import Sides, compared, exact
from jaxagent.parity.gradients import MAX_NUMBERS, Kept, compared_groups, places
from jaxagent.parity.policies import greedy_row
from jaxagent.weights.table import Row as TableRow

NORMAL = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)


def test_each_vector_is_judged_by_its_own_size():
    theirs = NORMAL.copy()
    theirs[0, 3] = 1e4  # as the first token of published policies
    rounded = theirs.copy()
    rounded[0, 3] += 1e-2
    assert compared("block", Sides(rounded, theirs), 1e-5).passed
    wrong = theirs.copy()
    wrong[4, 2] += 1e-2
    row = compared("block", Sides(wrong, theirs), 1e-5)
    assert not row.passed
    assert row.absolute == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("side", ["ours", "theirs", "wide"])
def test_what_is_no_number_fails(side):
    sides = Sides(NORMAL, NORMAL, NORMAL)
    spoilt = NORMAL.copy()
    spoilt[1, 1] = np.nan
    assert compared("block", sides, 1e-5).passed
    assert not compared("block", sides._replace(**{side: spoilt}), 1e-5).passed


def test_another_shape_fails_and_is_told():
    row = compared("block", Sides(NORMAL[:4], NORMAL), 1e-5)
    assert not row.passed
    assert "(4, 8)" in row.note


def test_bfloat16_may_err_half_as_much_again_as_transformers():
    noise = np.random.default_rng(1).standard_normal(NORMAL.shape).astype(np.float32)

    def row(factor):
        return compared("b", Sides(NORMAL + factor * noise, NORMAL + 1e-2 * noise, NORMAL), 1e-5)

    assert row(1.4e-2).passed
    assert not row(1.7e-2).passed
    assert row(1.7e-2).theirs == pytest.approx(row(1e-2).relative)


def test_ids_must_be_equal():
    ids = np.arange(6).reshape(2, 3)
    assert exact("ids", ids, ids).passed
    assert not exact("ids", ids + (ids == 4), ids).passed
    assert not exact("ids", ids[:1], ids).passed


def test_another_token_passes_only_near_a_tie():
    theirs = np.array([[1.0, 3.0, 0.0], [2.0, 1.9999, 0.0], [9.0, 0.0, 9.5]], np.float32)
    tokens, banned = np.array([1, 0, 0]), np.array([2])
    tie, apart = theirs.copy(), theirs.copy()
    tie[1] = [1.9998, 1.9999, 0.0]
    apart[0] = [3.0, 1.0, 0.0]
    near, far = (greedy_row(Sides(ours, theirs), tokens, banned) for ours in (tie, apart))
    assert near.passed
    assert near.note == "2 of 3 equal, the others near-ties"
    assert not far.passed
    assert "token 0 is 0" in far.note


def test_large_tensors_keep_the_same_numbers_on_both_sides():
    chosen = places("a.weight", 10 * MAX_NUMBERS)
    assert len(chosen) == MAX_NUMBERS
    np.testing.assert_array_equal(chosen, places("a.weight", 10 * MAX_NUMBERS))
    assert (chosen != places("b.weight", 10 * MAX_NUMBERS)).any()
    np.testing.assert_array_equal(places("a", 3), [0, 1, 2])


def test_a_gradient_is_judged_by_its_group_or_by_a_thousandth_of_all():
    rows = [
        TableRow(key=key, name=key, pattern="d -> d", sizes={}) for key in ("large", "small", "off")
    ]

    def kept(value):
        numbers = np.full(4, value, np.float32)
        return Kept(float(np.linalg.norm(numbers)), numbers, 4)

    theirs = {"large": kept(1.0), "small": kept(1e-9), "off": kept(0.5)}
    ours = {"large": kept(1.0), "small": kept(2e-9), "off": kept(0.501)}
    large, small, off = compared_groups(rows, ours, theirs, None)
    assert large.passed
    assert small.passed
    assert not off.passed
    assert off.relative == pytest.approx(0.002, rel=1e-3)
