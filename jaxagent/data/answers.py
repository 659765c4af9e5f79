"""Answers as they are read off a field of the Factbook.

Each function takes a field's text and gives the answers that count, the first as it stands in the
text. None come back where the text is doubtful: two dates where one is asked for, words where a
number should stand first, a name longer than a name.
"""

import re

from jaxagent.retrieval.lexical import unaccented

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
YEAR = re.compile(r"\b(1\d{3}|20[0-2]\d)\b")
MAX_NAME_WORDS = 6


def leading_number(text: str) -> tuple[str, ...]:
    """The number that the text starts with, unless it is 0 or NA."""
    match = re.match(r"\d[\d,]*(?:\.\d+)?", text)
    return (match.group(),) if match and float(match.group().replace(",", "")) > 0 else ()


def metres(text: str) -> tuple[str, ...]:
    """The first number followed by "m"."""
    match = re.search(r"(?<![\d,.-])(\d[\d,]*(?:\.\d+)?) m\b", text)
    return (match.group(1),) if match else ()


def names(*candidates: str) -> tuple[str, ...]:
    """The candidates that can be names, each once, and last the first one without its accents."""
    kept = [c.strip(" .\"'") for c in candidates]
    kept = [c for c in kept if c and c.lower() not in ("none", "na") and "note" not in c.split()]
    if not kept or len(kept[0].split()) > MAX_NAME_WORDS or re.search(r"\d", kept[0]):
        return ()
    return tuple(dict.fromkeys([*kept, unaccented(kept[0])]))


def first_item(text: str) -> tuple[str, ...]:
    """The first item of a list."""
    return names(re.split(r"[,;(]", text)[0])


def every_item(text: str) -> tuple[str, ...]:
    """All items of a list: any one answers the question."""
    return names(*re.split(r"[,;]", re.sub(r"\s*\([^)]*\)", "", text)))


def name_and_translation(text: str) -> tuple[str, ...]:
    """A name and what stands in parentheses behind it."""
    match = re.match(r"([^(;]+?)\s*(?:\(([^)]*)\).*|;.*)?$", text)
    return names(*(group or "" for group in match.groups())) if match else ()


def largest_city(text: str) -> tuple[str, ...]:
    """The city with the largest number before it: "39,000 Saint George's (capital) (2018)"."""
    cities = re.findall(r"(\d[\d,]*) (?:million )?([^\d(,;]+)", text)
    if not cities:
        return ()
    return names(max(cities, key=lambda city: int(city[0].replace(",", "") or 0))[1])


def peak(text: str) -> tuple[str, ...]:
    """A peak's name, before its height, and its other name in parentheses."""
    match = re.match(r"([^\d(]+?)\s*(?:\(([^)\d]*)\))?\s+\d[\d,.]* m\b", text)
    if not match or match.group(1).startswith(("unnamed", "highest", "location")):
        return ()
    return names(*(group or "" for group in match.groups()))


def quoted_title(text: str) -> tuple[str, ...]:
    """A title in quotation marks and its translation in parentheses."""
    match = re.match(r'"([^"]+?),?"(?:\s*\(([^)]*)\))?', text)
    return names(*(group or "" for group in match.groups())) if match else ()


def demonym(text: str) -> tuple[str, ...]:
    """What one inhabitant is called: "Chadian(s)" -> Chadian, and Chadians."""
    match = re.match(r"([^\W\d_][^(,;]*?)(\(s\))?\s*(?:[(,;]|$)", text)
    if not match:
        return ()
    one = match.group(1)
    return names(one, one + "s" if match.group(2) else one)


def currency(text: str) -> tuple[str, ...]:
    """A currency's name, and its code in parentheses."""
    match = re.match(r"([^(\d;]+?)\s*\(([A-Z]{3})\)", text)
    return names(*match.groups()) if match else ()


def only_year(text: str) -> tuple[str, ...]:
    """The one year in the text; none where there are two."""
    years = set(YEAR.findall(text))
    return tuple(years) if len(years) == 1 else ()


def latest_year(text: str) -> tuple[str, ...]:
    """The one year after "latest", or in a text that tells of no earlier constitution."""
    _, found, rest = text.partition("latest")
    return only_year(rest if found else "" if "previous" in text else text)


def adopted_year(text: str) -> tuple[str, ...]:
    """The year after "adopted" at the start."""
    match = re.match(r"adopted (?:in )?(\d{4})\b", text)
    return (match.group(1),) if match else ()


def only_date(text: str) -> tuple[str, ...]:
    """The one day and month in the text, and with the month first; none where there are two."""
    dates = set(re.findall(rf"\b(\d{{1,2}}) ({MONTHS})\b", text))
    if len(dates) != 1:
        return ()
    day, month = dates.pop()
    return (f"{day} {month}", f"{month} {day}")
