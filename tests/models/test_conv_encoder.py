"""The small image encoder: its convolution, its vectors, its sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.conv_encoder import ConvEncoderConfig, Model, depthwise
from jaxagent.trees import num_parameters

TINY = ConvEncoderConfig(size=16, widths=(8, 12), out_width=6)
encode = jax.jit(Model(TINY).encode)


def pixels(rows, size=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, size, size, 3), np.uint8)


def test_depthwise_weighs_the_nine_neighbours_with_zeros_outside():
    #  1 2      kernel 0 1 0     each place: the one above + 10 times itself
    #  3 4             0 10 0
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]
    kernel = jnp.array([0, 1, 0, 0, 10, 0, 0, 0, 0], jnp.float32)[:, None]
    assert depthwise(x, kernel)[0, :, :, 0].tolist() == [[10, 20], [31, 42]]


def test_vectors_have_unit_length_and_do_not_depend_on_the_batch():
    params = Model(TINY).init(jax.random.key(0))
    together = encode(params, jnp.asarray(pixels(5)))
    assert together.shape == (5, 6)
    np.testing.assert_allclose(jnp.linalg.norm(together, axis=1), 1, atol=1e-6)
    alone = encode(params, jnp.asarray(pixels(5)[3:4]))
    np.testing.assert_allclose(together[3], alone[0], atol=1e-5)


def test_every_pixel_reaches_the_vector():
    params = Model(TINY).init(jax.random.key(0))
    image = pixels(1)
    before = encode(params, jnp.asarray(image))
    for row, column in [(0, 0), (15, 15), (7, 8)]:
        changed = image.copy()
        changed[0, row, column] = 255 - changed[0, row, column]
        assert jnp.abs(encode(params, jnp.asarray(changed)) - before).max() > 1e-6


def test_the_shipped_size_fits_its_budget():
    shapes = Model(ConvEncoderConfig()).shapes()
    assert 4 * num_parameters(shapes) <= 2 * 2**20


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="60 pixels do not divide .* multiple of 16"):
        ConvEncoderConfig(size=60)
