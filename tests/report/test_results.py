"""Lines of a results file become the table that the README shows."""

import json

import pytest

from jaxagent.cli.errors import UserError
from jaxagent.cli.report import fill
from jaxagent.cli.tables import markdown_table, text_table
from jaxagent.json_lines import append_line
from jaxagent.report.records import Table
from jaxagent.report.results import (
    read_results,
    result_line,
    results_table,
    row_name,
)
from tests.report.dialogue_rows import dialogue_row


def rows(*accuracies: float, identified: bool | None = True) -> list[dict]:
    return [
        dialogue_row(at, accuracy, identified=identified, rank=1 + at)
        for at, accuracy in enumerate(accuracies)
    ]


def line(
    name: str,
    before: list[dict],
    after: list[dict],
    config: str = "flags_mmagent_r2_grpo",
    weights: str = "1f",
    **changes: object,
) -> dict:
    return result_line(
        name=name,
        config=config,
        changes={"seed": 0, **changes},
        weights=weights,
        seed=0,
        minutes=5.678,
        steps=5,
        rewards=[0.0, 0.5, 0.5, 0.5, 1.0],
        before=before,
        after=after,
        versions={"jax": "0.10.2"},
    )


def test_the_table_has_one_row_for_each_group_of_seeds():
    table = results_table(
        [
            line("grpo-0", rows(0, 0, 1, 0), rows(1, 0, 1, 0)),
            line("grpo-1", rows(0, 0, 1, 0), rows(1, 1, 1, 0)),
            line("shuffled-0", rows(0, 0, 1, 0), rows(0, 0, 1, 0)),
        ],
        "unseen_entity",
    )
    grpo, shuffled = table.rows
    assert grpo[:5] == ["grpo", 2, 5, pytest.approx(5.68), "0.25 → 0.62"]
    assert grpo[5].startswith("+0.38 (")
    assert grpo[6] == "25.0 → 62.5"
    assert grpo[7].startswith("+37.5 (")
    assert shuffled[7] == "+0.0 (+0.0 to +0.0)"
    assert grpo[10].startswith("+75.0 (")
    assert grpo[-2:] == [25.0, 100.0]


def test_rows_of_one_name_in_two_experiments_stay_apart():
    runs = [line("grpo-0", [], rows(0)), line("grpo-0", [], rows(1), "flags_promsa_grpo")]
    assert [row[:2] for row in results_table(runs, "unseen_entity").rows] == [["grpo", 1]] * 2


@pytest.mark.parametrize("other", [{"weights": "2e"}, {"rl.steps": 7}])
def test_seeds_of_other_weights_or_fields_stay_apart(other):
    runs = [line("grpo-0", [], rows(0)), line("grpo-1", [], rows(1), **other)]
    assert [row[:2] for row in results_table(runs, "unseen_entity").rows] == [["grpo", 1]] * 2


def test_a_method_that_records_no_entity_has_no_ident():
    nothing = rows(0, 1, identified=None)
    (row,) = results_table([line("promsa-0", nothing, nothing)], "unseen_entity").rows
    assert row[8:11] == [None, None, None]


def test_lines_survive_the_file(tmp_path):
    path = tmp_path / "folder" / "results.jsonl"
    first, second = line("a-0", rows(0), rows(1)), line("a-1", rows(1), rows(1))
    append_line(path, first)
    append_line(path, second)
    assert read_results(path) == json.loads(json.dumps([first, second]))
    assert read_results(tmp_path / "none.jsonl") == []


