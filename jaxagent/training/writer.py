"""Scalars of a training: one JSON line a step in metrics.jsonl, and TensorBoard's event files.

The file may hold several trainings one after the other (SFT, then RL); a line tells whose it is by
the scalar `time/<name>`, the seconds that training has taken so far. One that is resumed after step
k goes on from there: its later lines are cut off, and the file reads as if it had never stopped.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

METRICS = "metrics.jsonl"


class Writer:
    """What writes the scalars of training `name`; `after` is the last of its steps that stands."""

    def __init__(self, folder: str | Path, name: str, *, after: int = 0):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS
        self.name = name
        kept = kept_lines(path, name, after)
        path.write_text("".join(kept))
        self._file = path.open("a")
        self._board = SummaryWriter(str(folder / name), purge_step=after + 1 if after else None)

    def write(self, step: int, scalars: Mapping[str, float], *, seconds: float) -> None:
        """Adds a step's scalars; one that is not finite is null in the JSON and in no curve."""
        scalars = {**scalars, f"time/{self.name}": seconds}
        row = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._file.write(json.dumps({"step": step} | row) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is left."""
        self._file.close()
        self._board.close()


def kept_lines(path: Path, name: str, after: int) -> list[str]:
    """The lines of other trainings, and this one's up to step `after`; torn lines are dropped."""
    if not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if f"time/{name}" not in row or row["step"] <= after:
            kept.append(line)
    return kept
