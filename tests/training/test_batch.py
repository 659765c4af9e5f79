"""Packing: nothing is lost, nothing is mixed, and the shapes are the declared ones."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.algorithms.aggregations import sequence_mean, token_mean
from jaxagent.training.batch import (
    PackingConfig,
    PackingError,
    Pictures,
    Shape,
    fitting_shape,
    micro_batches,
    packed,
)
from jaxagent.training.samples import Sample, sample
from jaxagent.types import Dialogue, ImageSpan, Trajectory
from tests.training import dialogues

LADDER = PackingConfig(row_lengths=(8, 16), call_tokens=32, image_tokens=8, min_rows=1).ladder()


def plain(ids, written, **fields):
    return Sample(
        ids=np.array(ids, np.int32),
        written=np.array(written, bool),
        log_probs=np.linspace(-1, -2, len(ids), dtype=np.float32),
        **fields,
    )


def no_pictures(grids, image_tokens):
    return Pictures(None, {key: 0 for key in grids})


def test_a_row_of_two_samples_is_what_the_docstring_draws():
    first = plain([11, 12, 13, 14], [0, 0, 1, 1], advantage=0.5, calls=2)
    second = plain([21, 22, 23], [0, 0, 1], advantage=-0.5, calls=3, verdicts={1: True})
    shape = Shape(rows=1, tokens=9, targets=5, samples=3, image_tokens=0)
    ((rows, _),) = micro_batches(
        [first, second],
        [shape],
        aggregation=sequence_mean,
        pictures=no_pictures,
        merge=2,
        verdict_weight=0.25,
    )
    expected = {
        "ids": [11, 12, 13, 14, 21, 22, 23, 0, 0],
        "segments": [1, 1, 1, 1, 2, 2, 2, 0, 0],
        "at": [1, 2, 5, 5, 0],
        "target_ids": [13, 14, 23, 0, 0],
        "verdicts": [-1, -1, -1, 1, -1],
        "verdict_weights": [0, 0, 0, 0.25, 0],
    }
    for name, row in expected.items():
        np.testing.assert_array_equal(getattr(rows, name), [row], err_msg=name)
    np.testing.assert_array_equal(rows.positions[:, 0, :7], [[0, 1, 2, 3, 0, 1, 2]] * 3)
    np.testing.assert_array_equal(rows.targets.samples.ids, [[1, 1, 2, 0, 0]])
    np.testing.assert_array_equal(rows.targets.samples.calls, [[2, 3, 0]])
    np.testing.assert_array_equal(rows.targets.advantages, [[0.5, -0.5, 0]])
    np.testing.assert_array_equal(rows.targets.weights, [[0.25, 0.5, 0]])
    recorded = [*first.log_probs[2:], second.log_probs[2], 0, 0]
    np.testing.assert_allclose(rows.sampled[0], recorded)


@pytest.mark.parametrize("poison", [np.nan, -np.inf, 1e10, -7.5])
def test_log_probs_of_what_the_policy_did_not_write_change_no_bit(poison):
    def cut(elsewhere: float):
        made = []
        for one in dialogues.samples():
            trajectory = Trajectory(
                dialogue=Dialogue(question=dialogues.question("q")),
                sample=0,
                ids=one.ids,
                written=one.written,
                log_probs=np.where(one.written, one.log_probs, np.float32(elsewhere)),
                images=one.images,
                num_calls=one.calls,
            )
            fields = {"group": one.group, "advantage": one.advantage, "verdicts": one.verdicts}
            made.append(sample(trajectory, **fields))
        return micro_batches(
            made,
            [dialogues.SHAPE],
            aggregation=sequence_mean,
            pictures=dialogues.PATCHES,
            merge=2,
            verdict_weight=0.25,
        )

    clean, poisoned = jax.tree.leaves(cut(0.0)), jax.tree.leaves(cut(poison))
    assert [leaf.tobytes() for leaf in poisoned] == [leaf.tobytes() for leaf in clean]


def test_tokens_of_an_image_point_at_its_features():
    samples = dialogues.samples(lengths=(9, 9, 9))
    source = {"image 0": 4, "image 1": 12}
    ((rows, _),) = micro_batches(
        samples,
        [replace(dialogues.SHAPE, rows=1)],
        aggregation=token_mean,
        pictures=lambda grids, size: Pictures(None, source),
        merge=2,
    )
    image = [-1, 4, 5, 6, 7, -1, -1, -1, -1]
    other = [-1, 12, 13, 14, 15, -1, -1, -1, -1]
    np.testing.assert_array_equal(rows.feature_index[0, :27], [*image, *image, *other])


@given(st.lists(st.tuples(st.integers(2, 30), st.integers(0, 5)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_every_sample_stands_in_exactly_one_row_that_holds_it(drawn):
    samples = [
        plain(range(n), [False, *[True] * (n // 3), *[False] * (n - 1 - n // 3)], group=g)
        for n, g in drawn
    ]
    shape = Shape(rows=3, tokens=40, targets=12, samples=4, image_tokens=0)
    found = packed(samples, shape, merge=2)
    assert sorted(i for rows in found for row in rows for i in row) == list(range(len(samples)))
    for rows in found:
        assert len(rows) == shape.rows
        for row in rows:
            assert len(row) <= shape.samples
            assert sum(len(samples[i].ids) for i in row) <= shape.tokens
            assert sum(samples[i].num_targets for i in row) <= shape.targets


def test_a_group_that_fits_a_micro_batch_is_not_divided():
    samples = [plain(range(10), [False] * 10, group=i // 4) for i in range(12)]
    shape = Shape(rows=3, tokens=20, targets=4, samples=2, image_tokens=0)
    for rows in packed(samples, shape, merge=2):
        groups = [samples[i].group for row in rows for i in row]
        assert all(groups.count(group) == 4 for group in groups)


def test_images_count_once_and_bound_a_micro_batch():
    def with_image(key, group):
        image = ImageSpan(key=key, start=0, grid=(1, 4, 4))
        return plain(range(5), [False] * 5, images=(image,), group=group)

    samples = [with_image(key, i) for i, key in enumerate("aabbcc")]
    shape = Shape(rows=4, tokens=20, targets=4, samples=4, image_tokens=8)
    found = packed(samples, shape, merge=2)
    keys = [{samples[i].images[0].key for row in rows for i in row} for rows in found]
    assert keys == [{"a", "b"}, {"c"}]


def test_the_shortest_rows_that_hold_the_longest_sample_are_taken():
    assert [(rung.rows, rung.tokens, rung.targets) for rung in LADDER] == [
        (4, 8, 4),
        (2, 16, 8),
        (2, 16, 16),
    ]
    for length, written, rung in ((8, 4, 0), (9, 1, 1), (8, 5, 1), (16, 12, 2)):
        sample = plain(range(length), [False] * (length - written) + [True] * written)
        assert fitting_shape(LADDER, [sample], merge=2) == LADDER[rung]


def test_a_sample_that_fits_no_rung_is_refused_with_its_size():
    with pytest.raises(PackingError, match="needs 17 tokens"):
        fitting_shape(LADDER, [plain(range(17), [False] * 17)], merge=2)


def test_samples_without_advantage_are_counted_but_not_computed():
    samples = [plain([1, 2, 3], [0, 1, 1], group=i, advantage=float(i)) for i in range(2)]
    shape = Shape(rows=1, tokens=8, targets=4, samples=2, image_tokens=0)
    ((rows, _),) = micro_batches(
        samples,
        [shape],
        aggregation=token_mean,
        pictures=no_pictures,
        merge=2,
        silent="skip",
    )
    np.testing.assert_array_equal(rows.segments, [[1, 1, 1, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.targets.weights, [[0.25, 0]])


def test_a_batch_without_samples_is_one_masked_micro_batch():
    shape = Shape(rows=2, tokens=8, targets=4, samples=2, image_tokens=0)
    ((rows, _),) = micro_batches([], [shape], aggregation=token_mean, pictures=no_pictures, merge=2)
    assert not rows.segments.any()
    assert not rows.targets.samples.ids.any()


def test_the_first_token_cannot_be_a_target():
    with pytest.raises(ValueError, match="nothing predicts it"):
        plain([1, 2], [1, 0])
