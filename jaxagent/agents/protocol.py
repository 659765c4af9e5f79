"""What an agent method is: a pure function from events to requests, and the records between.

The rollout engine is the only loop. It opens a dialogue with `Begin`, carries out each request that
`advance` hands back, and reports the outcome as the next event:

    Begin ──► Generate ──► Said ──► Call ──► Returned ──► Generate ──► … ──► Done

`advance` reads nothing but its arguments and changes nothing, so a method can be replayed, tested
and scored without a model. It never raises on anything a policy wrote: text that cannot be acted on
is answered with a one-line observation. Sampling, tokens, deadlines and retries are the engine's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxagent.types import Candidate, Dialogue, Part, Passage, Question, Turn

Finish = Literal["stop", "end", "length"]


@dataclass(frozen=True, kw_only=True)
class ImageQuery:
    """The next `top` entities for an image, leaving out the entity ids in `exclude`."""

    image: str
    top: int
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TextQuery:
    """The first `top` passages for each query in turn, leaving out the passage ids in `exclude`."""

    queries: tuple[str, ...]
    top: int
    exclude: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SummaryQuery:
    """What `passages` say about `question`, in a few sentences."""

    question: str
    passages: tuple[Passage, ...]


Arguments = ImageQuery | TextQuery | SummaryQuery


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One element of a tool's batch; `question` is the dialogue's, by which a fiction is told."""

    question: Question
    tool: str
    arguments: Arguments


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a tool returned; empty when there was nothing to find."""

    candidates: tuple[Candidate, ...] = ()
    passages: tuple[Passage, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Failed:
    """A tool that gave no answer after its retries, in one line."""

    reason: str


Result = Found | Failed
Tool = Callable[[Sequence[ToolCall]], Sequence[Result]]
"""One batched call; results in the order of the calls, a failed element as `Failed`."""


@dataclass(frozen=True)
class Begin:
    """The first event of a dialogue."""

    question: Question


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the policy wrote in answer to a `Generate`.

    `text` holds the stop string that ended it ("stop"), but neither the end-of-turn token ("end")
    nor the request's `prime`. "length" means that the tokens ran out first.
    """

    text: str
    finish: Finish


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The outcome of a `Call`."""

    request: "Call"
    result: Result


Event = Begin | Said | Returned


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Append `parts` to the context as environment text, then let the policy write.

    The first request of a dialogue carries the question as the user's message, each later one an
    observation. `prime` opens the policy's turn with text that it did not choose (no loss on it).
    """

    parts: tuple[Part, ...]
    stops: tuple[str, ...]
    max_tokens: int
    prime: str = ""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Ask the tool named `tool` of the engine's table (one of `Method.tools`)."""

    tool: str
    arguments: Arguments


@dataclass(frozen=True)
class Done:
    """The end; `answer` is None when the policy gave none."""

    answer: str | None


Request = Generate | Call | Done
Advance = Callable[[Dialogue, Event], tuple[Dialogue, tuple[Request, ...]]]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method as a value.

    `system` is the system prompt; `tools` are the names that `advance` may call; `num_calls` counts
    the calls that the method charges for.
    """

    name: str
    system: str
    advance: Advance
    tools: frozenset[str]
    num_calls: Callable[[Dialogue], int]


Tools = Mapping[str, Tool]


def begin(question: Question) -> Dialogue:
    """The empty dialogue to hand to `advance` together with `Begin(question)`."""
    return Dialogue(question=question)


def with_turn(dialogue: Dialogue, turn: Turn) -> Dialogue:
    """The dialogue with one turn more."""
    return replace(dialogue, turns=(*dialogue.turns, turn))


def with_images(dialogue: Dialogue) -> Iterator[tuple[Turn, int]]:
    """Every turn, and which query image (from 0) it is about: the last one that was searched.

    An action that searches an image has its number, from 1, as `image`; a search of one that is not
    there goes on with the image before.
    """
    image = 0
    for turn in dialogue.turns:
        number = getattr(turn.action, "image", 0)
        if 1 <= number <= len(dialogue.question.images):
            image = number - 1
        yield turn, image


def finished(dialogue: Dialogue, answer: str | None) -> tuple[Dialogue, tuple[Request, ...]]:
    """The closed dialogue and the request that closes it."""
    return replace(dialogue, done=True, answer=answer), (Done(answer),)
