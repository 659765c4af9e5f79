"""Where a policy's turn ends: at the first token that completes a stop string, or at the end token.

A stop string need not be a token and may straddle several. The token that completes it belongs to
the turn, whole; the text of the turn ends with the stop string, whatever else that token spells:

    tokens   Par|is</|answer>\\n|The    stop "</answer>"    turn   Par|is</|answer>\\n    text
    Paris</answer>
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxagent.agents.protocol import Finish

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How many of a turn's tokens count, their text, and what ended them."""

    num_tokens: int
    text: str
    finish: Finish


def ending(
    ids: Sequence[int], num_old: int, *, stops: Sequence[str], end_id: int, decode: Decode
) -> Ending | None:
    """The ending among the tokens that follow the first `num_old` of a turn, or None.

    The first `num_old` tokens are known to hold none. Only the new tokens are decoded, with as many
    old ones as a stop string may straddle (a token spells at least one byte).
    """
    num = len(ids)
    end = next((at for at in range(num_old, num) if ids[at] == end_id), num)
    first = max(0, num_old + 1 - max((len(stop.encode()) for stop in stops), default=1))
    if _stopped(decode(ids[first:end]), stops):
        last = next(
            at for at in range(num_old, end) if _stopped(decode(ids[first : at + 1]), stops)
        )
        text = decode(ids[: last + 1])
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        return Ending(num_tokens=last + 1, text=text[: min(ends)], finish="stop")
    if end < num:
        return Ending(num_tokens=end + 1, text=decode(ids[:end]), finish="end")
    return None


def _stopped(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)
