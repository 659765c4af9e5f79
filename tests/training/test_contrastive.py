"""Contrastive training: the loss by hand, and a run that learns."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.training.contrastive import ContrastiveConfig, Pairs, contrastive_loss, train


def test_the_loss_is_the_mean_of_both_ways():
    #           k0  k1     there: q0 log(e^2 + e^0) - 2, q1 log(e^0 + e^0) - 0
    #  q0       2   0      back:  k0 log(e^2 + e^0) - 2, k1 log(e^0 + e^0) - 0
    #  q1       0   0
    queries = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    loss = contrastive_loss(queries, jnp.eye(2), temperature=0.5)
    expected = (math.log(math.e**2 + 1) - 2 + math.log(2)) / 2
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_swapping_the_sides_or_the_order_of_rows_changes_nothing():
    q, k = jax.random.normal(jax.random.key(0), (2, 5, 4))
    loss = contrastive_loss(q, k, temperature=0.1)
    order = jnp.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(contrastive_loss(k, q, temperature=0.1), loss, rtol=1e-6)
    np.testing.assert_allclose(
        contrastive_loss(q[order], k[order], temperature=0.1), loss, rtol=1e-6
    )


def rotated(params, x):
    """Unit vectors of points under a learnt matrix."""
    y = x @ params["matrix"]
    return y * jax.lax.rsqrt(jnp.sum(y * y, axis=1, keepdims=True) + 1e-6)


def noisy_pairs(step):
    """The same 8 points twice; the second half of the axes is noise that differs."""
    noise = np.random.default_rng(step).normal(size=(2, 8, 4)).astype(np.float32)
    points = np.eye(8, 4, dtype=np.float32) + np.eye(8, 4, k=-4, dtype=np.float32) * -1
    left, right = (np.concatenate([points, side], axis=1) for side in noise)
    return Pairs(jnp.asarray(left), jnp.asarray(right))


def start():
    return {"matrix": jax.random.normal(jax.random.key(1), (8, 4)) / 3}


def test_training_learns_to_look_away_from_what_differs():
    told = []
    config = ContrastiveConfig(steps=150, learning_rate=0.02)
    trained = train(rotated, start(), noisy_pairs, config, progress=lambda *news: told.append(news))
    assert np.mean(trained.losses[-10:]) < 0.2 * np.mean(trained.losses[:10])
    assert [step for step, _ in told] == list(range(150))
    signal, noise = jnp.abs(trained.params["matrix"][:4]), jnp.abs(trained.params["matrix"][4:])
    assert signal.mean() > 5 * noise.mean()


def test_the_same_run_twice_gives_the_same_parameters():
    config = ContrastiveConfig(steps=5)
    first, second = (train(rotated, start(), noisy_pairs, config) for _ in range(2))
    assert first.losses == second.losses
    np.testing.assert_array_equal(first.params["matrix"], second.params["matrix"])


def test_a_loss_that_is_not_finite_stops_the_run():
    with pytest.raises(FloatingPointError, match="nan at step 0"):
        train(
            lambda params, x: rotated(params, x) * jnp.nan,
            start(),
            noisy_pairs,
            ContrastiveConfig(steps=3),
        )
