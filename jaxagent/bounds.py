"""What the fields of a record may be, told in one way: their name, their value, what is allowed."""

from collections.abc import Callable, Collection
from typing import NamedTuple


class Bound(NamedTuple):
    """What a number must be; no bound holds for NaN."""

    words: str
    holds: Callable[[float], bool]


def at_least(least: int) -> Bound:
    return Bound(f"at least {least}", lambda value: value >= least)


POSITIVE = Bound("above 0", lambda value: value > 0)
SHARE = Bound("from 0 to 1", lambda value: 0 <= value <= 1)
BELOW_1 = Bound("from 0 up to below 1", lambda value: 0 <= value < 1)


def check_numbers(record: object, group: str, bound: Bound, *names: str) -> None:
    """Raises ValueError for the first of the record's fields that is out of the bound."""
    for name in names:
        if not bound.holds(value := getattr(record, name)):
            raise ValueError(f"{group}.{name} is {value}; it must be {bound.words}.")


def check_words(record: object, group: str, **allowed: Collection[str]) -> None:
    """Raises ValueError for the first of the record's fields that is none of its words."""
    for name, words in allowed.items():
        if (value := getattr(record, name)) not in words:
            raise ValueError(f"{group}.{name} is {value!r}; it is one of {', '.join(words)}.")
