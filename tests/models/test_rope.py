"""Positions of tokens, as pictures and against transformers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2_5_VLModel, Qwen2VLModel, Qwen3VLModel

from jaxagent.models.rope import frequency_axes, patch_coordinates, position_ids
from jaxagent.types import ImageSpan
from tests import tiny

IMAGE = 7


def context(layout):
    """Ids and spans; a number stands for so many words, a grid for an image."""
    ids, spans = [], []
    for item in layout:
        if isinstance(item, int):
            ids += [1] * item
        else:
            spans.append(ImageSpan(key="", start=len(ids), grid=item))
            ids += [IMAGE] * (item[0] * item[1] * item[2] // 4)
    return np.asarray(ids), spans


def test_the_tokens_of_an_image_share_a_time_and_text_goes_on_behind_its_larger_side():
    ids, spans = context([2, (1, 4, 6), 2])
    found = position_ids(ids, spans, 2)
    np.testing.assert_array_equal(
        found.ids,
        [
            [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
            [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
            [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
        ],
    )
    assert found.next == 7


def test_adjacent_images_follow_each_other():
    ids, spans = context([1, (1, 2, 4), (1, 4, 2)])
    np.testing.assert_array_equal(
        position_ids(ids, spans, 2).ids, [[0, 1, 1, 3, 3], [0, 1, 1, 3, 4], [0, 1, 2, 3, 3]]
    )


def test_a_chunk_goes_on_where_the_last_one_ended():
    whole_ids, whole_spans = context([3, (1, 4, 4), 2, (1, 2, 6), 1])
    first_ids, first_spans = context([3, (1, 4, 4), 1])
    second_ids, second_spans = context([1, (1, 2, 6), 1])
    first = position_ids(first_ids, first_spans, 2)
    second = position_ids(second_ids, second_spans, 2, first=first.next)
    whole = position_ids(whole_ids, whole_spans, 2)
    np.testing.assert_array_equal(np.concatenate([first.ids, second.ids], 1), whole.ids)
    assert second.next == whole.next


def test_a_span_that_leaves_the_chunk_is_refused():
    ids, spans = context([2, (1, 4, 4)])
    with pytest.raises(ValueError, match="takes tokens 2 to 6, but tokens 0 to 4 are free"):
        position_ids(ids[:4], spans, 2)


sides = st.integers(1, 5).map(lambda side: 2 * side)
grids = st.tuples(st.integers(1, 3), sides, sides)


@pytest.mark.parametrize("family", [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel])
@settings(max_examples=250, deadline=None)
@given(images=st.lists(st.tuples(grids, st.integers(1, 4)), max_size=5), before=st.integers(1, 6))
def test_positions_equal_transformers(family, images, before):
    layout = [before, *(item for image in images for item in image)]
    ids, spans = context(layout)
    found = position_ids(ids, spans, 2)
    holder = SimpleNamespace(
        config=SimpleNamespace(
            vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
        )
    )
    holder.get_vision_position_ids = lambda *arguments, **named: family.get_vision_position_ids(
        holder, *arguments, **named
    )
    tokens = torch.tensor(ids)[None]
    theirs, delta = family.get_rope_index(
        holder,
        tokens,
        (tokens == IMAGE).int(),
        image_grid_thw=torch.tensor([span.grid for span in spans]) if spans else None,
    )
    np.testing.assert_array_equal(found.ids, theirs[:, 0].numpy())
    if all(grid[0] <= max(grid[1:]) // 2 for grid, _ in images):
        assert found.next == len(ids) + delta.item()


def test_frequencies_are_dealt_to_axes_as_the_family_does():
    config = tiny.model(head_size=16, rope_sections=(4, 2, 2)).config.text
    np.testing.assert_array_equal(frequency_axes(config), [0, 1, 2, 0, 1, 2, 0, 0])
    config = tiny.model(head_size=16, rope_sections=(4, 2, 2), rope_interleaved=False).config.text
    np.testing.assert_array_equal(frequency_axes(config), [0, 0, 0, 0, 1, 1, 2, 2])


def test_patches_are_ordered_by_blocks():
    np.testing.assert_array_equal(
        patch_coordinates(2, 4, 2), [[0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3]]
    )
