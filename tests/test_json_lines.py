"""Files of JSON lines: round trip, and what a kill in the middle of a write leaves of them."""

import json

import pytest

from jaxagent.json_lines import append_line, read_lines, write_lines

ROWS = [{"name": "São Tomé", "x": 1}, {"name": "b", "x": None}]


def test_reading_undoes_writing_and_appending(tmp_path):
    path = tmp_path / "folder" / "rows.jsonl"
    write_lines(path, ROWS)
    assert read_lines(path) == (ROWS, False, [1, 2])
    append_line(path, {"x": 2})
    assert read_lines(path) == ([*ROWS, {"x": 2}], False, [1, 2, 3])
    append_line(tmp_path / "new.jsonl", {"x": 3})
    assert read_lines(tmp_path / "new.jsonl") == ([{"x": 3}], False, [1])


def test_a_write_that_is_stopped_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_lines(path, ROWS)

    def stopped():
        yield {"x": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(path, stopped())
    assert read_lines(path).rows == ROWS


def test_wherever_the_last_line_is_torn_the_others_stay_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    first, last = (json.dumps(row, ensure_ascii=False).encode() for row in reversed(ROWS))
    for kept in range(1, len(last) + 1):
        path.write_bytes(first + b"\n" + last[:kept])
        torn = kept < len(last)
        before = ROWS[1:] if torn else ROWS[::-1]
        assert read_lines(path)[:2] == (before, torn)
        append_line(path, {"x": 2})
        assert read_lines(path)[:2] == ([*before, {"x": 2}], False)


@pytest.mark.parametrize("broken", ['{"x": ', "[1]", "7", "\ufffd"])
def test_any_other_line_that_is_no_row_is_refused_with_its_number(tmp_path, broken):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"x": 1}}\n\n{broken}\n{{"x": 2}}\n')
    with pytest.raises(ValueError, match=r"Line 3 of .*rows\.jsonl is no JSON object"):
        read_lines(path)