def test_a_torn_last_run_is_left_out_with_a_message(tmp_path, caplog):
    path = tmp_path / "results.jsonl"
    first = json.loads(json.dumps(line("a-0", rows(0), rows(1))))
    append_line(path, first)
    with path.open("a") as file:
        file.write('{"name": "a-1", "conf')
    assert read_results(path) == [first]
    assert "The last line of" in caplog.text


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ('{"name": "a-1", "conf', "no JSON object"),
        ('{"a": 1}', "lacks name, config"),
        (json.dumps(line("a", rows(0), rows(1)) | {"after": None}), "lacks after"),
        (
            json.dumps(line("a", rows(0), rows(1)) | {"after": {"s": {}}}),
            r"lacks after\.s\.dialogues",
        ),
        *(
            (
                json.dumps(line("a", rows(0), rows(1)) | {"outcomes": {"s": outcomes}}),
                r"outcomes\.s, 8 values a question",
            )
            for outcomes in (7, {"q": 7}, {"q": ["td", 1.0, 1.0]}, {"q": [1.0] * 8})
        ),
        (
            json.dumps(line("a", rows(0), rows(1)) | {"outcomes": {}}),
            r"lacks outcomes\.unseen_entity, 8 values",
        ),
        (
            json.dumps(
                line("a", rows(0), rows(1))
                | {"before": {"unseen_entity": {"dialogues": 1, "accuracy": 0.5}}}
            ),
            r"lacks before\.unseen_entity\.reward, before\.unseen_entity\.ident",
        ),
        (json.dumps(line("a", rows(0), rows(1)) | {"steps": "5"}), "lacks steps"),
    ],
)
def test_any_other_broken_run_is_refused_with_its_line(tmp_path, broken, said):
    path = tmp_path / "results.jsonl"
    path.write_text(f"\n{broken}\n")
    append_line(path, line("a-1", rows(0), rows(1)))
    with pytest.raises(ValueError, match=f"Line 2 of .*{said}"):
        read_results(path)


def test_one_run_that_stands_there_twice_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    for name in ("a-0", "a-1", "a-0"):
        append_line(path, line(name, rows(0), rows(1)))
    with pytest.raises(ValueError, match="Lines 1 and 3 of .* are the same run"):
        read_results(path)


def test_a_run_that_was_evaluated_after_training_alone_has_no_change():
    (row,) = results_table([line("grpo-0", [], rows(1, 0))], "unseen_entity").rows
    assert row[4:10] == ["0.50", None, "50.0", None, "100.0", None]
    assert row[10].startswith("+50.0 (")


@pytest.mark.parametrize("before", [[], rows(1)])
def test_a_run_that_was_not_evaluated_after_training_is_in_no_table(before):
    made = line("grpo-0", before, [])
    assert made["after"] == {}
    assert results_table([made], "unseen_entity").rows == []


@pytest.mark.parametrize(
    ("run", "row"), [("grpo-0", "grpo"), ("tn_gspo-12", "tn_gspo"), ("a-b", "a-b"), ("x", "x")]
)
def test_seeds_are_told_by_the_last_number(run, row):
    assert row_name(run) == row


TABLE = Table(title="T", columns=["name", "x"], rows=[["a", 1], ["bcd", 12.5]], note="Percent.")


def test_a_table_prints_as_aligned_text():
    assert text_table(TABLE) == "T\nname     x\na        1\nbcd   12.5\n"


def test_a_table_prints_as_markdown():
    assert markdown_table(TABLE) == (
        "| name | x |\n| --- | ---: |\n| a | 1 |\n| bcd | 12.5 |\n\nPercent.\n"
    )


def test_generated_text_stands_between_its_markers_and_replaces_the_old(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("a\n<!-- results:begin -->\nold\n<!-- results:end -->\nb\n")
    fill(path, "results", "new\n")
    fill(path, "results", "newer\n")
    assert path.read_text() == "a\n<!-- results:begin -->\nnewer\n<!-- results:end -->\nb\n"


BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no markers\n", "no markers"),
        (f"{END} a {BEGIN}", "in this order"),
        (f"{BEGIN} a {END} and {END}", "must stand there once"),
        (f"{BEGIN} a {END} and {BEGIN} b {END}", "must stand there once"),
        (f"{BEGIN} a <!-- other:begin --> b {END}", "another comment begins"),
    ],
)
def test_markers_between_which_a_users_text_may_lie_are_refused(tmp_path, text, said):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        fill(path, "results", "x")
    assert path.read_text() == text


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="README.md is no text"):
        fill(path, "results", "x")
