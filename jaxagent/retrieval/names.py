"""Names of entities as agents write them: compared in one normal form, unique in a base.

Georgia, Georgia, georgia   ->  Georgia, Georgia (2), georgia (3)
None                        ->  None (entity)        ("None" is how an agent rejects a batch)
"""

import unicodedata
from collections.abc import Sequence

REJECT = "None"


def normal_name(name: str) -> str:
    """Name in NFC, blanks collapsed, case folded; names are the same when these are equal."""
    return " ".join(unicodedata.normalize("NFC", name).split()).casefold()


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names in order, blanks collapsed, with a suffix where one is taken or would mean "reject".

    Raises ValueError when a name is empty.
    """
    unsuffixed = {normal_name(name) for name in names}
    taken = set()
    result = []
    for row, name in enumerate(names):
        shown = " ".join(name.split())
        if not shown:
            raise ValueError(f"The name of entity {row} is empty. Give every entity a name.")
        if normal_name(shown) == normal_name(REJECT):
            shown = f"{shown} (entity)"
        candidate, number = shown, 1
        while normal_name(candidate) in taken:
            number += 1
            candidate = f"{shown} ({number})"
            # A later entity may really be called "Georgia (2)".
            while normal_name(candidate) in unsuffixed:
                number += 1
                candidate = f"{shown} ({number})"
        taken.add(normal_name(candidate))
        result.append(candidate)
    return tuple(result)
