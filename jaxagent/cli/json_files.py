"""JSON files that a command reads: one that is missing or broken has a message."""

import json
from pathlib import Path

from jaxagent.cli.errors import UserError


def read_json(path: Path, what: str, *, remedy: str) -> dict:
    """The object in a file.

    Args:
        what: names the file's kind in a message.
        remedy: the sentence that says what to do about a file that is missing or broken.

    Raises:
        UserError: the file cannot be read, or holds no object.
    """
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"The {what} {path} cannot be read: {error.strerror}. {remedy}") from error
    except ValueError as error:
        raise UserError(f"The {what} {path} is broken: {error}. {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"The {what} {path} is broken: it holds no object of fields. {remedy}")
    return value
