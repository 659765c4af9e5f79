"""Questions about the countries behind flags: single-hop, over a bridge, and comparing two images.

    single    [view of Chad]            What is the capital of this country?        -> N'Djamena
    bridge    [view of Chad]            Take the country with which this country
                                        shares its longest land border. What is
                                        the capital of that country?                -> Khartoum
    compare   [view of Chad] [of Peru]  Which of these two countries has the
                                        larger total area?                          -> Peru or Chad

A row is kept only when its first answer stands literally in its evidence passage as the base shows
it (clipped), and a bridge only when the whole list of neighbours stands there. Numerical answers
carry InfoSeek's range of +-10 %. Pairs of numbers lie at least 10 % apart, pairs of years at least
two years.

Splits. Entities are dealt to train, val and test. Validation and test entities make the "unseen
entity" splits: training asks nothing about them, shows no view of them and bridges to none of them.
Nor does validation bridge to a test entity; a test question may bridge to one of validation.
A share of the training entities' FACTS makes the "unseen question" splits: a fact (country,
relation) belongs to one split in whatever family it is asked, so that no answer is learnt in one
form and asked in another; comparisons of facts of different splits are dropped. Each split but
train has its own wordings, and each has views of its own.

Rows come in random order, so that the first n of a split are a fair sample of it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from jaxagent.data.config import SEEDS_PER_SPLIT, FlagsConfig
from jaxagent.data.factbook import Country, country_by_name, name_key, passage_id
from jaxagent.data.relations import (
    BORDERS_FIELD,
    BRIDGES,
    COMPARED,
    COMPARED_ELSEWHERE,
    RELATIONS,
    Bridge,
    Relation,
)
from jaxagent.data.views import is_ambiguous, view_key
from jaxagent.types import Passage, Question, Split

TOLERANCE = 0.1
MIN_YEARS_APART = 2
SPLITS: tuple[Split, ...] = (
    "train",
    "val_unseen_question",
    "val_unseen_entity",
    "unseen_question",
    "unseen_entity",
)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What a relation says of a country: the answers that count and the passage they stand in."""

    country: str
    relation: Relation
    answers: tuple[str, ...]
    passage: str

    @property
    def value(self) -> float:
        """The number that a comparison compares."""
        return float(self.answers[0].replace(",", ""))


def entity_splits(countries: Sequence[str], config: FlagsConfig) -> Mapping[str, Split]:
    """The split of each entity, dealt by rank of a hash: one country more moves few others."""
    ranked = sorted(countries, key=lambda country: _share(config.seed, "entity", country))
    test, val = config.test_entities, config.val_entities
    if test + val >= len(ranked):
        raise ValueError(
            f"{test} test and {val} validation entities leave none of {len(ranked)} for training. "
            "Lower data.flags.test_entities or data.flags.val_entities."
        )
    return {
        country: "unseen_entity"
        if rank < test
        else "val_unseen_entity"
        if rank < test + val
        else "train"
        for rank, country in enumerate(ranked)
    }


def known_facts(countries: Sequence[Country], passages: Mapping[str, Passage]) -> tuple[Fact, ...]:
    """The facts whose first answer stands literally in their passage."""
    facts = []
    for country in countries:
        for relation in RELATIONS.values():
            answers = relation.read(country.fields.get(relation.field, ""))
            passage = passages.get(passage_id(country.id, relation.field))
            if answers and passage and answers[0] in passage.text:
                facts.append(
                    Fact(country=country.id, relation=relation, answers=answers, passage=passage.id)
                )
    return tuple(facts)


def neighbours(
    countries: Sequence[Country], passages: Mapping[str, Passage]
) -> Mapping[tuple[str, str], str]:
    """(country, bridge) -> neighbour, where the passage names all and one border alone is longest.

    A country with one neighbour has a longest border and no shortest.
    """
    ids = country_by_name(countries)
    found = {}
    for country in countries:
        text = country.fields.get(BORDERS_FIELD, "")
        passage = passages.get(passage_id(country.id, BORDERS_FIELD))
        if passage is None or not passage.text.endswith(text):
            continue
        rows = re.findall(r"\s*([^;]+?) ([\d,.]+) km", re.sub(r"\([^)]*\)", "", text))
        borders = sorted((float(km.replace(",", "")), name) for name, km in rows)
        for bridge in BRIDGES:
            ends = borders[::-1] if bridge.longest else borders
            if len(ends) < (1 if bridge.longest else 2):
                continue
            if len(ends) > 1 and ends[0][0] == ends[1][0]:
                continue
            neighbour = ids.get(name_key(ends[0][1]))
            if neighbour and neighbour != country.id:
                found[country.id, bridge.name] = neighbour
    return found


