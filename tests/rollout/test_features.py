from dataclasses import replace

import numpy as np
import pytest

from jaxagent.rollout.features import FeatureCache
from tests import tiny
from tests.rollout import fakes

KEYS = ["a", "b", "a:1", "b:1", "a:2"]


def cache(max_bytes: int = 2**20) -> FeatureCache:
    policy = tiny.policy().policy
    return FeatureCache(policy, fakes.images, image_rows=(4,), max_bytes=max_bytes)


def test_an_image_is_encoded_once_for_a_version():
    found = cache()
    params = tiny.policy().params
    first = found.features(params, [*KEYS, "a"], version=0)
    assert list(first) == KEYS
    assert found.num_encoded == 5
    again = found.features(params, ["b", "a"], version=0)
    assert found.num_encoded == 5
    np.testing.assert_array_equal(again["a"].tokens, first["a"].tokens)
    assert (first["a"].tokens != first["b"].tokens).any()
    found.features(params, ["a"], version=1)
    assert found.num_encoded == 6


def test_what_is_kept_stays_within_its_bytes():
    params = tiny.policy().params
    (one,) = cache().features(params, ["a"], version=0).values()
    small = cache(max_bytes=2 * one.num_bytes)
    for _ in range(3):
        assert list(small.features(params, KEYS, version=0)) == KEYS
        assert small.num_bytes <= 2 * one.num_bytes
    before = small.num_encoded
    small.features(params, KEYS[-2:], version=0)
    assert small.num_encoded == before, "the most recently used stay"


def test_an_image_without_pixels_is_named():
    with pytest.raises(KeyError, match="lost"):
        cache().grid("lost")


def test_ladders_and_slots_are_checked_at_the_door():
    for fields, message in (
        ({"rows": (8, 4)}, "rollout.rows is"),
        ({"chunk_lengths": ()}, "rollout.chunk_lengths is"),
        ({"slots": 5, "replicas": 2}, "must be a multiple of 2 replicas"),
        ({"context": 0}, "rollout.context is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(fakes.CONFIG, **fields)
