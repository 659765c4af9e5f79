"""Config groups become frozen records: the same fields, checked types."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from ml_collections import ConfigDict

from jaxagent.cli.errors import UserError
from jaxagent.cli.records import allowed, record


@dataclass(frozen=True, kw_only=True)
class Inner:
    word: Literal["left", "right"] = "left"


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: int = 1
    pair: tuple[int, int] = (1, 2)
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    words: tuple[Literal["left", "right"], ...] = ()

    def __post_init__(self):
        if self.size < 0:
            raise ValueError(f"size is {self.size}; it must be at least 0.")


def config(**changes) -> ConfigDict:
    fields = {
        "size": 3, "pair": (4, 5), "sizes": (6,), "inner": {"word": "right"}, "words": ("left",)
    }  # fmt: skip
    return ConfigDict({"outer": fields | changes})


def test_a_group_becomes_its_record():
    made = record(Outer, config(), "outer")
    assert made == Outer(
        size=3, pair=(4, 5), sizes=(6,), inner=Inner(word="right"), words=("left",)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inner": {"word": "rihgt"}}, r"config.outer.inner.word is 'rihgt'. Did you mean 'right'"),
        ({"words": ("right", "lfet")}, r"config.outer.words is .*Did you mean 'left'"),
        ({"pair": (1, 2, 3)}, r"config.outer.pair is \(1, 2, 3\)"),
        ({"size": "3"}, r"config.outer.size is '3'. Its type is int"),
        ({"size": True}, r"config.outer.size is True. Its type is int"),
        ({"size": -1}, r"size is -1; it must be at least 0"),
    ],
)
def test_a_misfit_is_refused_by_name(changes, said):
    with pytest.raises(UserError, match=said):
        record(Outer, config(**changes), "outer")


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, float, True),
        (1.5, int, False),
        ((1, 2), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        ((("a", 1.0),), tuple[tuple[str, float], ...], True),
        ("b", Literal["a", "b"], True),
    ],
)
def test_a_type_is_checked_to_the_items(value, hint, fits):
    assert allowed(value, hint) is fits
