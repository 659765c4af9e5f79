"""The rule for flags that are the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxagent.data.drawings import Drawings
from jaxagent.data.factbook import Country
from jaxagent.data.lookalikes import same_flags

RED, BLUE, NEARLY_RED, GREEN = (200, 0, 0), (0, 0, 200), (190, 10, 0), (0, 200, 0)


class Painted(Drawings):
    """Flags of one colour each: `colours[artist][country]`."""

    def read(self, artist, entity):
        colours = {
            "base": {"aa": RED, "bb": NEARLY_RED, "cc": BLUE, "dd": GREEN},
            "query": {"aa": RED, "bb": BLUE, "cc": BLUE, "dd": GREEN},
        }
        pixels = np.full((16, 24, 4), 255, np.uint8)
        pixels[..., :3] = colours[artist][entity]
        return pixels


COUNTRIES = [
    Country(id=id, name=id, aliases=(), dependent=False, population=people, fields={})
    for id, people in (("aa", 5), ("bb", 50), ("cc", 500), ("dd", 1))
]
DRAWINGS = Painted(
    folder=Path(), base="base", artists=("base", "query"), entities=("aa", "bb", "cc", "dd")
)


def test_alike_by_one_artist_is_alike_and_the_larger_state_stays():
    # aa ~ bb by the base's artist, bb ~ cc by the query artist; people: aa < bb < cc.
    assert same_flags(DRAWINGS, COUNTRIES) == {"bb": "cc"}


def test_a_dependency_goes_before_a_state():
    countries = [replace(country, dependent=country.id == "cc") for country in COUNTRIES]
    assert same_flags(DRAWINGS, countries) == {"aa": "bb", "cc": "bb"}


def test_the_real_twins_are_found_and_different_flags_are_not(benchmark):
    assert benchmark.same_flag == {"ro": "td", "sj": "no"}
