"""A run's folder as a report: curves, headlines, tables, and dialogues spread over the splits."""

import pytest

from jaxagent.report.run import (
    changes,
    ends,
    headlines,
    read_scalars,
    run_report,
    sample_of,
    scalar_curves,
)
from tests.report.dialogue_rows import dialogue_row


def row(at: int, accuracy: float, *, split: str = "unseen_entity", ident: bool | None = True):
    return dialogue_row(at, accuracy, split=split, identified=ident, rank=2, rejections=1)


BEFORE = [row(0, 0.0), row(1, 0.0, split="unseen_question")]
AFTER = [row(0, 1.0), row(1, 1.0, split="unseen_question")]


def report(**changes):
    parts = {
        "title": "T",
        "summary_line": "",
        "scalars": [{"step": 0, "reward/total": 1.0}, {"step": 1, "reward/total": 2.0}],
        "before": BEFORE,
        "after": AFTER,
        "facts": {},
        "num_dialogues": 10,
    }
    return run_report(**(parts | changes))


def test_the_three_headlines_tell_what_was():
    made = report()
    assert [figure.value for figure in made.figures] == ["100.0 %", "100.0 %", "2.00"]
    assert made.figures[0].note.startswith("was 0.0 %")
    assert "first: 0.0 %" in made.figures[1].note
    assert "its 15: 100.0 %" in made.figures[1].note


@pytest.mark.parametrize(
    ("splits", "harmonic"),
    [
        (("unseen_entity", "unseen_entity"), False),
        (("val_unseen_entity", "unseen_entity"), False),
        (("unseen_entity", "unseen_question"), True),
    ],
)
def test_dialogues_are_counted_and_a_harmonic_mean_is_named_where_there_is_one(splits, harmonic):
    rows = [row(0, 1.0, split=split) for split in splits]
    made = report(before=[], after=rows)
    note = "2 dialogues" + ", harmonic mean of unseen question and unseen entity" * harmonic
    assert made.figures[0].note == note
    assert ("harmonic" in made.tables[0].note) == harmonic


def test_headlines_and_the_row_of_all_splits_leave_training_questions_out():
    train = [row(at, 0.0, split="train", ident=False) | {"rank": 1} for at in (2, 3)]
    mixed, alone = report(after=[*AFTER, *train], before=[*BEFORE, *train]), report()
    assert mixed.figures == alone.figures
    assert [r for r in mixed.tables[0].rows if r[0] != "train"] == list(alone.tables[0].rows)
    assert mixed.tables[1].rows == alone.tables[1].rows
    assert all("training questions" in table.note for table in mixed.tables[:2])
    assert not any("training questions" in table.note for table in alone.tables)


def test_a_torn_last_step_is_left_out_and_any_other_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_scalars(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "upd')
    assert read_scalars(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1, "upd\n{"step": 2}\n')
    with pytest.raises(ValueError, match="Line 1 of"):
        read_scalars(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"loss": 1}\n', "lacks step"), ('{"step": 1, "loss": "x"}\n', "loss is 'x'")],
)
def test_a_step_without_its_number_or_with_a_word_is_refused(tmp_path, text, said):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"Line 1 of .*{said}"):
        read_scalars(path)


def test_a_method_that_records_no_entity_has_no_such_headline():
    rows = [row(0, 1.0, ident=None)]
    assert len(headlines([], rows, [])) == 1


def test_known_scalars_come_first_and_the_machines_stay_out():
    row = {
        "step": 0,
        "time/rollout": 1.0,
        "reward/new": 1.0,
        "update/loss": 0.1,
        "reward/total": 2.0,
    }
    titles = [curve.title for curve in scalar_curves([row])]
    assert titles == ["Reward of the sampled dialogues", "Loss", "reward/new"]


def test_a_scalar_may_be_missing_at_some_steps():
    rows = [
        {"step": 0, "reward/a": 1.0},
        {"step": 1, "reward/a": None},
        {"step": 2, "reward/a": 3.0},
    ]
    (curve,) = scalar_curves(rows)
    assert curve.series["reward/a"] == [(0, 1.0), (2, 3.0)]


def test_the_tables_compare_both_evaluations():
    by_split, by_type, change = report().tables
    assert [r[:3] for r in by_split.rows] == [
        ["unseen entity", "before", 1],
        ["unseen entity", "after", 1],
        ["unseen question", "before", 1],
        ["unseen question", "after", 1],
        ["all", "before", 2],
        ["all", "after", 2],
    ]
    assert by_type.rows[0] == ["String", 2, 0.0, 100.0]
    assert change.rows[0] == ["unseen entity", "accuracy", "+100", "+100 to +100"]


def test_one_evaluation_alone_has_no_change():
    assert [table.title for table in report(after=[]).tables] == [
        "By split",
        "By family, kind of answer and view",
    ]


def test_nothing_was_run_is_a_report_without_tables():
    made = report(before=[], after=[])
    assert (made.figures, made.tables, made.dialogues) == ((), (), [])


def test_changes_leave_out_what_was_not_recorded():
    old, new = ([row(0, value, ident=None)] for value in (0.0, 1.0))
    assert [r[1] for r in changes(old, new).rows] == ["accuracy", "reward"]


def test_dialogues_are_spread_over_the_evaluation():
    rows = [row(at, 1.0) for at in range(10)]
    assert [one["id"] for one in sample_of(rows, 5)] == ["q0#0", "q2#0", "q4#0", "q6#0", "q8#0"]
    assert sample_of(rows, 100) == rows


@pytest.mark.parametrize(
    ("values", "wanted"), [([1.0], (1.0, 1.0)), ([0, 0, 1, 2, 2, 2, 3, 4, 4, 6], (0.0, 5.0))]
)
def test_ends_are_means_of_fifths(values, wanted):
    assert ends(values) == wanted
