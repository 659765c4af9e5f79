"""The Factbook's text as entities and passages."""

import pytest

from jaxagent.data.factbook import (
    clipped,
    country_by_name,
    name_key,
    passages,
    plain_text,
    quiet,
    text_at,
    written_out,
)


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("1.284 million sq km", "1,284,000 sq km"),
        ("2.972 million Caracas, 964,000 Maracay", "2,972,000 Caracas, 964,000 Maracay"),
        ("1.5 trillion", "1,500,000,000,000"),
        ("a million reasons", "a million reasons"),
        ("17,098,242 sq km", "17,098,242 sq km"),
    ],
)
def test_magnitude_words_are_written_out_as_digits(text, out):
    assert written_out(text) == out


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("N'DJAMENA (capital)", "N'Djamena (capital)"),
        ("SAINT GEORGE'S", "Saint George's"),
        ("Prince HANS-ADAM II", "Prince Hans-Adam II"),
        ("President XI Jinping", "President XI Jinping"),
    ],
)
def test_shouted_names_become_names(text, out):
    assert quiet(text) == out


def test_markup_becomes_one_line_of_text():
    assert plain_text("<p>Br&eacute;sil&nbsp;<br>\n is “big” </p>") == 'Brésil is "big"'


def test_a_path_finds_keys_with_stray_blanks_and_nothing_elsewhere():
    entry = {"Geography": {"Area": {"total ": {"text": "7 sq km"}}}}
    assert text_at(entry, "Geography|Area|total") == "7 sq km"
    assert text_at(entry, "Geography|Coastline") == ""
    assert text_at(entry, "Geography|Area|total|more") == ""


def test_a_long_field_is_cut_after_its_last_whole_item():
    text = "tin and a lot of copper ore, gold and other metals, silver from deep mines"
    assert clipped(text, 8) == "tin and a lot of copper ore"
    assert clipped(text, 99) == text


def test_names_are_found_without_accents_capitals_and_article():
    assert name_key("The Gambia") == name_key("gambia")
    assert name_key("Côte d'Ivoire") == "cote d'ivoire"


def test_entities_have_iso_codes_and_readable_names(text):
    names = {country.id: country.name for country in text.countries}
    wanted = {
        "td": "Chad", "gb": "United Kingdom", "ch": "Switzerland", "ae": "United Arab Emirates",
        "do": "Dominican Republic", "cd": "Democratic Republic of the Congo",
    }  # fmt: skip
    assert names.items() >= wanted.items()
    assert len(names) == len(text.countries) == len(set(names.values()))
    assert all(len(id) == 2 and id.isalpha() for id in names)


def test_countries_are_found_by_the_names_that_their_neighbours_use(text):
    ids = country_by_name(text.countries)
    spoken = ["UAE", "UK", "DRC", "Cote d'Ivoire", "The Bahamas", "Czech Republic", "Burma"]
    assert [ids[name_key(name)] for name in spoken] == ["ae", "gb", "cd", "ci", "bs", "cz", "mm"]


def test_one_field_is_one_short_passage(text):
    assert text.passages["td-capital"].title == "Chad"
    assert text.passages["td-capital"].text == "Capital: N'Djamena"
    assert text.passages["td-area"].text == "Total area: 1,284,000 sq km"
    assert max(len(passage.text.split()) for passage in text.passages.values()) <= 35 + 5
    assert 30 <= len(text.passages) / len(text.countries) <= 35


def test_the_flags_description_is_left_out_unless_asked_for(text):
    assert not any(id.endswith("-flag") for id in text.passages)
    included = {
        passage.id: passage for passage in passages(text.countries, max_words=35, with_flag=True)
    }
    assert "band" in included["td-flag"].text
