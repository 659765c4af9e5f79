"""What is asked about a country: 28 relations, how each is read off its field and how it is asked.

Wordings: `asked` are the paraphrases of training, `asked_elsewhere` those of validation and test,
which training never shows. "{c}" is the country: "this country" or, over a bridge, "that country".

A bridging question's relation names both steps, `longest_border.capital`.

Left out on purpose: what one answer gets right for a third of all countries or more (whom a country
became independent from: the UK; its life expectancy and internet users, where +-10 % is wide; since
when its ruler rules), and what can be argued about (climate, lowest point, type of government).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxagent.data import answers as read
from jaxagent.data.factbook import field_labels
from jaxagent.types import AnswerKind


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A property of a country that questions ask for.

    Attributes:
        field: the Factbook's field it is read from.
        read: the answers that count, from that field's text; none where the text is doubtful.
        larger: how a comparison asks for the country with more of it, "" where none is made.
        bridged: whether it is also asked about a neighbour.
    """

    name: str
    field: str
    kind: AnswerKind
    read: Callable[[str], tuple[str, ...]]
    asked: tuple[str, ...]
    asked_elsewhere: tuple[str, ...]
    larger: str = ""
    bridged: bool = False


# fmt: off
_TABLE = (
    Relation(
        name="capital", field="capital", kind="String", read=read.first_item,
        bridged=True,
        asked=("What is the capital of {c}?", "Which city is the capital of {c}?",
            "What is the name of {c}'s capital?",),
        asked_elsewhere=("Name the capital city of {c}.",
            "Which town serves as the capital of {c}?",),
    ),
    Relation(
        name="anthem", field="anthem", kind="String", read=read.quoted_title,
        bridged=True,
        asked=("What is the title of the national anthem of {c}?",
            "What is the national anthem of {c} called?",
            "Which song is the national anthem of {c}?",),
        asked_elsewhere=("Name {c}'s national anthem.",
            "By what title is the anthem of {c} known?",),
    ),
    Relation(
        name="symbol", field="symbol", kind="String", read=read.every_item,
        bridged=True,
        asked=("What is the national symbol of {c}?", "Which national symbol does {c} have?",
            "What stands as the national symbol of {c}?",),
        asked_elsewhere=("Name {c}'s national symbol.",
            "What is used as the national symbol by {c}?",),
    ),
    Relation(
        name="highest_point", field="highest_point", kind="String", read=read.peak,
        bridged=True,
        asked=("What is the highest point of {c}?", "Which peak is the highest point of {c}?",
            "What is the name of the highest point in {c}?",),
        asked_elsewhere=("Name the highest elevation in {c}.",
            "Which place is {c}'s highest point?",),
    ),
    Relation(
        name="legislature", field="legislature", kind="String", read=read.name_and_translation,
        asked=("What is the name of the legislature of {c}?",
            "What is the legislature of {c} called?", "Which body is the legislature of {c}?",),
        asked_elsewhere=("Name {c}'s legislature.", "How is the parliament of {c} named?",),
    ),
    Relation(
        name="currency", field="currency", kind="String", read=read.currency,
        bridged=True,
        asked=("Which currency is used in {c}?", "What is the currency of {c}?",
            "In which currency does one pay in {c}?",),
        asked_elsewhere=("Name {c}'s currency.", "What money is in use in {c}?",),
    ),
    Relation(
        name="demonym", field="people", kind="String", read=read.demonym,
        asked=("What is a person from {c} called?", "What are the people of {c} called?",
            "What is the nationality of people from {c}?",),
        asked_elsewhere=("How does one call an inhabitant of {c}?",
            "Give the noun for a national of {c}.",),
    ),
    Relation(
        name="largest_city", field="cities", kind="String", read=read.largest_city,
        asked=("What is the largest city of {c}?",
            "Which city is the largest urban area of {c}?",
            "Which urban area of {c} has the most people?",),
        asked_elsewhere=("Name {c}'s biggest city.", "In which city of {c} do most people live?",),
    ),
    Relation(
        name="top_export", field="exports", kind="String", read=read.first_item,
        asked=("What is the top export commodity of {c}?",
            "Which commodity does {c} export most?", "What is the main export of {c}?",),
        asked_elsewhere=("Name {c}'s leading export commodity.",
            "Which good comes first among the exports of {c}?",),
    ),
    Relation(
        name="top_crop", field="crops", kind="String", read=read.first_item,
        asked=("What is the top agricultural product of {c}?",
            "Which agricultural product of {c} comes first?",
            "What is the main agricultural product of {c}?",),
        asked_elsewhere=("Name {c}'s leading agricultural product.",
            "What do the farms of {c} produce most?",),
    ),
    Relation(
        name="independence_year", field="independence", kind="Time", read=read.only_year,
        bridged=True,
        asked=("In which year did {c} become independent?", "When did {c} gain independence?",
            "In what year was the independence of {c}?",),
        asked_elsewhere=("Since which year has {c} been independent?",
            "Give the year of {c}'s independence.",),
        larger="became independent later",
    ),
    Relation(
        name="holiday", field="holiday", kind="Time", read=read.only_date,
        bridged=True,
        asked=("On which date is the national holiday of {c}?",
            "When is the national holiday of {c} celebrated?",
            "What is the date of the national holiday of {c}?",),
        asked_elsewhere=("On what day does {c} celebrate its national holiday?",
            "Give the date of {c}'s national holiday.",),
    ),
    Relation(
        name="constitution_year", field="constitution", kind="Time", read=read.latest_year,
        asked=("In which year was the latest constitution of {c} adopted?",
            "When was the current constitution of {c} adopted?",
            "From which year is the constitution of {c}?",),
        asked_elsewhere=("Give the year of {c}'s constitution.",
            "What year does the constitution of {c} date from?",),
        larger="has the newer constitution",
    ),
    Relation(
        name="anthem_year", field="anthem_history", kind="Time", read=read.adopted_year,
        asked=("In which year was the national anthem of {c} adopted?",
            "When did {c} adopt its national anthem?",
            "Since which year has {c} had its national anthem?",),
        asked_elsewhere=("Give the year in which {c}'s anthem was adopted.",
            "What year did the anthem of {c} become official?",),
    ),
    Relation(
        name="area", field="area", kind="Numerical", read=read.leading_number,
        bridged=True,
        asked=("What is the total area of {c} in square kilometres?",
            "How large is {c} in square kilometres?",
            "How many square kilometres does {c} cover in total?",),
        asked_elsewhere=("Give {c}'s total area in square kilometres.",
            "What is the size of {c}, in square kilometres?",),
        larger="has the larger total area",
    ),
    Relation(
        name="land_area", field="land_area", kind="Numerical", read=read.leading_number,
        asked=("What is the land area of {c} in square kilometres?",
            "How large is the land of {c} in square kilometres, without water?",
            "How many square kilometres of land does {c} have?",),
        asked_elsewhere=("Give {c}'s land area in square kilometres.",
            "What area of {c} is land, in square kilometres?",),
        larger="has the larger land area",
    ),
    Relation(
        name="coastline", field="coastline", kind="Numerical", read=read.leading_number,
        bridged=True,
        asked=("How long is the coastline of {c} in kilometres?",
            "What is the length of the coastline of {c} in kilometres?",
            "How many kilometres of coastline does {c} have?",),
        asked_elsewhere=("Give the length of {c}'s coast in kilometres.",
            "How many kilometres does the coast of {c} measure?",),
        larger="has the longer coastline",
    ),
    Relation(
        name="highest_metres", field="highest_point", kind="Numerical", read=read.metres,
        bridged=True,
        asked=("How high is the highest point of {c} in metres?",
            "What is the height of the highest point of {c} in metres?",
            "How many metres high is the highest point in {c}?",),
        asked_elsewhere=("Give the elevation of {c}'s highest point in metres.",
            "To how many metres does {c} rise at its highest point?",),
        larger="has the higher highest point",
    ),
    Relation(
        name="elevation", field="elevation", kind="Numerical", read=read.leading_number,
        asked=("What is the mean elevation of {c} in metres?",
            "How high is {c} on average, in metres?",
            "How many metres is the mean elevation of {c}?",),
        asked_elsewhere=("Give {c}'s mean elevation in metres.",
            "What is the average height of the land in {c}, in metres?",),
        larger="has the higher mean elevation",
    ),
    Relation(
        name="boundaries", field="boundaries", kind="Numerical", read=read.leading_number,
        asked=("How long are the land boundaries of {c} in kilometres?",
            "What is the total length of the land boundaries of {c} in kilometres?",
            "How many kilometres of land boundaries does {c} have?",),
        asked_elsewhere=("Give the total length of {c}'s land boundaries in kilometres.",
            "How many kilometres do the land borders of {c} measure?",),
        larger="has the longer land boundaries",
    ),
    Relation(
        name="population", field="population", kind="Numerical", read=read.leading_number,
        bridged=True,
        asked=("What is the population of {c}?", "How many people live in {c}?",
            "How large is the population of {c}?",),
        asked_elsewhere=("Give {c}'s population.", "How many inhabitants does {c} have?",),
        larger="has the larger population",
    ),
    Relation(
        name="median_age", field="median_age", kind="Numerical", read=read.leading_number,
        bridged=True,
        asked=("What is the median age in {c}, in years?",
            "How old, in years, is the median person in {c}?",
            "What median age do the people of {c} have, in years?",),
        asked_elsewhere=("Give {c}'s median age in years.",
            "At how many years lies the median age of {c}?",),
        larger="has the higher median age",
    ),
    Relation(
        name="fertility", field="fertility", kind="Numerical", read=read.leading_number,
        asked=("What is the total fertility rate of {c}?",
            "How many children are born to a woman in {c}?",
            "What is the fertility rate of {c}, in children a woman?",),
        asked_elsewhere=("Give {c}'s total fertility rate.",
            "How many children does a woman in {c} have on average?",),
        larger="has the higher total fertility rate",
    ),
    Relation(
        name="urban", field="urban", kind="Numerical", read=read.leading_number,
        asked=("What percentage of the population of {c} is urban?",
            "How many percent of the people of {c} live in cities?",
            "What share of the population of {c} is urban, in percent?",),
        asked_elsewhere=("Give {c}'s urban population in percent.",
            "How urban is the population of {c}, in percent?",),
        larger="has the larger share of urban population",
    ),
    Relation(
        name="airports", field="airports", kind="Numerical", read=read.leading_number,
        asked=("How many airports does {c} have?", "What is the number of airports in {c}?",
            "How many airports are there in {c}?",),
        asked_elsewhere=("Give the number of {c}'s airports.",
            "How many airports can one count in {c}?",),
        larger="has more airports",
    ),
    Relation(
        name="railways", field="railways", kind="Numerical", read=read.leading_number,
        asked=("How long are the railways of {c} in kilometres?",
            "What is the total length of the railways of {c} in kilometres?",
            "How many kilometres of railways does {c} have?",),
        asked_elsewhere=("Give the length of {c}'s railways in kilometres.",
            "How many kilometres does the rail network of {c} measure?",),
        larger="has the longer railways",
    ),
    Relation(
        name="birth_rate", field="birth_rate", kind="Numerical", read=read.leading_number,
        asked=("What is the birth rate of {c}, per 1,000 people?",
            "How many births does {c} have per 1,000 people?",
            "How high is the birth rate of {c}, per 1,000 people?",),
        asked_elsewhere=("Give {c}'s birth rate per 1,000 people.",
            "How many children are born in {c} per 1,000 people?",),
        larger="has the higher birth rate",
    ),
    Relation(
        name="forest", field="forest", kind="Numerical", read=read.leading_number,
        asked=("What percentage of the land of {c} is forest?",
            "How many percent of the land of {c} are forest?",
            "What share of the land of {c} is forest, in percent?",),
        asked_elsewhere=("Give {c}'s forest land in percent.",
            "How much of the land of {c} is covered by forest, in percent?",),
        larger="has the larger share of forest land",
    ),
)
# fmt: on
RELATIONS: Mapping[str, Relation] = {relation.name: relation for relation in _TABLE}


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """A step to a neighbour, the one with the longest or the shortest common border.

    The wordings go before the question about "that country".
    """

    name: str
    longest: bool
    asked: tuple[str, ...]
    asked_elsewhere: tuple[str, ...]


