"""The loop that SFT and RL share: steps, the clock, checkpoints, scalars, stopping and resuming.

    restore ─► step ─► write scalars ─► save each n steps ─► … ─► save ─► done, or stopped and why

A step is a function of the learner and of its number alone, so a run that goes on from a checkpoint
does what it would have done. SIGTERM and the time limit are looked at after each step: the run
saves and leaves.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxagent.training.batch import MicroBatch
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.step import Learner, NonFiniteGradient, Update
from jaxagent.training.writer import Writer
from jaxagent.trees import flat

NotedProgress = Callable[[str, int, int, str], None]
"""`Progress` with a note, such as how long a step takes."""


class Stepped(NamedTuple):
    """The learner after a step, and the step's scalars."""

    learner: Learner
    scalars: dict[str, float]


class Finished(NamedTuple):
    """The learner at the end, how many steps it took in all, and why the run ended."""

    learner: Learner
    steps: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long a training goes on, and what it leaves in its folder.

    Args:
        name: what the progress bar and the checkpoints call it.
        folder: of `checkpoints/<name>`, `logs` and what a failure leaves.
        steps: after which it is done.
        seconds: of steps, over all resumes, after which it is done; 0 is no limit.
        save_every: steps between checkpoints; the last step is always saved.
        keep: checkpoints that stay.
    """

    name: str
    folder: Path
    steps: int
    seconds: float = 0.0
    save_every: int = 10
    keep: int = 2


def run(
    learner: Learner,
    step: Callable[[Learner, int], Stepped],
    config: Run,
    *,
    begin: Callable[[int], object] = lambda step: None,
    progress: NotedProgress = lambda what, done, total, note: None,
) -> Finished:
    """The learner after the run, resumed from the newest checkpoint when there is one.

    `begin` is called with the number of the first step that is left, and counts in no step's time.
    """
    checkpoints = Checkpoints(config.folder / "checkpoints" / config.name, keep=config.keep)
    restored = checkpoints.restore(learner)
    done, seconds = 0, 0.0
    if restored is not None:
        learner, done = restored.learner, restored.record["steps"]
        seconds = restored.record["seconds"]
    writer = Writer(config.folder / "logs", config.name, after=done)
    reason, saved = "done", done
    try:
        if done < config.steps and not 0 < config.seconds <= seconds:
            begin(done)
        with _Terminations() as terminated:
            while done < config.steps and not terminated.is_set():
                if 0 < config.seconds <= seconds:
                    reason = f"time limit of {config.seconds:.0f} s"
                    break
                start = time.monotonic()
                learner, scalars = step(learner, done)
                took = time.monotonic() - start
                done, seconds = done + 1, seconds + took
                writer.write(done, scalars | {"time/step": took}, seconds=seconds)
                progress(config.name, done, config.steps, f"{took:.1f} s a step")
                if done % config.save_every == 0:
                    checkpoints.save(done, learner, {"steps": done, "seconds": seconds})
                    saved = done
            if terminated.is_set():
                reason = "SIGTERM"
        if saved < done:
            checkpoints.save(done, learner, {"steps": done, "seconds": seconds})
    finally:
        writer.close()
        checkpoints.close()
    return Finished(learner, done, reason)


def updated(
    update: Update, learner: Learner, batches: Sequence[MicroBatch], folder: Path
) -> Stepped:
    """One update; when its gradient is not finite, the batch is left in `folder` for whoever looks.

    Raises:
        NonFiniteGradient: with a note that says where the batch lies.
    """
    try:
        return Stepped(*update.run(learner, batches))
    except NonFiniteGradient as error:
        step = int(error.learner.step)
        path = folder / f"not_finite_{step}"
        path.mkdir(parents=True, exist_ok=True)
        for i, batch in enumerate(batches):
            np.savez(path / f"batch_{i}.npz", **named_arrays(batch))
        (path / "step.json").write_text(json.dumps({"step": step, "parameters": error.names}))
        error.add_note(f"Its micro-batches and the parameters' names are in {path}.")
        raise


def named_arrays(batch: MicroBatch) -> dict[str, np.ndarray]:
    """The arrays of a micro-batch by path."""
    arrays = flat(batch._asdict())
    return {name.replace("/", "."): np.asarray(leaf) for name, leaf in arrays.items()}


class _Terminations:
    """An event that SIGTERM sets while the context is open; outside the main thread never."""

    def __init__(self):
        self.event = threading.Event()
        self.before = None

    def __enter__(self) -> threading.Event:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, lambda *_: self.event.set())
        return self.event

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
