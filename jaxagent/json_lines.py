"""JSON and JSON lines files that a killed process leaves readable.

A whole file is written beside its place and moved there. A file that grows, grows by one write a
line; what a kill leaves of the last one is its beginning without the end of the line, told by that
and never read as a row.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4


class Lines(NamedTuple):
    """The rows of a file with the numbers of their lines, from 1.

    `torn` says that a last line that was not written to its end was left out.
    """

    rows: list[dict]
    torn: bool
    numbers: list[int]


def read_lines(path: Path) -> Lines:
    """The rows of a file, empty lines passed over.

    Raises:
        ValueError: a line is no JSON object; the message has its number.
    """
    content = path.read_bytes()
    whole = content[: len(content) - len(torn_end(content))]
    rows, numbers = [], []
    for number, line in enumerate(whole.split(b"\n"), 1):
        if not line.strip():
            continue
        row = parsed(line)
        if row is None:
            raise ValueError(f"Line {number} of {path} is no JSON object: {shown(line)}.")
        rows.append(row)
        numbers.append(number)
    return Lines(rows, torn=len(whole) < len(content), numbers=numbers)


def check_rows(path: Path, lines: Lines, fault: Callable[[dict], str]) -> None:
    """Raises ValueError for the first row that `fault` says something of: what it is not, and why.

    The message has the number of its line.
    """
    for number, row in zip(lines.numbers, lines.rows, strict=True):
        if said := fault(row):
            raise ValueError(f"Line {number} of {path} is no {said}")


def write_json(path: Path, value: Mapping) -> None:
    """The file of one object, there as a whole or not at all."""
    write_whole(path, [json.dumps(value, indent=1, ensure_ascii=False), "\n"])


def write_lines(path: Path, rows: Iterable[Mapping]) -> None:
    """The file of these rows, there as a whole or not at all."""
    write_whole(path, map(line_of, rows))


def write_whole(path: Path, parts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: the processes of a distributed run may write the same file at once.
    unfinished = path.with_name(f"{path.name}.{uuid4().hex[:8]}.part")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(parts)
    unfinished.replace(path)


def append_line(path: Path, row: Mapping) -> None:
    """One more row; a last line that was not written to its end is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        file.seek(0)
        content = file.read()
        whole = len(content) - len(torn_end(content))
        file.truncate(whole)
        unended = content[:whole] and not content[:whole].endswith(b"\n")
        file.write(b"\n" * bool(unended) + line_of(row).encode())


def line_of(row: Mapping) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def torn_end(content: bytes) -> bytes:
    """What stands after the last end of line, when it is no row."""
    end = content.rpartition(b"\n")[2]
    return b"" if not end.strip() or parsed(end) is not None else end


def parsed(line: bytes) -> dict | None:
    """The row of a line; None when it is no JSON object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
