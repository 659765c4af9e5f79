"""Which countries fly the same flag, measured on the drawings.

Two flags are the same when, in the drawing of at least ONE of the two artists, no cell of a 24 x 16
grid differs by more than `MAX_DIFFERENCE` of 255 in any colour. One artist is enough: where the
base's drawings are alike no search can choose, and where the query artist's are, no eye can. Rule:
going through sovereign states from the one with most people down, then through dependencies, a
country whose flag is the same as one that stays is left out of the benchmark, image, passages and
questions alike.

That takes out territories under their sovereign's flag (Bouvet Island and Svalbard: Norway; Saint
Martin: France; Heard Island: Australia) and the near-identical pairs of states (Monaco and
Indonesia, Chad and Romania, which one of the artists draws with the same colours). Flags with a
small emblem or a different star (Jordan and the West Bank, Australia and New Zealand) stay: they
are the hard cases.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from PIL import Image

from jaxagent.data.drawings import DrawingPixels, Drawings
from jaxagent.data.factbook import Country
from jaxagent.data.views import on_ground

MAX_DIFFERENCE = 40
GRID = (24, 16)


def cells(drawing: DrawingPixels) -> Int[np.ndarray, " p"]:
    """The drawing's colours averaged over the grid's cells."""
    small = Image.fromarray(on_ground(drawing)).resize(GRID, Image.Resampling.BOX)
    return np.asarray(small, np.int16).ravel()


def same_flags(drawings: Drawings, countries: Sequence[Country]) -> Mapping[str, str]:
    """Left-out entity -> the entity that stays for it."""
    order = [c.id for c in sorted(countries, key=_precedence) if c.id in set(drawings.entities)]
    stay: list[str] = []
    grids: list[Int[np.ndarray, "a p"]] = []
    left_out = {}
    for country in order:
        grid = np.stack([cells(drawings.read(artist, country)) for artist in drawings.artists])
        largest = [int(np.abs(grid - other).max(1).min()) for other in grids]
        twins = [
            one for one, distance in zip(stay, largest, strict=True) if distance <= MAX_DIFFERENCE
        ]
        if twins:
            left_out[country] = twins[0]
        else:
            stay.append(country)
            grids.append(grid)
    return left_out


def _precedence(country: Country) -> tuple[bool, int, str]:
    return (country.dependent, -country.population, country.id)