def make_questions(
    countries: Sequence[Country],
    passages: Mapping[str, Passage],
    config: FlagsConfig,
    splits: Mapping[str, Split],
) -> tuple[Question, ...]:
    """All rows of the benchmark about entities that have a split, in random order.

    Args:
        passages: by id.
        splits: as `entity_splits` deals them; a country without one is asked about only over
            bridges.
    """
    facts = known_facts(countries, passages)
    names = {country.id: country for country in countries}
    rows: list[Question] = []
    if "single" in config.families:
        rows += _single(facts, config, splits)
    if "bridge" in config.families:
        rows += _bridges(facts, neighbours(countries, passages), config, splits)
    if "compare" in config.families:
        rows += _comparisons(facts, names, config, splits)
    return tuple(sorted(rows, key=lambda row: _share(config.seed, "order", row.data_id)))


def _single(
    facts: Sequence[Fact], config: FlagsConfig, splits: Mapping[str, Split]
) -> Iterator[Question]:
    for fact in facts:
        if fact.country not in splits:
            continue
        split = _fact_split(fact, splits[fact.country], config)
        data_id = f"flags-single-{fact.country}-{fact.relation.name}"
        wordings = fact.relation.asked if split == "train" else fact.relation.asked_elsewhere
        yield _row(
            Question(
                data_id=data_id,
                images=(_view(fact.country, split, data_id, config),),
                text=_chosen(wordings, config.seed, data_id).format(c="this country"),
                kind=fact.relation.kind,
                family="single",
                answers=fact.answers,
                entities=(fact.country,),
                relation=fact.relation.name,
                evidence=(fact.passage,),
                split=split,
            )
        )


def _bridges(
    facts: Sequence[Fact],
    over: Mapping[tuple[str, str], str],
    config: FlagsConfig,
    splits: Mapping[str, Split],
) -> Iterator[Question]:
    by_country: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.relation.bridged:
            by_country.setdefault(fact.country, []).append(fact)
    bridges = {bridge.name: bridge for bridge in BRIDGES}
    for (country, name), neighbour in over.items():
        split = splits.get(country)
        if split is None or split == "train" and splits.get(neighbour) != "train":
            continue
        if split == "val_unseen_entity" and splits.get(neighbour) == "unseen_entity":
            continue
        for fact in by_country.get(neighbour, ()):
            yield _bridge(bridges[name], country, fact, _fact_split(fact, split, config), config)


def _bridge(
    bridge: Bridge, country: str, fact: Fact, split: Split, config: FlagsConfig
) -> Question:
    data_id = f"flags-bridge-{country}-{bridge.name}-{fact.country}-{fact.relation.name}"
    trained = split == "train"
    first = _chosen(bridge.asked if trained else bridge.asked_elsewhere, config.seed, data_id)
    second = fact.relation.asked if trained else fact.relation.asked_elsewhere
    second = _chosen(second, config.seed, data_id + "2").format(c="that country")
    return _row(
        Question(
            data_id=data_id,
            images=(_view(country, split, data_id, config),),
            text=f"{first} {second}",
            kind=fact.relation.kind,
            family="bridge",
            answers=fact.answers,
            entities=(country,),
            relation=f"{bridge.name}.{fact.relation.name}",
            evidence=(passage_id(country, BORDERS_FIELD), fact.passage),
            split=split,
        )
    )


