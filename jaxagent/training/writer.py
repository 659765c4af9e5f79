"""Scalars of a training: one JSON line a step in metrics.jsonl, and TensorBoard's event files.

A run that is resumed after step k goes on from there: later lines of an interrupted run are cut off,
so that the file reads as if the run had never stopped.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

METRICS = "metrics.jsonl"


class Writer:
    """What writes scalars into a folder; `after` is the last step that stands."""

    def __init__(self, folder: str | Path, *, after: int = 0):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / METRICS
        kept = kept_lines(self.path, after)
        self.path.write_text("".join(kept))
        self._file = self.path.open("a")
        self._board = SummaryWriter(str(folder), purge_step=after + 1 if after else None)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a step; a number that is not finite becomes null in the JSON."""
        row = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._file.write(json.dumps({"step": step} | row) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is left."""
        self._file.close()
        self._board.close()


def kept_lines(path: Path, after: int) -> list[str]:
    """The whole lines of steps up to `after`; a line cut off by a kill is dropped."""
    if not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            step = json.loads(line)["step"]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
        if step <= after and line.endswith("\n"):
            kept.append(line)
    return kept
