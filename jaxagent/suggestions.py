"""What an error about a wrong word says next: what was meant, or all that is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or the list of what is allowed when nothing is near."""
    words = [str(known) for known in words]
    # A dotted name is mostly mistaken in its last part, or put into the wrong group.
    last = {known: known.rpartition(".")[2] for known in words}
    leaves = get_close_matches(word.rpartition(".")[2], last.values(), n=1, cutoff=0.75)
    alike = [known for known in words if leaves and last[known] == leaves[0]]
    near = get_close_matches(word, alike or words, n=1, cutoff=0.0 if alike else 0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Allowed: {', '.join(sorted(words))}."