BORDERS_FIELD = "borders"
BRIDGES: tuple[Bridge, ...] = tuple(
    Bridge(
        name=f"{length}_border",
        longest=length == "longest",
        asked=(
            f"This country has its {length} land border with another country.",
            f"Take the country with which this country shares its {length} land border.",
            f"One neighbour has the {length} land border with this country.",
        ),
        asked_elsewhere=(
            f"Think of the neighbour at the {length} land border of this country.",
            f"Of its neighbours, this country has the {length} common border with one.",
        ),
    )
    for length in ("longest", "shortest")
)
COMPARED: tuple[str, ...] = (
    "Which of these two countries {larger}?",
    "Of the two countries whose flags are shown, which one {larger}?",
    "Which country {larger}, the first or the second?",
)
COMPARED_ELSEWHERE: tuple[str, ...] = (
    "Between the countries of these flags, which one {larger}?",
    "Name the one of these two countries that {larger}.",
)


def search_phrase(relation: str) -> str:
    """What to search for beside a country's name to find a relation's passage: "total area".

    Of a bridging question's relation (`longest_border.capital`) it is the phrase of the last step.
    """
    return field_labels()[RELATIONS[relation.rpartition(".")[2]].field].lower()


def search_phrases(relation: str) -> tuple[str, ...]:
    """The phrases of a question's steps.

    `longest_border.area` -> ("border countries", "total area")
    """
    if "." in relation:
        return (field_labels()[BORDERS_FIELD].lower(), search_phrase(relation))
    return (search_phrase(relation),)
