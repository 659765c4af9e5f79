import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.attention import KVCache, Place, attention, cache_mask, cached_keys_values
from jaxagent.models.row_attention import BLOCK, row_attention


def case(length: int, num_tokens: int):
    keys = jax.random.split(jax.random.key(0), 2)
    cache = KVCache(jax.random.normal(keys[0], (2, 4, length, 4, 8)))
    q = jax.random.normal(keys[1], (3, num_tokens, 6, 8))
    return cache, q


@pytest.mark.parametrize("length", [5, 2 * BLOCK + 40])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_row_after_row_equals_all_rows_at_once(length, num_tokens):
    cache, q = case(length, num_tokens)
    start = jnp.array([0, (length - num_tokens) // 2, length - num_tokens])
    place = Place(jnp.array([3, 0, 2]), start)
    layer = jnp.int32(1)
    k, v = cached_keys_values(cache, layer, place, length=length)
    expected = attention(q, k, v, cache_mask(start, num_tokens, length))
    np.testing.assert_allclose(jax.jit(row_attention)(q, cache, layer, place), expected, atol=1e-5)


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_slots_behind_a_row_are_never_seen(num_tokens):
    cache, q = case(2 * BLOCK, num_tokens)
    place = Place(jnp.arange(3), jnp.array([0, 7, BLOCK - 2]))
    filled = jnp.arange(2 * BLOCK)[None] < (place.start + num_tokens)[:, None]
    left_over = jnp.where(filled[None, :, :, None, None], cache.pages[:, :3], 1e30)
    clean = jnp.where(filled[None, :, :, None, None], cache.pages[:, :3], 0.0)
    layer = jnp.int32(0)
    attend = jax.jit(row_attention)
    np.testing.assert_array_equal(
        attend(q, KVCache(left_over), layer, place), attend(q, KVCache(clean), layer, place)
    )
