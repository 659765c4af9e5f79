"""The InfoSeek scorer equals the official one on its vectors, and its guard closes the exploits."""

import contextlib
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.scoring.infoseek import (
    guarded_score,
    infoseek_score,
    json_lines,
    normal_answer,
    official_score,
    predicted_number,
)
from jaxagent.types import Question

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "infoseek.json").read_text())


def question(kind: str, *answers: str, span: tuple[float, float] | None = None) -> Question:
    return Question(
        data_id="q",
        images=("view:td",),
        text="?",
        kind=kind,
        family="single",
        answers=answers,
        answer_range=span,
        entities=("td",),
        relation="capital",
    )


@pytest.mark.parametrize("row", VECTORS["vectors"], ids=lambda row: row["id"])
def test_official_vectors(row: dict):
    score = official_score(row["prediction"], row["reference"], kind=row["type"])
    assert score == row["expected"], row["note"]


@pytest.mark.parametrize("row", VECTORS["normalisation"], ids=lambda row: repr(row["input"]))
def test_official_normalisation(row: dict):
    assert normal_answer(row["input"]) == row["expected"]


@pytest.mark.parametrize("row", VECTORS["number_parsing"], ids=lambda row: repr(row["input"]))
def test_official_number_parsing(row: dict):
    expected = row["expected"]
    assert predicted_number(row["input"]) == (
        tuple(expected) if isinstance(expected, list) else expected
    )


@pytest.mark.parametrize("row", VECTORS["aggregation"], ids=lambda row: row["id"])
def test_official_aggregation(row: dict):
    expected = row["expected"]
    lines = "\n".join(json.dumps(one) for one in row["predictions"]) + "\n"
    if row.get("prediction_file_has_trailing_blank_line"):
        lines += "\n"
    if "raises" in expected:
        error = {"KeyError": KeyError, "JSONDecodeError": json.JSONDecodeError}[expected["raises"]]
        with pytest.raises(error):
            infoseek_score(json_lines(lines), row["references"], row["question_types"])
        return
    score = infoseek_score(json_lines(lines), row["references"], row["question_types"])
    assert {
        "final_score": score.final,
        "unseen_question_score": vars(score.unseen_question),
        "unseen_entity_score": vars(score.unseen_entity),
    } == expected


def test_a_number_that_stops_the_evaluator_raises_and_scores_zero_under_guard():
    with pytest.raises(ValueError, match="could not convert"):
        official_score("-.5.3", [{"wikidata": 1.0, "range": [0.9, 1.1]}], kind="Numerical")
    assert guarded_score("-.5.3", question("Numerical", span=(-10.0, 10.0))) == 0.0


def test_missing_unknown_and_repeated_predictions_are_reported():
    references = [
        {"data_id": name, "answer_eval": ["x"], "data_split": split}
        for name, split in (("a", "val_unseen_question"), ("b", "val_unseen_entity"))
    ]
    types = [{"data_id": name, "question_type": "String"} for name in "ab"]
    rows = [{"data_id": name, "prediction": "x"} for name in ("a", "a", "zzz")]
    score = infoseek_score(rows, references, types)
    assert (score.coverage, score.num_unknown, score.num_repeated) == (0.5, 1, 1)
    assert score.final == 0.0
    assert score.micro == 100.0


@pytest.mark.parametrize("text", [None, "", "  ", "a", "The", "...", "-", "no idea", "½"])
def test_an_empty_or_numberless_answer_earns_nothing(text: str | None):
    assert guarded_score(text, question("Numerical", span=(-5.0, 5.0))) == 0.0
    assert guarded_score(text, question("String", "A", "-", "")) == 0.0


def test_the_guard_leaves_good_answers_alone():
    assert guarded_score("about 0", question("Numerical", span=(-5.0, 5.0))) == 1.0
    assert guarded_score("The Nile.", question("String", "Nile")) == 1.0
    assert guarded_score("1960", question("Time", "1960")) == 1.0
    assert guarded_score("1961", question("Time", "1960")) == 0.0


def test_a_numerical_question_without_a_range_is_refused_by_name():
    with pytest.raises(ValueError, match="Question q is Numerical without a range"):
        guarded_score("1", question("Numerical", "1"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        "1" * 1_000_000,
        "1,234" * 200_000,
        ("-" + "1" * 50) * 20_000,
        "a " * 500_000,
        "9e999999" * 100_000,
        "." * 1_000_000 + "1",
        "1-" * 500_000,
        "(" * 100_000 + "a+" * 100_000 + ")" * 100_000,
        "__import__('os').system('true')" * 10_000,
    ],
    ids=lambda text: text[:12],
)
def test_huge_and_hostile_answers_are_scored_in_bounded_time(text: str):
    start = time.process_time()
    assert official_score(text, ["x"], kind="String") == 0.0
    with contextlib.suppress(ValueError):
        official_score(text, [{"range": [1.0, 2.0]}], kind="Numerical")
    assert guarded_score(text, question("Numerical", span=(1.0, 2.0))) == 0.0
    assert time.process_time() - start < 5.0


@given(st.text() | st.from_regex(r"[-+.,\d\seE]*", fullmatch=True))
def test_the_guarded_score_is_zero_or_one_for_any_text(text: str):
    for kind in ("String", "Time", "Numerical"):
        assert guarded_score(text, question(kind, "x", span=(1.0, 2.0))) in (0.0, 1.0)
