"""Pytrees by path: flat names, first-match rules, a size table.

A parameter's name is its path joined by `/`, as in `text/layers/attention/q/kernel`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

Params = dict[str, Any]
"""Nested dictionaries of arrays (or of shapes, or of shardings)."""


def flat(tree: Params) -> dict[str, Any]:
    """`{"a/b/c": leaf}` in sorted order of the names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def nested(named: Mapping[str, Any]) -> Params:
    """The nested dictionaries that `flat` flattens."""
    tree: Params = {}
    for name, leaf in named.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def map_named(function: Callable[[str, Any], Any], tree: Params) -> Params:
    """The tree of `function(name, leaf)`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(jax.tree_util.keystr(path, simple=True, separator="/"), leaf),
        tree,
    )


def first_match(rules: Iterable[tuple[str, Any]], name: str) -> tuple[str, Any] | None:
    """The first (pattern, value) whose regular expression is found in `name`, or None."""
    return next((rule for rule in rules if re.search(rule[0], name)), None)


def num_parameters(tree: Params) -> int:
    """How many numbers the leaves hold together."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def size_table(tree: Params) -> str:
    """One line a parameter: name, shape, dtype and count, with the total last."""
    rows = [
        (name, str(tuple(leaf.shape)), str(leaf.dtype), f"{math.prod(leaf.shape):,}")
        for name, leaf in flat(tree).items()
    ]
    rows.append(("total", "", "", f"{num_parameters(tree):,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {dtype:<{widths[2]}}  {count:>{widths[3]}}"
        for name, shape, dtype, count in rows
    )
