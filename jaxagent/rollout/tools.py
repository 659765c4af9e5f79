"""Tools beside the loop: calls of many dialogues as one batch, in a worker thread, with a deadline.

A batch that raises is tried again call by call, so one bad call does not take its neighbours along;
a call that keeps failing, or has no result at the deadline, is answered with `Failed` and counted.
A thread cannot be killed: one that hangs is left behind, as a daemon, and its late results are
dropped.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxagent.agents.protocol import Failed, Found, Method, Result, Tool, ToolCall, Tools

MIN_CALLS = 50
"""Failures are judged as if at least so many calls had been made: a stray one stops no run."""


class ToolFailure(RuntimeError):
    """Too many tool calls failed for the results to mean anything."""


def check_tools(method: Method, tools: Tools) -> None:
    """ValueError when a tool that the method calls is missing."""
    if missing := sorted(method.tools - tools.keys()):
        raise ValueError(
            f"{method.name} calls {', '.join(missing)}; found {', '.join(sorted(tools)) or 'none'}."
        )


Key = tuple[int, int]
"""A dialogue's number and the place of the call among those it waits for."""


class Answer(NamedTuple):
    """The result of the call that was submitted under `key`."""

    key: Key
    result: Result


@dataclass(eq=False, kw_only=True)
class Job:
    """A batch of calls in the hands of one worker; `results` fills up as they are answered."""

    tool: str
    keys: tuple[Key, ...]
    calls: tuple[ToolCall, ...]
    results: list[Result | None]
    started: float
    finished: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Workers:
    """One worker thread for each batch in flight, and at most one batch for each tool.

    Args:
        seconds: deadline of a batch.
        retries: further tries of a single call that raises.
        max_failure_rate: share of failed calls beyond which `collect` raises ToolFailure.
    """

    def __init__(self, tools: Tools, *, seconds: float, retries: int, max_failure_rate: float):
        self.tools = tools
        self.seconds = seconds
        self.retries = retries
        self.max_failure_rate = max_failure_rate
        self.num_calls: Counter[str] = Counter()
        self.num_failures: Counter[str] = Counter()
        self.tool_seconds = 0.0
        self.last_reason = ""
        self._waiting: dict[str, list[tuple[Key, ToolCall]]] = {}
        self._jobs: list[Job] = []

    @property
    def busy(self) -> bool:
        return bool(self._jobs or self._waiting)

    def submit(self, key: Key, call: ToolCall) -> None:
        """Queues a call for the next batch of its tool."""
        self.num_calls[call.tool] += 1
        self._waiting.setdefault(call.tool, []).append((key, call))

    def start(self) -> None:
        """Hands every queue whose tool is free to a worker, in the order of its keys."""
        taken = {job.tool for job in self._jobs}
        for name in sorted(self._waiting.keys() - taken):
            queue = sorted(self._waiting.pop(name), key=lambda entry: entry[0])
            keys, calls = zip(*queue, strict=True)
            job = Job(
                tool=name,
                keys=keys,
                calls=calls,
                results=[None] * len(calls),
                started=time.monotonic(),
            )
            worker = threading.Thread(
                target=_work, args=(self.tools[name], job, self.retries), daemon=True
            )
            self._jobs.append(job)
            worker.start()

    def collect(self, *, wait: bool) -> list[Answer]:
        """The answers of finished batches; with `wait`, of all batches in flight."""
        answers, running = [], []
        for job in self._jobs:
            left = job.started + self.seconds - time.monotonic()
            if job.done.wait(max(left, 0) if wait else 0) or left <= 0:
                answers += self._answers(job)
            else:
                running.append(job)
        self._jobs = running
        self._check_failures()
        return answers

    def _answers(self, job: Job) -> list[Answer]:
        finished = job.finished if job.done.is_set() else time.monotonic()
        self.tool_seconds += finished - job.started
        late = Failed(f"no answer within {self.seconds:g} seconds")
        results = [late if result is None else result for result in tuple(job.results)]
        failed = [result for result in results if isinstance(result, Failed)]
        if failed:
            self.num_failures[job.tool] += len(failed)
            self.last_reason = f"{job.tool}: {failed[-1].reason}"
        return [Answer(key, result) for key, result in zip(job.keys, results, strict=True)]

    def _check_failures(self) -> None:
        failures, calls = self.num_failures.total(), self.num_calls.total()
        if failures > self.max_failure_rate * max(calls, MIN_CALLS):
            raise ToolFailure(
                f"{failures} of {calls} tool calls failed; the last one was {self.last_reason}. "
                f"rollout.max_failure_rate is {self.max_failure_rate:g}: mend the tool or raise "
                "the rate."
            )


def _work(tool: Tool, job: Job, retries: int) -> None:
    try:
        job.results[:] = _called(tool, job.calls)
    except Exception:  # whatever it is: the single calls below say which one is at fault
        for at, call in enumerate(job.calls):
            job.results[at] = _retried(tool, call, retries)
    job.finished = time.monotonic()
    job.done.set()


def _called(tool: Tool, calls: Sequence[ToolCall]) -> list[Result]:
    results = list(tool(calls))
    wrong = [result for result in results if not isinstance(result, Found | Failed)]
    if len(results) != len(calls) or wrong:
        raise TypeError(f"a batch of {len(calls)} was answered with {results!r:.80}")
    return results


def _retried(tool: Tool, call: ToolCall, retries: int) -> Result:
    for _ in range(1 + retries):
        try:
            return _called(tool, (call,))[0]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    return Failed(" ".join(reason.split())[:200])
