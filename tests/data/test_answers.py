"""Answers read off fields, and none where a field is doubtful."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.data import answers


@pytest.mark.parametrize(
    ("read", "field", "found"),
    [
        (answers.leading_number, "1,284,000 sq km", ("1,284,000",)),
        (answers.leading_number, "16.9 years (2025 est.)", ("16.9",)),
        (answers.leading_number, "0 km (landlocked)", ()),
        (answers.leading_number, "NA", ()),
        (answers.leading_number, "Saint Helena: 60 km", ()),
        (answers.metres, "Emi Koussi 3,445 m", ("3,445",)),
        (answers.metres, "unnamed elevation 675 m; located 2.5 km southeast", ("675",)),
        (answers.first_item, "Gitega (political capital), Bujumbura", ("Gitega",)),
        (answers.first_item, "Brasília; note - planned", ("Brasília", "Brasilia")),
        (answers.largest_city, "262,000 Dodoma (2018), 7,776,000 Arusha (2023)", ("Arusha",)),
        (answers.largest_city, "NA", ()),
        (answers.peak, "Maja e Korabit (Golem Korab) 2,764 m", ("Maja e Korabit", "Golem Korab")),
        (answers.peak, "unnamed elevation 675 m", ()),
        (answers.quoted_title, '"Himno Nacional" (Anthem)', ("Himno Nacional", "Anthem")),
        (answers.quoted_title, "no anthem", ()),
        (answers.every_item, "eagle, edelweiss (flower)", ("eagle", "edelweiss")),
        (answers.first_item, "cars, copper ore (2023)", ("cars",)),
        (answers.first_item, "phosphates 62% (2012 est.)", ()),
        (answers.name_and_translation, "Parliament (Oireachtas)", ("Parliament", "Oireachtas")),
        (answers.demonym, "Chadian(s)", ("Chadian", "Chadians")),
        (answers.demonym, "Chinese (singular and plural)", ("Chinese",)),
        (answers.currency, "birr (ETB)", ("birr", "ETB")),
        (answers.only_year, "11 August 1960 (from France)", ("1960",)),
        (answers.only_year, "1143; 5 October 1910 (republic)", ()),
        (answers.latest_year, "previous 1978; latest adopted 29 July 1994", ("1994",)),
        (answers.latest_year, "latest approved 18 April 2011, effective 1 January 2012", ()),
        (answers.latest_year, "several previous; adopted 1990", ()),
        (answers.adopted_year, "adopted in 1989; written in 1848", ("1989",)),
        (answers.adopted_year, "lyrics adopted 1921", ()),
        (answers.only_date, "Independence Day, 11 August (1960)", ("11 August", "August 11")),
        (answers.only_date, "5 July (1962); 1 November (1954)", ()),
    ],
)  # fmt: skip
def test_a_field_gives_its_answers_or_none(read, field, found):
    assert read(field) == found


READERS = (
    answers.leading_number,
    answers.metres,
    answers.first_item,
    answers.largest_city,
    answers.peak,
    answers.quoted_title,
    answers.every_item,
    answers.first_item,
    answers.name_and_translation,
    answers.demonym,
    answers.currency,
    answers.only_year,
    answers.latest_year,
    answers.adopted_year,
    answers.only_date,
)


@given(st.text(alphabet="aB é19,.;()\"' m-", max_size=40), st.sampled_from(READERS))
def test_reading_never_raises_and_gives_no_empty_answer(field, read):
    assert all(answer.strip() for answer in read(field))
