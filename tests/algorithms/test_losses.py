"""Losses: against literal transcriptions, and the laws that tie the algorithms together."""

import operator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import table
from jaxagent.algorithms.aggregations import counts, sequence_mean, token_mean
from jaxagent.algorithms.log_ratios import (
    Samples,
    horizon_log_ratio,
    released_log_ratio,
    sample_means,
    sequence_log_ratio,
    spread,
    token_log_ratio,
)
from jaxagent.algorithms.losses import Clip, Targets, policy_loss
from tests.algorithms import literal

NAMES = ("grpo", "gspo", "tn_gspo", "tn_gspo_release")
LENGTHS, CALLS = (7, 3, 5, 1), (0, 1, 4, 2)


def samples_of(seed=0, spread_of_ratios=0.3):
    """Four samples of two groups, as `literal` takes them."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(-1, 0.3, length),
            rng.normal(-1, spread_of_ratios, length),
            float(rng.normal()),
            calls,
            i // 2,
        )
        for i, (length, calls) in enumerate(zip(LENGTHS, CALLS, strict=True))
    ]


def packed(samples, rows, width=12, columns=3, algorithm=None, fill=0.0):
    """Samples in packed rows (`rows` lists each row's samples); other places hold `fill`."""
    lengths = np.array([len(sample[0]) for sample in samples])
    groups = np.array([sample[4] for sample in samples])
    aggregation = algorithm.aggregation if algorithm else token_mean
    weights = aggregation(counts(lengths, groups))
    shape, tables = (len(rows), width), (len(rows), columns)
    log_probs, old = np.full(shape, fill), np.full(shape, fill)
    ids, calls = np.zeros(shape, np.int32), np.zeros(tables, np.int32)
    advantage, weight = np.full(tables, fill), np.full(tables, fill)
    for b, row in enumerate(rows):
        at = 0
        for z, i in enumerate(row):
            here = slice(at, at + len(samples[i][0]))
            log_probs[b, here], old[b, here] = samples[i][0], samples[i][1]
            ids[b, here] = z + 1
            advantage[b, z], calls[b, z], weight[b, z] = samples[i][2], samples[i][3], weights[i]
            at = here.stop
    as_float = partial(jnp.asarray, dtype=jnp.float32)
    members = Samples(jnp.asarray(ids), jnp.asarray(calls))
    targets = Targets(members, as_float(old), as_float(advantage), as_float(weight))
    return as_float(log_probs), targets


def loss(algorithm, log_probs, targets):
    return policy_loss(
        log_probs,
        targets,
        log_ratio=algorithm.log_ratio,
        surrogate=algorithm.surrogate,
        clip=algorithm.clip,
    ).loss


def literal_loss(name):
    clip = table.ALGORITHMS[name].clip._asdict()
    return {
        "grpo": partial(literal.grpo, **clip),
        "gspo": partial(literal.gspo, **clip),
        "tn_gspo": partial(literal.tn_gspo, **clip, c=0.04, alpha=1.0, offset=1),
        "tn_gspo_release": partial(literal.tn_gspo, **clip, c=0.04, alpha=1.0, offset=0),
        "sft": literal.cross_entropy,
    }[name]


ONE_EACH, TWO_ROWS = [[0], [1], [2], [3]], [[0, 1, 3], [2]]


@pytest.mark.parametrize("name", [*NAMES, "sft"])
@pytest.mark.parametrize("seed", range(3))
def test_value_equals_the_literal_formula(name, seed):
    samples, algorithm = samples_of(seed), table.ALGORITHMS[name]
    value = loss(algorithm, *packed(samples, TWO_ROWS, algorithm=algorithm))
    np.testing.assert_allclose(value, literal_loss(name)(samples), rtol=2e-6)


@pytest.mark.parametrize("name", ["grpo", "gspo", "tn_gspo", "sft"])
def test_gradient_equals_finite_differences_of_the_literal_formula(name):
    samples, algorithm = samples_of(1), table.ALGORITHMS[name]
    log_probs, targets = packed(samples, ONE_EACH, algorithm=algorithm)
    gradient = jax.grad(lambda x: loss(algorithm, x, targets))(log_probs)
    step = 1e-6
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            values = []
            for sign in (1, -1):
                moved = [
                    tuple(np.copy(x) if j == 0 else x for j, x in enumerate(s)) for s in samples
                ]
                moved[i][0][t] += sign * step
                values.append(literal_loss(name)(moved))
            slope = (values[0] - values[1]) / (2 * step)
            np.testing.assert_allclose(gradient[i, t], slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_gradient_is_reinforce(name):
    samples = [(old, old, *rest) for _, old, *rest in samples_of()]
    algorithm = table.ALGORITHMS[name]
    log_probs, targets = packed(samples, ONE_EACH, algorithm=algorithm)
    gradient = jax.grad(lambda x: loss(algorithm, x, targets))(log_probs)
    horizon = 1 + 0.04 * (1 + np.array(CALLS)) if name == "tn_gspo" else np.ones(4)
    scale = np.asarray(targets.weights[:, 0]) / horizon * np.array([s[2] for s in samples])
    there = np.asarray(targets.samples.ids) > 0
    np.testing.assert_allclose(gradient, np.where(there, -scale[:, None], 0), rtol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "sft"])
def test_packing_padding_and_row_order_change_nothing(name):
    samples, algorithm = samples_of(), table.ALGORITHMS[name]
    first = loss(algorithm, *packed(samples, ONE_EACH, algorithm=algorithm))
    for rows, width, columns in (
        (TWO_ROWS, 12, 3),
        ([[2], [3, 1, 0]], 40, 5),
        ([[], [0, 1, 2, 3]], 16, 4),
    ):
        other = loss(algorithm, *packed(samples, rows, width, columns, algorithm))
        np.testing.assert_allclose(other, first, rtol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "sft"])