def _comparisons(
    facts: Sequence[Fact],
    names: Mapping[str, Country],
    config: FlagsConfig,
    splits: Mapping[str, Split],
) -> Iterator[Question]:
    groups: dict[tuple[str, Split], list[Fact]] = {}
    for fact in facts:
        if fact.relation.larger and fact.country in splits:
            split = _fact_split(fact, splits[fact.country], config)
            groups.setdefault((fact.relation.name, split), []).append(fact)
    shares = {  # of `pairs[1]`, half of it for test entities
        "val_unseen_question": 0.1,
        "val_unseen_entity": 0.1,
        "unseen_question": 0.3,
        "unseen_entity": 0.5,
    }
    for (relation, split), group in groups.items():
        train, others = config.pairs
        wanted = train if split == "train" else round(others * shares[split])
        pairs = _distant_pairs(group)
        rng = np.random.default_rng(_hash(config.seed, "pairs", relation, split))
        for pair in rng.permutation(pairs)[:wanted]:
            first, second = rng.permutation(pair)
            yield _comparison(group[first], group[second], names, split, config)


def _comparison(
    first: Fact, second: Fact, names: Mapping[str, Country], split: Split, config: FlagsConfig
) -> Question:
    relation = first.relation
    data_id = f"flags-compare-{first.country}-{second.country}-{relation.name}"
    winner = names[max(first, second, key=lambda fact: fact.value).country]
    wording = _chosen(COMPARED if split == "train" else COMPARED_ELSEWHERE, config.seed, data_id)
    return _row(
        Question(
            data_id=data_id,
            images=tuple(
                _view(fact.country, split, f"{data_id}-{fact.country}", config)
                for fact in (first, second)
            ),
            text=wording.format(larger=relation.larger),
            kind="String",
            family="compare",
            answers=(winner.name, *winner.aliases),
            entities=(first.country, second.country),
            relation=relation.name,
            evidence=(first.passage, second.passage),
            split=split,
        )
    )


def _row(question: Question) -> Question:
    """The question with its numerical range and with what its views leave out."""
    ambiguous = any(is_ambiguous(key) for key in question.images)
    if question.kind != "Numerical":
        return replace(question, ambiguous=ambiguous)
    value = float(question.answers[0].replace(",", ""))
    span = (round(value * (1 - TOLERANCE), 6), round(value * (1 + TOLERANCE), 6))
    return replace(question, ambiguous=ambiguous, answer_range=span)


def _fact_split(fact: Fact, split: Split, config: FlagsConfig) -> Split:
    """Where a question about the fact belongs when its image's entity is of `split`."""
    if split != "train":
        return split
    share = _share(config.seed, "fact", fact.country, fact.relation.name)
    if share < config.test_facts:
        return "unseen_question"
    return "val_unseen_question" if share < config.test_facts + config.val_facts else "train"


def _distant_pairs(facts: Sequence[Fact]) -> Int[np.ndarray, "g 2"]:
    """Places of the pairs whose larger fact can be told without splitting hairs."""
    values = np.array([fact.value for fact in facts])
    low = np.minimum(values[:, None], values[None, :])
    high = np.maximum(values[:, None], values[None, :])
    if facts[0].relation.kind == "Time":
        distant = high - low >= MIN_YEARS_APART
    else:
        distant = low < (1 - TOLERANCE) * high
    return np.argwhere(np.triu(distant, 1))


def _view(country: str, split: Split, data_id: str, config: FlagsConfig) -> str:
    """One of the entity's views in the split."""
    number = _hash(config.seed, "view", data_id) % config.views
    return entity_view(country, SPLITS.index(split) * SEEDS_PER_SPLIT + number, config)


def entity_view(country: str, seed: int, config: FlagsConfig) -> str:
    """The key of an entity's view number `seed`; the number fixes artist and level by the mix."""
    ends = np.cumsum([share for *_, share in config.mix])
    row = int(np.searchsorted(ends[:-1], _share(config.seed, "level", country, seed), side="right"))
    artist, level, _ = config.mix[row]
    return view_key(country, artist, level, seed)


def entity_views(country: str, split: Split, config: FlagsConfig) -> tuple[str, ...]:
    """The keys of all views of an entity that the questions of a split may show."""
    first = SPLITS.index(split) * SEEDS_PER_SPLIT
    return tuple(entity_view(country, first + number, config) for number in range(config.views))


def _chosen(wordings: Sequence[str], *parts: object) -> str:
    return wordings[_hash(*parts) % len(wordings)]


def _hash(*parts: object) -> int:
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def _share(*parts: object) -> float:
    """A number of [0, 1) fixed by the parts."""
    return _hash(*parts) / 2**64
