"""Mistakes of the user, told from faults of the program.

A `UserError` is printed as it stands, without a traceback, and ends the command with status 2. The
doors of lower layers raise `ValueError` or `OSError` with a finished sentence; `told` turns those
into a `UserError` where a command meets the user's input, and nowhere else, so that a fault keeps
its traceback. What the machine refuses wherever it is asked, `main` tells (`to_mend`).
"""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """One sentence with the value, one with what is allowed or was found, one with what to do."""


@contextmanager
def told(*kinds: type[Exception]) -> Iterator[None]:
    """Turns the named errors, which speak of the user's input here, into a `UserError`.

    `KeyError` is left alone: its text is a quoted key, not a sentence.
    """
    wanted = kinds or (ValueError, OSError)
    try:
        yield
    except wanted as error:
        raise UserError(sentence(error)) from error


def sentence(error: Exception) -> str:
    """The error's own text and its notes; for the system's, the path and what the system says."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror.lower()}."
    return " ".join([text, *getattr(error, "__notes__", ())])
