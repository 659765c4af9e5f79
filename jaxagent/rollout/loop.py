"""The one event loop: it carries out what a method asks for, for many dialogues at once.

    waiting ─► slot ─► observation appended ─► tokens ─► Said ─► advance ─► Generate (observation …)
                │                                                   │
                └◄─ next dialogue ◄─ Done ◄────────────────────────┼─► Call ─► Returned ─► advance

One turn of the loop fills free slots, appends what the environment said, lets the generator write
some tokens in every slot that is being written in, and then gathers the tools' answers. Tools run
beside the generator: calls of one turn are answered at the end of the next one (`deterministic`),
or whenever they are ready. All order comes from the dialogues' numbers, never from time or slots.

An observation that does not fit is not appended, images and placeholders alike; its dialogue is
closed and marked truncated.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from jaxagent.agents.protocol import (
    Begin,
    Call,
    Done,
    Event,
    Failed,
    Generate,
    Method,
    Result,
    Returned,
    Said,
    ToolCall,
    Tools,
    begin,
)
from jaxagent.processing.chat import Chat, ImageGrid, Piece
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.context import Context, num_environment_tokens
from jaxagent.rollout.ending import Ending, ending
from jaxagent.rollout.seats import Seats
from jaxagent.rollout.tools import Workers, check_tools
from jaxagent.types import Dialogue, Question, Trajectory


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """`trajectories[g][m]` is sample m of question g; `metrics` are figures of the whole run."""

    trajectories: list[list[Trajectory]]
    metrics: dict[str, float]


@dataclass(kw_only=True, eq=False)
class Row:
    """A dialogue in a slot. `number` orders rows; `calls` wait for the results beside them."""

    number: int
    slot: int
    sample: int
    dialogue: Dialogue
    context: Context
    request: Generate | None = None
    turn_start: int = 0
    ended: bool = False
    calls: list[Call] = field(default_factory=list)
    results: dict[int, Result] = field(default_factory=dict)
    failures: Counter = field(default_factory=Counter)
    truncated: bool = False

    @property
    def allowance(self) -> int:
        """Tokens that the open turn may still take."""
        left = self.request.max_tokens - (self.context.size - self.turn_start)
        return min(left, self.context.room)


class Spoken(NamedTuple):
    """Tokens that a generator proposes to write, with their log-probabilities."""

    ids: Int[np.ndarray, " t"]
    log_probs: Float[np.ndarray, " t"]


@runtime_checkable
class Generator(Protocol):
    """What writes the policy's turns, for at most `slots` dialogues at once.

    Slots are divided evenly among `replicas`; the samples of a question sit on one of them.
    """

    slots: int
    replicas: int

    def append(self, rows: Sequence[Row]) -> None:
        """Feeds all tokens but the last of each row's context; `context.fed` says so afterwards."""

    def speak(self, rows: Sequence[Row]) -> list[Spoken]:
        """One or more further tokens for each row. The loop keeps those up to the turn's end."""

    def metrics(self) -> dict[str, float]:
        """What the generator itself counts."""


class PromptError(ValueError):
    """A prompt that leaves no room for the policy's first token in `rollout.context`."""


