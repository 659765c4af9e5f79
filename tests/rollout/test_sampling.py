import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.rollout.sampling import (
    Sampling,
    drawn,
    noise_key,
    question_number,
    support,
    token_keys,
)

NONE_BANNED = jnp.zeros(6, bool)
LOGITS = jnp.log(jnp.array([[0.05, 0.4, 0.05, 0.3, 0.1, 0.1]]))


def kept(sampling: Sampling, logits=LOGITS, banned=NONE_BANNED) -> list[int]:
    return np.flatnonzero(np.isfinite(support(logits, sampling, banned=banned)[0])).tolist()


def test_each_cut_keeps_the_most_likely_tokens():
    assert kept(Sampling()) == [0, 1, 2, 3, 4, 5]
    assert kept(Sampling(top_k=2)) == [1, 3]
    assert kept(Sampling(top_p=0.35)) == [1]
    assert kept(Sampling(top_p=0.69)) == [1, 3]
    assert kept(Sampling(min_p=0.5)) == [1, 3]
    assert kept(Sampling(top_k=3)) == [1, 3, 4, 5], "tokens tied at the threshold stay together"
    assert kept(Sampling(top_k=2, top_p=0.5)) == [1], "0.4 / 0.7 of what top_k kept"


def test_a_banned_token_is_never_drawn_however_likely():
    logits = jnp.zeros((256, 6)).at[:, 3].set(1e4)
    banned = jnp.arange(6) == 3
    keys = jax.random.split(jax.random.key(0), 256)
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(top_k=1), Sampling(top_p=0.5)):
        out = drawn(logits, keys, sampling, banned=banned)
        assert not np.isin(out.ids, [3]).any()
        assert np.isfinite(out.log_probs).all()


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 63), st.floats(0.01, 0.99))
def test_bisection_equals_a_sort(seed, top_k, top_p):
    logits = np.random.default_rng(seed).normal(scale=5, size=(4, 64)).astype(np.float32)
    order = np.sort(logits, -1)[:, ::-1]
    cut = support(jnp.asarray(logits), Sampling(top_k=top_k), banned=jnp.zeros(64, bool))
    np.testing.assert_array_equal(np.isfinite(cut), logits >= order[:, top_k - 1 : top_k])

    probs = np.exp(order - order[:, :1])
    mass = np.cumsum(probs / probs.sum(-1, keepdims=True), -1)
    if np.abs(mass - top_p).min() < 1e-5:
        return  # summation order decides
    last = np.argmax(mass >= top_p, -1)
    cut = support(jnp.asarray(logits), Sampling(top_p=top_p), banned=jnp.zeros(64, bool))
    np.testing.assert_array_equal(np.isfinite(cut), logits >= order[np.arange(4), last][:, None])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_p=0.75),
        Sampling(top_k=2, temperature=2.0),
    ],
)
def test_log_probs_are_those_of_the_distribution_drawn_from(sampling):
    rows = 20_000
    keys = jax.random.split(jax.random.key(1), rows)
    out = drawn(jnp.repeat(LOGITS, rows, 0), keys, sampling, banned=NONE_BANNED)
    frequency = np.bincount(out.ids, minlength=6) / rows
    probs = np.zeros(6)
    probs[np.asarray(out.ids)] = np.exp(out.log_probs)
    np.testing.assert_allclose(frequency, probs, atol=0.015)
    np.testing.assert_allclose(probs.sum(), 1, atol=1e-5)


def test_a_greedy_choice_is_certain():
    out = drawn(
        LOGITS,
        jax.random.split(jax.random.key(0), 1),
        Sampling(temperature=0.0),
        banned=NONE_BANNED,
    )
    assert out.ids.tolist() == [1]
    assert out.log_probs.tolist() == [0.0]


def test_noise_follows_the_question_and_not_its_place():
    @jax.jit
    def ids(key, questions, samples, positions):
        keys = token_keys(key, questions, samples, positions)
        return drawn(jnp.zeros((4, 4096)), keys, Sampling(), banned=jnp.zeros(4096, bool)).ids

    def drawn_ids(data_ids: str, samples, positions, *, seed=0, step=3):
        questions = np.array([question_number(data_id) for data_id in data_ids], np.uint32)
        key = noise_key(seed, step)
        return ids(key, questions, np.array(samples, np.uint32), np.array(positions)).tolist()

    a, b, a1, a_later = drawn_ids("abaa", [0, 0, 1, 0], [7, 8, 7, 8])
    assert len({a, b, a1, a_later}) == 4
    assert drawn_ids("baca", [0, 0, 0, 1], [8, 7, 7, 7])[:2] == [b, a]
    assert drawn_ids("aaaa", [0, 0, 1, 0], [7, 8, 7, 7], step=4)[0] != a
    assert drawn_ids("aaaa", [0, 0, 1, 0], [7, 8, 7, 7], seed=1)[0] != a


@pytest.mark.parametrize(
    "fields", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 2.0}]
)
def test_a_value_out_of_range_is_named(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=f"sampling.{name} is"):
        Sampling(**fields)
