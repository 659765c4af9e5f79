"""JSON headers of saved artefacts: what made them, and the check when they are opened.

A header is written last, so a folder without one is unfinished. Its `order` is a hash of the rows'
names in order: vectors and records that were sorted apart are refused instead of answering with the
wrong rows.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any

from etils import epath

FILE = "header.json"
DRAFT = f"{FILE}.draft"


def order_hash(rows: Iterable[str]) -> str:
    """Hash of strings in their order; the length of each is hashed too, so borders cannot move."""
    state = hashlib.sha256()
    for row in rows:
        data = row.encode()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:32]


def write_header(folder: epath.PathLike, header: Mapping[str, Any]) -> None:
    """Writes the header in one move, so that a killed process leaves the old one or none."""
    folder = epath.Path(folder)
    draft = folder / DRAFT
    draft.write_text(json.dumps(header, indent=1, sort_keys=True) + "\n")
    draft.replace(folder / FILE)


def read_header(
    folder: epath.PathLike, what: str, fields: Mapping[str, type | UnionType]
) -> dict[str, Any]:
    """Header of a folder, which holds at least `fields`, of these types.

    Raises FileNotFoundError when the folder does not exist or was never finished, ValueError when
    the header is broken.
    """
    folder = epath.Path(folder)
    if not folder.exists():
        raise FileNotFoundError(
            f"There is no {what} at {folder}. Build one there, or check the path."
        )
    if not (folder / FILE).exists():
        raise FileNotFoundError(
            f"The {what} at {folder} has no {FILE}: its build was stopped before the end. "
            "Run the same build command again; it continues where it stopped."
        )
    try:
        header = json.loads((folder / FILE).read_text())
    except ValueError as error:
        raise broken(folder, what, f"is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise broken(folder, what, "is no JSON object")
    if wrong := [
        name
        for name, kind in fields.items()
        if name not in header or not isinstance(header[name], kind)
    ]:
        raise broken(folder, what, f"lacks {', '.join(wrong)} or has them in another form")
    return header


def broken(folder: epath.PathLike, what: str, how: str) -> ValueError:
    """The error of a header that cannot be used."""
    folder = epath.Path(folder)
    return ValueError(
        f"{folder / FILE} {how}. Delete the folder {folder} and build the {what} again."
    )


def check_header(header: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Raises one ValueError that lists every field whose value differs from the expected one."""
    wrong = [
        f"{name} is {header.get(name)!r}, expected {value!r}"
        for name, value in expected.items()
        if header.get(name) != value
    ]
    if wrong:
        raise ValueError(
            f"{where} does not fit: {'; '.join(wrong)}. Delete the folder and build it again, or "
            "name the one meant."
        )