class Loop:
    """One run of a method over questions.

    Raises, from `run`:
        ValueError: a tool of the method is missing.
        PromptError: a prompt does not fit the context.
        ToolFailure: too many tool calls failed.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        method: Method,
        tools: Tools,
        chat: Chat,
        image_grid: ImageGrid,
        config: RolloutConfig,
    ):
        check_tools(method, tools)
        self.generator = generator
        self.method = method
        self.chat = chat
        self.image_grid = image_grid
        self.config = config
        self.workers = Workers(
            tools,
            seconds=config.tool_seconds,
            retries=config.tool_retries,
            max_failure_rate=config.max_failure_rate,
        )
        self.rows: dict[int, Row] = {}
        self.finished: dict[int, Trajectory] = {}
        self.wasted = 0
        self.waited = 0.0

    def run(self, questions: Sequence[Question], *, samples: int) -> Rollout:
        """Every question asked `samples` times."""
        started = time.monotonic()
        seats = Seats(
            self.generator.slots,
            replicas=self.generator.replicas,
            groups=[[(g, m) for m in range(samples)] for g in range(len(questions))],
        )
        while True:
            for (g, m), slot in seats.seated():
                self._admit(g * samples + m, questions[g], m, slot=slot)
            if not self.rows:
                break
            self._turn()
            for number in sorted(self.finished.keys() & self.rows.keys()):
                seats.leave(self.rows.pop(number).slot)
        numbers = range(len(questions) * samples)
        done = [self.finished[number] for number in numbers]
        groups = [done[at : at + samples] for at in range(0, len(done), samples)]
        return Rollout(
            trajectories=groups, metrics=self._metrics(groups, time.monotonic() - started)
        )

    def _admit(self, number: int, question: Question, sample: int, *, slot: int) -> None:
        row = Row(
            number=number,
            slot=slot,
            sample=sample,
            dialogue=begin(question),
            context=Context(self.config.context, merge=self.chat.image_processor.merge),
        )
        self.rows[number] = row
        self._handle(row, Begin(question))

    def _turn(self) -> None:
        self.workers.start()
        speaking = [row for _, row in sorted(self.rows.items()) if row.request is not None]
        if not speaking and not self.workers.busy and not self.finished.keys() & self.rows.keys():
            raise RuntimeError(
                f"{self.method.name} asked for nothing in any of {len(self.rows)} open dialogues."
            )
        spoken: list[Spoken] = []
        if speaking:
            self.generator.append(speaking)
            spoken = self.generator.speak(speaking)
        wait = self.config.deterministic or not speaking
        started = time.monotonic()
        answers = self.workers.collect(wait=wait)
        self.waited += time.monotonic() - started
        for (number, at), result in sorted(answers, key=lambda answer: answer.key):
            self._take(self.rows[number], at, result)
        for row, said in zip(speaking, spoken, strict=True):
            self._hear(row, said)

    def _handle(self, row: Row, event: Event) -> None:
        """Lets the method advance, and starts what it asks for."""
        row.dialogue, requests = self.method.advance(row.dialogue, event)
        for request in requests:
            match request:
                case Generate():
                    self._open_turn(row, request)
                case Call(tool=tool, arguments=arguments):
                    call = ToolCall(question=row.dialogue.question, tool=tool, arguments=arguments)
                    self.workers.submit((row.number, len(row.calls)), call)
                    row.calls.append(request)
                case Done():
                    self._finish(row)

    def _take(self, row: Row, at: int, result: Result) -> None:
        """Keeps a tool's result; the last one awaited turns them all into events, in order."""
        row.results[at] = result
        row.failures[row.calls[at].tool] += isinstance(result, Failed)
        if len(row.results) < len(row.calls):
            return
        calls, results = row.calls, row.results
        row.calls, row.results = [], {}
        for at, call in enumerate(calls):
            self._handle(row, Returned(request=call, result=results[at]))

    def _open_turn(self, row: Row, request: Generate) -> None:
        """Appends the observation and the prime, if a token of the policy fits behind them."""
        context = row.context
        piece = self._piece(row, request)
        prime = self.chat.plain(request.prime) if request.prime else []
        if len(piece.ids) + len(prime) >= context.room:
            if not context.size:
                raise PromptError(
                    f"The prompt of question {row.dialogue.question.data_id!r} takes "
                    f"{len(piece.ids) + len(prime)} tokens and leaves no room in rollout.context "
                    f"= {context.length}. Raise it, or shorten the prompt."
                )
            row.truncated = True
            row.dialogue = replace(row.dialogue, done=True)
            self._finish(row)
            return
        context.append(piece.ids, piece.images)
        context.append(prime)
        row.request = request
        row.turn_start = context.size

    def _piece(self, row: Row, request: Generate) -> Piece:
        if not row.context.size:
            return self.chat.prompt(self.method.system, request.parts, image_grid=self.image_grid)
        return self.chat.observation(request.parts, ended=row.ended, image_grid=self.image_grid)

    def _hear(self, row: Row, spoken: Spoken) -> None:
        """Writes the tokens that belong to the turn, and tells the method when it is over."""
        context, request = row.context, row.request
        old = context.ids[row.turn_start :].tolist()
        limit = row.allowance
        turn = old + spoken.ids[:limit].tolist()
        end = ending(
            turn,
            len(old),
            stops=request.stops,
            end_id=self.chat.end_id,
            decode=self.chat.decode,
        )
        if end is None and len(turn) - len(old) == limit:
            end = Ending(num_tokens=len(turn), text=self.chat.decode(turn), finish="length")
            row.truncated = limit == context.room
        used = (len(turn) if end is None else end.num_tokens) - len(old)
        context.write(spoken.ids[:used], spoken.log_probs[:used])
        self.wasted += len(spoken.ids) - used
        if end is not None:
            row.request = None
            row.ended = end.finish == "end"
            self._handle(row, Said(text=end.text, finish=end.finish))

    def _finish(self, row: Row) -> None:
        self.finished[row.number] = row.context.trajectory(
            row.dialogue,
            row.sample,
            num_calls=self.method.num_calls(row.dialogue),
            truncated=row.truncated,
            failures={tool: count for tool, count in row.failures.items() if count},
        )

    def _metrics(self, groups: list[list[Trajectory]], seconds: float) -> dict[str, float]:
        every = [trajectory for group in groups for trajectory in group]
        written = sum(int(trajectory.written.sum()) for trajectory in every)
        workers = self.workers
        generated = self.generator.metrics()
        return {
            "dialogues": len(every),
            "tokens": sum(len(trajectory.ids) for trajectory in every),
            "tokens_sampled": written,
            "tokens_wasted": self.wasted,
            "truncated": sum(trajectory.truncated for trajectory in every),
            "tool_calls": workers.num_calls.total(),
            "tool_failures": workers.num_failures.total(),
            "tool_seconds": workers.tool_seconds,
            "tool_wait_seconds": self.waited,
            "seconds": seconds,
            "tokens_per_second": written / seconds,
            **generated,
            "prefill_ratio": generated["tokens_prefilled"]
            / max(1, _num_environment_tokens(groups)),
        }


def _num_environment_tokens(groups: list[list[Trajectory]]) -> int:
    """Tokens that have to be appended when a group's prompt is appended once."""
    total = 0
    for group in groups:
        total += sum(map(num_environment_tokens, group))
        for trajectory in group[1:]:
            total -= int(np.argmax(trajectory.written)) - 1
    return total
