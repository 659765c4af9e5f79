"""Weights of targets, drawn for three samples of two groups."""

import numpy as np

from jaxagent.algorithms.aggregations import counts, group_token_mean, sequence_mean, token_mean

BATCH = counts(np.array([1, 3, 4]), np.array([0, 0, 1]))


def test_counts_hold_the_group_and_the_batch():
    np.testing.assert_array_equal(BATCH.group_lengths, [4, 4, 4])
    assert (BATCH.num_targets, BATCH.num_samples, BATCH.num_groups) == (8, 3, 2)


def test_weights_of_each_mean():
    np.testing.assert_allclose(token_mean(BATCH), [1 / 8] * 3)
    np.testing.assert_allclose(sequence_mean(BATCH), [1 / 3, 1 / 9, 1 / 12], rtol=1e-6)
    np.testing.assert_allclose(group_token_mean(BATCH), [1 / 8] * 3)


def test_weights_of_a_batch_sum_to_1():
    for mean in (token_mean, sequence_mean, group_token_mean):
        np.testing.assert_allclose((mean(BATCH) * BATCH.lengths).sum(), 1, rtol=1e-6)


def test_a_sample_without_targets_has_a_finite_weight():
    batch = counts(np.array([0, 2]), np.array([0, 0]))
    for mean in (token_mean, sequence_mean, group_token_mean):
        assert np.isfinite(mean(batch)).all()
