"""Pytrees by path."""

import jax
import jax.numpy as jnp

from jaxagent.trees import first_match, flat, map_named, nested, num_parameters, size_table

TREE = {"text": {"layers": {"kernel": jnp.zeros((2, 3))}, "scale": jnp.ones(4)}}


def test_nesting_undoes_flattening():
    assert list(flat(TREE)) == ["text/layers/kernel", "text/scale"]
    assert jax.tree.structure(nested(flat(TREE))) == jax.tree.structure(TREE)


def test_leaves_are_mapped_with_their_names():
    named = map_named(lambda name, leaf: f"{name} {leaf.ndim}", TREE)
    assert named == {
        "text": {"layers": {"kernel": "text/layers/kernel 2"}, "scale": "text/scale 1"}
    }


def test_the_first_rule_that_matches_wins():
    rules = [("layers/.*kernel$", 1), ("kernel", 2), ("^text", 3)]
    assert first_match(rules, "text/layers/kernel") == ("layers/.*kernel$", 1)
    assert first_match(rules, "text/scale") == ("^text", 3)
    assert first_match(rules, "vision/scale") is None


def test_the_size_table_counts_every_number():
    assert num_parameters(TREE) == 10
    assert size_table(TREE).splitlines() == [
        "text/layers/kernel  (2, 3)  float32   6",
        "text/scale          (4,)    float32   4",
        "total                                10",
    ]
