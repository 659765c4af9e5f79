"""Chunked log-probabilities equal the whole projection, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.training.target_scores import target_scores

B, U, D, V = 2, 8, 4, 11
BANNED = np.arange(V) == 3


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    ids = jax.random.randint(keys[2], (B, U), 4, V)
    return jax.random.normal(keys[0], (B, U, D)), jax.random.normal(keys[1], (D, V)), ids


def whole(hidden, head, ids, temperature):
    """log softmax of all logits, the banned one left out of the sum."""
    logits = jnp.delete(hidden @ head, 3, axis=2) / temperature
    return jnp.take_along_axis(jax.nn.log_softmax(logits), (ids - 1)[:, :, None], 2)[:, :, 0]


@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_any_chunk_gives_the_value_and_gradient_of_the_whole(chunk):
    hidden, head, ids = inputs()

    def chunked(hidden, head):
        scores = target_scores(hidden, head, ids, chunk=chunk, temperature=0.6, banned=BANNED)
        return jnp.sum(jnp.sin(scores.log_probs))

    def plain(hidden, head):
        return jnp.sum(jnp.sin(whole(hidden, head, ids, 0.6)))

    found = jax.value_and_grad(chunked, (0, 1))(hidden, head)
    wanted = jax.value_and_grad(plain, (0, 1))(hidden, head)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)


def test_entropy_is_of_the_distribution_without_banned_ids():
    hidden, head, ids = inputs()
    scores = target_scores(0 * hidden, head, ids, chunk=4, temperature=1.0, banned=BANNED)
    np.testing.assert_allclose(scores.entropy, np.log(V - 1), rtol=1e-6)


def test_memory_is_bounded_by_the_chunk():
    b, u, d, v, chunk = 1, 2048, 8, 16384, 64

    def loss(hidden, head, ids):
        banned = np.zeros(v, bool)
        scores = target_scores(hidden, head, ids, chunk=chunk, temperature=1.0, banned=banned)
        return jnp.sum(scores.log_probs)

    shapes = (
        jax.ShapeDtypeStruct((b, u, d), jnp.float32),
        jax.ShapeDtypeStruct((d, v), jnp.float32),
        jax.ShapeDtypeStruct((b, u), jnp.int32),
    )
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 6 * b * chunk * v * 4
    assert compiled.memory_analysis().temp_size_in_bytes < b * u * v * 4 / 4


def test_a_chunk_that_does_not_divide_is_refused():
    hidden, head, ids = inputs()
    with pytest.raises(ValueError, match="8 targets a row do not divide into chunks of 3"):
        target_scores(hidden, head, ids, chunk=3, temperature=1.0, banned=BANNED)
