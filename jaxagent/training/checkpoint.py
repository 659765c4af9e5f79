"""Checkpoints of a training: saved atomically by orbax, at step boundaries, and found again.

A checkpoint holds trained parameters, optimiser, update counter, and as JSON how far the run is.
Frozen parameters come from the policy's folder; their checksum is kept, so that another folder is
noticed. A checkpoint that cannot be read is passed over with a message, and the one before it is
taken; where none can be read, nothing is trained over them.
"""

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxagent.training.step import Learner
from jaxagent.trees import Params

logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """A learner, and the record that was saved with it."""

    learner: Learner
    record: Mapping[str, Any]


class CheckpointError(ValueError):
    """Checkpoints that belong to another run, or of which none can be read."""


class Checkpoints:
    """The checkpoints in a folder, at most `keep`. `close` waits for what is being written."""

    def __init__(self, folder: str | Path, *, keep: int = 2):
        self.folder = Path(folder).absolute()
        self._manager = ocp.CheckpointManager(
            self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        )

    def save(self, step: int, learner: Learner, record: Mapping[str, Any]) -> None:
        """Writes the learner after `step` steps; `record` is JSON."""
        record = {"record": dict(record), "frozen": checksum(learner.frozen)}
        arguments = ocp.args.Composite(
            learner=ocp.args.StandardSave(_saved(learner)), record=ocp.args.JsonSave(record)
        )
        if step in self._manager.all_steps():  # one that was passed over
            self._manager.delete(step)
        self._manager.save(step, args=arguments, force=True)

    def restore(self, learner: Learner) -> Restored | None:
        """The newest readable checkpoint in the shapes and places of `learner`; None without one.

        Raises:
            CheckpointError: it was saved beside other frozen parameters, or none is readable.
        """
        reason, steps = "", sorted(self._manager.all_steps(), reverse=True)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, _saved(learner))
        for step in steps:
            arguments = ocp.args.Composite(
                learner=ocp.args.StandardRestore(target), record=ocp.args.JsonRestore()
            )
            try:
                found = self._manager.restore(step, args=arguments)
            except Exception as error:  # orbax raises many kinds for a torn folder
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                logger.warning("Checkpoint %d in %s cannot be read: %s", step, self.folder, reason)
                continue
            if found.record["frozen"] != checksum(learner.frozen):
                raise CheckpointError(
                    f"Checkpoint {step} in {self.folder} was saved beside other frozen parameters. "
                    "Give the policy folder that the run began with, or another work folder."
                )
            return Restored(learner._replace(**found.learner), found.record["record"])
        if steps:
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be read ({reason}). Delete that folder to "
                "train from the start, or name another work folder."
            )
        return None

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def checksum(params: Params) -> int:
    """A number that differs when any parameter does."""
    total = 0
    for leaf in jax.tree.leaves(params):
        total = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).tobytes(), total)
    return total


def _saved(learner: Learner) -> dict[str, Any]:
    return {name: value for name, value in learner._asdict().items() if name != "frozen"}
