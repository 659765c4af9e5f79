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

from jaxagent.json_lines import parsed, write_lines

METRICS = "metrics.jsonl"


class Writer:
    """What writes the scalars of training `name`; `after` is the last of its steps that stands."""

    def __init__(self, folder: str | Path, name: str, *, after: int = 0):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS
        self.name = name
        write_lines(path, kept_rows(path, name, after))
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


def kept_rows(path: Path, name: str, after: int) -> list[dict]:
    """The rows of other trainings, and this one's up to step `after`; torn lines are dropped."""
    if not path.exists():
        return []
    rows = filter(None, map(parsed, path.read_bytes().split(b"\n")))
    return [row for row in rows if f"time/{name}" not in row or row["step"] <= after]
