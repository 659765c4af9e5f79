"""Attention by blocks of packed rows: what the whole mask gives, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.attention import attention, packed_attention, segment_mask


def arrays(tokens: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    q, k, v = (
        jnp.asarray(rng.normal(size=(3, tokens, heads, 8)), jnp.float32) for heads in (4, 2, 2)
    )
    starts = np.sort(rng.integers(0, tokens, (3, 2)))
    segments = 1 + (np.arange(tokens) >= starts[:, :1])
    segments = np.where(np.arange(tokens) >= starts[:, 1:], 0, segments)  # padding at the end
    return q, k, v, jnp.asarray(segments)


def whole(q, k, v, segments):
    return attention(q, k, v, segment_mask(segments))


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200, 600])
def test_blocks_give_what_the_whole_mask_gives(tokens):
    q, k, v, segments = arrays(tokens)
    np.testing.assert_allclose(
        packed_attention(q, k, v, segments), whole(q, k, v, segments), atol=3e-6
    )


@pytest.mark.parametrize("tokens", [65, 200])
def test_gradients_agree(tokens):
    q, k, v, segments = arrays(tokens)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=q.shape), jnp.float32)

    def gradients(attend):
        return jax.grad(lambda *a: jnp.sum(weights * attend(*a, segments)), (0, 1, 2))(q, k, v)

    for got, wanted in zip(gradients(packed_attention), gradients(whole), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_a_key_of_another_segment_or_later_moves_nothing():
    q, k, v, segments = arrays(200)
    at = 100
    hidden = (segments[0] != segments[0, at]) | (jnp.arange(200) > at)
    moved = jnp.where(hidden[None, :, None, None], 7.0, v)
    np.testing.assert_array_equal(
        packed_attention(q, k, v, segments)[0, at], packed_attention(q, k, moved, segments)[0, at]
    )
