"""What the flags benchmark is made of; every number that its builder reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from jaxagent.bounds import at_least, check_numbers
from jaxagent.data.drawings import ARTISTS
from jaxagent.data.views import LEVELS
from jaxagent.suggestions import did_you_mean
from jaxagent.types import Family

SEEDS_PER_SPLIT = 1000
"""Views of an entity are numbered, and each split takes its numbers from a range of this size."""


def check_levels(levels: Sequence[str], name: str) -> None:
    """Raises ValueError when there is no level, or one that no view can have."""
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise ValueError(f"{name} holds {unknown[0]!r}. {did_you_mean(unknown[0], LEVELS)}")
    if not levels:
        raise ValueError(f"{name} is (); give at least one of {', '.join(LEVELS)}.")


def check_views(views: int, name: str) -> None:
    """Raises ValueError when views numbered from 0 are none, or meet those of another split."""
    if not 1 <= views <= SEEDS_PER_SPLIT:
        raise ValueError(
            f"{name} is {views}; it must be 1 to {SEEDS_PER_SPLIT}, so that no two splits share a "
            "view."
        )


@dataclass(frozen=True, kw_only=True)
class FlagsConfig:
    """The benchmark's choices; the same config and packages give the same benchmark.

    Attributes:
        base, query: artists of the base images and of the query images, two different ones.
        mix: (artist, level, share) of the query views; shares sum to 1.
        views: different query views of an entity, others in each split; at most 1,000.
        flag_text: the section that describes the flag in words is "left_out" of text search, or
            "included".
        max_words: words of a passage; a longer field is cut at the last whole item.
        val_entities, test_entities: entities that training never asks about.
        val_facts, test_facts: shares of the training entities' facts kept for the "unseen question"
            splits; together less than 1.
        families: kinds of questions made.
        pairs: two-image comparisons for each relation, in training and in all other splits
            together.
        countries: ISO codes of the only countries used; () = all. For tests and first looks.
        seed: of the splits, wordings, views and pairs.
    """

    base: str = "openmoji"
    query: str = "twemoji"
    mix: tuple[tuple[str, str, float], ...] = (
        ("twemoji", "L1", 0.25),
        ("twemoji", "L2", 0.5),
        ("twemoji", "L3", 0.25),
    )
    views: int = 48
    flag_text: Literal["left_out", "included"] = "left_out"
    max_words: int = 18
    val_entities: int = 36
    test_entities: int = 58
    val_facts: float = 0.08
    test_facts: float = 0.16
    families: tuple[Family, ...] = ("single", "bridge", "compare")
    pairs: tuple[int, int] = (60, 40)
    countries: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("base", "query"):
            if (value := getattr(self, name)) not in ARTISTS:
                raise ValueError(
                    f"data.flags.{name} is {value!r}, no artist of flags. "
                    f"{did_you_mean(value, ARTISTS)}"
                )
        if self.base == self.query:
            raise ValueError(
                f"data.flags.base and query are both {self.base!r}, so each query would be in the "
                f"base. Choose two of {', '.join(ARTISTS)}."
            )
        check_views(self.views, "data.flags.views")
        check_numbers(self, "data.flags", at_least(1), "max_words")
        check_numbers(self, "data.flags", at_least(0), "val_entities", "test_entities", "seed")
        if min(self.pairs) < 0:
            raise ValueError(f"data.flags.pairs is {self.pairs}; both must be at least 0.")
        if min(self.val_facts, self.test_facts) < 0 or self.val_facts + self.test_facts >= 1:
            raise ValueError(
                f"data.flags.val_facts and test_facts are {self.val_facts} and {self.test_facts}; "
                "both must be at least 0, and sum to less than 1: the rest is trained on."
            )
        for artist, level, share in self.mix:
            if level not in LEVELS or artist not in ARTISTS or share <= 0:
                raise ValueError(
                    f"{(artist, level, share)} in the mix of views is not (artist, level, share). "
                    f"Artists are {', '.join(ARTISTS)}, levels {', '.join(LEVELS)}, shares above 0."
                )
            if artist == self.base:
                raise ValueError(
                    f"The mix of views draws queries from {artist!r}, the artist of the base "
                    f"images. Use {self.query!r}, or another base."
                )
        total = sum(share for *_, share in self.mix)
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"The shares in the mix of views sum to {total:g}. Make them sum to 1."
            )

    def as_json(self) -> dict:
        """The config as it stands in a benchmark's header; tuples are lists, as JSON has them."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, fields: Mapping) -> "FlagsConfig":
        """The config that `as_json` gave."""
        tuples = {"mix": tuple(tuple(row) for row in fields["mix"])}
        tuples |= {name: tuple(fields[name]) for name in ("families", "pairs", "countries")}
        return cls(**{**fields, **tuples})
