"""The file of scalars reads as if no run had ever stopped."""

import json

from jaxagent.training.writer import Writer


def written(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_steps_after_the_checkpoint_are_cut_off_and_other_runs_stay(tmp_path):
    sft = Writer(tmp_path, "sft")
    for step in (1, 2):
        sft.write(step, {"sft/loss": 1.0 / step}, seconds=step)
    sft.close()
    rl = Writer(tmp_path, "rl")
    for step in (1, 2, 3):
        rl.write(step, {"update/loss": float(step)}, seconds=step)
    rl.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "update/lo')
    rl = Writer(tmp_path, "rl", after=1)
    rl.write(2, {"update/loss": 20.0}, seconds=2.5)
    rl.close()
    assert written(tmp_path) == [
        {"step": 1, "sft/loss": 1.0, "time/sft": 1},
        {"step": 2, "sft/loss": 0.5, "time/sft": 2},
        {"step": 1, "update/loss": 1.0, "time/rl": 1},
        {"step": 2, "update/loss": 20.0, "time/rl": 2.5},
    ]
    assert list((tmp_path / "rl").glob("events.out.tfevents.*"))


def test_a_number_that_json_has_no_word_for_is_null(tmp_path):
    writer = Writer(tmp_path, "rl")
    writer.write(1, {"a": float("nan"), "b": float("inf")}, seconds=0.5)
    writer.close()
    assert written(tmp_path) == [{"step": 1, "a": None, "b": None, "time/rl": 0.5}]


def test_a_stop_before_the_end_of_a_line_glues_no_two_steps_together(tmp_path):
    whole = b'{"step": 1, "a": 0.5, "time/rl": 1}'
    (tmp_path / "metrics.jsonl").write_bytes(whole)
    writer = Writer(tmp_path, "rl", after=1)
    writer.write(2, {"a": 0.25}, seconds=2)
    writer.close()
    assert [row["step"] for row in written(tmp_path)] == [1, 2]
    assert [path.name for path in tmp_path.glob("*.part")] == []
