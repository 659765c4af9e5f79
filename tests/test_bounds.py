"""What the fields of a record may be."""

from types import SimpleNamespace

import pytest

from jaxagent.bounds import BELOW_1, POSITIVE, SHARE, Bound, at_least, check_numbers, check_words


@pytest.mark.parametrize(
    ("bound", "inside", "outside"),
    [
        (at_least(1), [1, 2], [0, -1]),
        (POSITIVE, [1e-9, 1], [0, -1]),
        (SHARE, [0, 0.5, 1], [-0.1, 1.1]),
        (BELOW_1, [0, 0.5], [-0.1, 1]),
    ],
)
def test_numbers_are_within_their_bound(bound: Bound, inside: list, outside: list):
    for value in inside:
        check_numbers(SimpleNamespace(a=value), "x", bound, "a")
    for value in [*outside, float("nan")]:
        with pytest.raises(ValueError, match=rf"x\.b is {value}; it must be {bound.words}\."):
            check_numbers(SimpleNamespace(a=inside[0], b=value), "x", bound, "a", "b")


def test_words_are_among_those_allowed():
    record = SimpleNamespace(a="yes", b="maybe")
    check_words(record, "x", a=("yes", "no"))
    with pytest.raises(ValueError, match=r"x\.b is 'maybe'; it is one of yes, no\."):
        check_words(record, "x", a=("yes", "no"), b=("yes", "no"))