@pytest.mark.parametrize("fill", [np.nan, np.inf, -1e10])
def test_what_stands_beside_the_targets_reaches_neither_value_nor_gradient(name, fill):
    samples, algorithm = samples_of(), table.ALGORITHMS[name]
    clean, targets = packed(samples, TWO_ROWS, algorithm=algorithm)
    foul, foul_targets = packed(samples, TWO_ROWS, algorithm=algorithm, fill=fill)
    wanted = jax.value_and_grad(lambda x: loss(algorithm, x, targets))(clean)
    found = jax.value_and_grad(lambda x: loss(algorithm, x, foul_targets))(foul)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


def test_horizon_without_calls_and_offset_is_gspo_and_with_the_papers_offset_gspo_over_1_04():
    log_probs, targets = packed(samples_of(), TWO_ROWS)
    members = targets.samples._replace(calls=0 * targets.samples.calls)
    gspo = sequence_log_ratio(log_probs, members)
    np.testing.assert_array_equal(horizon_log_ratio(log_probs, members, offset=0), gspo)
    np.testing.assert_allclose(
        horizon_log_ratio(log_probs, members, offset=1), gspo / 1.04, rtol=1e-6
    )


def test_gspo_on_one_token_is_grpo():
    samples = [(s[0][:1], s[1][:1], *s[2:]) for s in samples_of()]
    log_probs, targets = packed(samples, TWO_ROWS)
    delta = jnp.where(targets.samples.ids > 0, log_probs, 0)
    np.testing.assert_array_equal(
        sequence_log_ratio(delta, targets.samples), token_log_ratio(delta, targets.samples)
    )


def test_release_has_the_formulas_value_and_its_gradient_times_the_horizon():
    samples = samples_of(2, spread_of_ratios=0.05)
    wide = Clip(0.9, 9.0)
    formula = replace(table.ALGORITHMS["tn_gspo"], clip=wide)
    release = replace(formula, log_ratio=partial(released_log_ratio, offset=1))
    log_probs, targets = packed(samples, ONE_EACH, algorithm=formula)
    ours = jax.value_and_grad(lambda x: loss(formula, x, targets))(log_probs)
    theirs = jax.value_and_grad(lambda x: loss(release, x, targets))(log_probs)
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-6)
    factor = 1 + 0.04 * (1 + np.array(CALLS))
    np.testing.assert_allclose(theirs[1], ours[1] * factor[:, None], rtol=1e-5)


def test_release_with_one_optimiser_step_is_gspo():
    samples = [(old, old, *rest) for _, old, *rest in samples_of()]
    release = table.ALGORITHMS["tn_gspo_release"]
    gspo = replace(release, log_ratio=sequence_log_ratio)
    log_probs, targets = packed(samples, ONE_EACH, algorithm=gspo)
    for a, b in zip(
        jax.value_and_grad(lambda x: loss(release, x, targets))(log_probs),
        jax.value_and_grad(lambda x: loss(gspo, x, targets))(log_probs),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_environment_tokens_are_not_in_the_length():
    """The mean over a sample's targets, drawn: a place with id 0 counts nowhere."""
    members = Samples(jnp.array([[1, 0, 1, 2, 0]]), jnp.zeros((1, 2), jnp.int32))
    x = jnp.array([[1.0, 100.0, 3.0, 5.0, 100.0]])
    np.testing.assert_array_equal(sample_means(x, members), [[2.0, 5.0]])
    np.testing.assert_array_equal(spread(jnp.array([[2.0, 5.0]]), members), [[2, 0, 2, 5, 0]])


def test_micro_batches_add_up_to_the_whole_batch():
    samples = samples_of()
    for name in NAMES:
        algorithm = table.ALGORITHMS[name]
        log_probs, targets = packed(samples, ONE_EACH, algorithm=algorithm)
        whole = loss(algorithm, log_probs, targets)
        for size in (1, 2, 3):
            total = 0.0
            for i in range(0, 4, size):
                cut = operator.itemgetter(slice(i, i + size))
                total += loss(algorithm, cut(log_probs), jax.tree.map(cut, targets))
            np.testing.assert_allclose(total, whole, rtol=1e-5)


def test_clip_counts_only_where_the_clip_acts():
    members = Samples(jnp.array([[1, 2]]), jnp.zeros((1, 2), jnp.int32))
    for advantages, low, high in (((1, 1), 0, 1), ((-1, -1), 1, 0), ((-1, 1), 0, 0)):
        targets = Targets(
            members, jnp.zeros((1, 2)), jnp.array([advantages], jnp.float32), jnp.ones((1, 2))
        )
        grpo = table.ALGORITHMS["grpo"]
        terms = policy_loss(
            jnp.array([[0.5, -0.5]]),
            targets,
            log_ratio=grpo.log_ratio,
            surrogate=grpo.surrogate,
            clip=grpo.clip,
        )
        assert (float(terms.clipped_low), float(terms.clipped_high)) == (low, high)
        np.testing.assert_allclose(terms.max_ratio, np.exp(0.5), rtol=1e-6)


def test_sequence_mean_gives_every_sample_the_same_say():
    lengths, groups = np.array([4, 1]), np.array([0, 0])
    np.testing.assert_allclose(sequence_mean(counts(lengths, groups)) * lengths, [0.5, 0.5])
