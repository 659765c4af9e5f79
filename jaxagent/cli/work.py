"""A work folder: what lies where in it, and the checks before anything long starts.

config.json            the resolved config that it was begun with, one flat field a line
kb/                    the benchmark and its knowledge base (shared by the runs of a sweep)
checkpoints/  logs/    of the training; logs holds metrics.jsonl and TensorBoard's files
policy/                a new policy as it began (Hugging Face format)
trained/               the policy after training (Hugging Face format)
evaluation/            before.jsonl, after.jsonl and those of other names, one dialogue a line
compiled/              JAX's persistent compilation cache
costs.json             what the run cost
report.html
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
from ml_collections import ConfigDict

from jaxagent.cli.configs import differences, save_config, saved_config, were
from jaxagent.cli.errors import UserError


@dataclass(frozen=True)
class WorkFolder:
    """The paths under `root`."""

    root: Path

    @classmethod
    def at(cls, path: str) -> "WorkFolder":
        """The folder's paths; nothing is made or checked."""
        return cls(local_path(path, "--workdir").absolute())

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        return self.logs / "metrics.jsonl"

    @property
    def policy(self) -> Path:
        return self.root / "policy"

    @property
    def trained(self) -> Path:
        return self.root / "trained"

    @property
    def costs(self) -> Path:
        return self.root / "costs.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def begun(self) -> bool:
        """Whether anything was made here that another config would have made otherwise."""
        kept = (self.policy, self.dialogues("before"), self.checkpoints, self.trained)
        return any(path.exists() for path in kept)

    def dialogues(self, when: str) -> Path:
        """Rows of the evaluation `before` or `after` training, or of a named one."""
        return self.root / "evaluation" / f"{when}.jsonl"


def local_path(path: str, name: str) -> Path:
    """A path on this machine; an address such as `gs://bucket/run` would become a folder `gs:`."""
    if not path:
        raise UserError(f"{name} is empty; give a path, or leave it out.")
    if "://" in path:
        raise UserError(
            f"{name} is {path!r}, an address; it must be a path on this machine. Mount the bucket "
            "(gcsfuse) and give the path below the mount."
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{name} is {path!r}: this machine has no such user.") from error


def open_work_folder(path: str) -> WorkFolder:
    """The folder, made when missing and known to be writable; JAX's compilations are kept in it."""
    folder = WorkFolder.at(path)
    root = folder.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise UserError(
            f"The work folder {root} cannot be written: {error.strerror}. "
            "Give another one with --workdir."
        ) from error
    keep_compilations(root / "compiled")
    return folder


def keep_compilations(folder: Path) -> None:
    """JAX's persistent compilation cache in `folder`, unless the environment names another."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(folder)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def claim(folder: WorkFolder, config: ConfigDict) -> None:
    """Writes the config into the folder, or checks that what lies there was begun with the same."""
    if not folder.begun:
        save_config(config, folder.config)
        return
    begun = differences(saved_config(folder.config), config)
    if begun:
        raise UserError(
            f"The work folder {folder.root} was begun with another config ({were(begun)}). "
            "Give the same fields to go on there, or another --workdir."
        )
