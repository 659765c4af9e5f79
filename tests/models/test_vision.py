"""Windows and blocks of the vision towers' attention, as a picture and as laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.models import vision
from jaxagent.models.attention import attention
from jaxagent.models.qwen2_5_vl import Qwen25VisionConfig, groups
from jaxagent.models.vision import window_attention, window_layout


def numbers(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def test_windows_of_one_shape_lie_together():
    layout = window_layout(3, 3, side=2, merge=2)
    np.testing.assert_array_equal(layout.order, [0, 1, 3, 4, 2, 5, 6, 7, 8])
    assert layout.windows == ((1, 16), (1, 8), (1, 8), (1, 4))


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), side=st.integers(1, 4))
def test_every_token_lies_in_the_window_of_its_place(rows, columns, side):
    layout = window_layout(rows, columns, side=side, merge=1)
    assert sorted(layout.order) == list(range(rows * columns))
    window_of = np.repeat(
        np.arange(sum(num for num, _ in layout.windows)),
        [size for num, size in layout.windows for _ in range(num)],
    )
    row, column = np.divmod(layout.order, columns)
    place = row // side * columns + column // side
    together = window_of[:, None] == window_of[None]
    np.testing.assert_array_equal(together, place[:, None] == place[None])


def test_a_window_sees_itself_alone():
    q, k, v = numbers(3, 2, 9, 4, 8)
    windows = ((2, 3), (1, 2), (1, 1))
    segments = np.repeat([0, 1, 2, 3], [3, 3, 2, 1])
    visible = jnp.asarray(segments[:, None] == segments[None])[None].repeat(2, axis=0)
    np.testing.assert_allclose(
        window_attention(q, k, v, windows), attention(q, k, v, visible), atol=1e-6
    )


def test_a_large_window_goes_by_blocks_of_queries(monkeypatch):
    q, k, v = numbers(3, 2, 21, 4, 8)

    def value(q, k, v):
        return jnp.sum(jnp.sin(window_attention(q, k, v, ((1, 21),))))

    def both():
        return window_attention(q, k, v, ((1, 21),)), jax.grad(value, argnums=(0, 1, 2))(q, k, v)

    whole, whole_gradients = both()
    monkeypatch.setattr(vision, "_ALL_AT_ONCE", 20)
    monkeypatch.setattr(vision, "_BLOCK", 8)
    blocks, gradients = both()
    np.testing.assert_allclose(blocks, whole, atol=1e-6)
    for mine, theirs in zip(gradients, whole_gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_the_largest_image_holds_no_scores_of_all_pairs():
    patches = 65_536  # 12.8 million pixels, the limit of the published processors
    shape = jax.ShapeDtypeStruct((1, patches, 16, 80), jnp.bfloat16)
    compiled = jax.jit(lambda *qkv: window_attention(*qkv, ((1, patches),))).lower(*[shape] * 3)
    temporaries = compiled.compile().memory_analysis().temp_size_in_bytes
    assert temporaries < 8 * 2**30 < patches**2 * 16 * 4


@pytest.mark.parametrize(
    ("layers", "full", "expected"),
    [
        (32, (7, 15, 23, 31), [(4, 7, 8)]),  # every published size
        (7, (2, 5), [(2, 2, 3), (1, 1, 1)]),
        (5, (0, 2, 3), [(1, 0, 1), (1, 1, 2), (1, 0, 1), (1, 1, 1)]),
        (3, (), [(1, 3, 3)]),
    ],
)
def test_blocks_are_scanned_by_groups_of_windowed_ones_and_a_full_one(layers, full, expected):
    config = Qwen25VisionConfig(
        width=32,
        layers=layers,
        heads=2,
        mlp_width=8,
        out_width=32,
        channels=3,
        patch=4,
        temporal_patch=2,
        merge=2,
        window=16,
        full_layers=full,
    )
    assert list(groups(config)) == expected


def test_windows_skip_work():
    # 32 x 32 patches in windows of 8 x 8: a sixteenth of the products of whole frames
    shape = jax.ShapeDtypeStruct((1, 1024, 2, 16), jnp.float32)

    def flops(windows):
        lowered = jax.jit(lambda *qkv: window_attention(*qkv, windows)).lower(*[shape] * 3)
        return lowered.compile().cost_analysis()["flops"]

    layout = window_layout(16, 16, side=4, merge=2)
    assert flops(layout.windows) < flops(((1, 1024),)) / 12
