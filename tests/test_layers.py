"""The package is a stack: a layer imports only layers below it, and agents know no arrays."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxagent"
STACK = (
    ("types", "trees", "json_lines", "suggestions", "bounds"),
    ("sharding",),
    ("models",),
    ("weights",),
    ("processing",),
    ("retrieval",),
    ("agents",),
    ("data",),
    ("rollout",),
    ("services",),
    ("scoring",),
    ("algorithms",),
    ("training",),
    ("evaluation",),
    ("parity", "plan", "report"),
    ("cli",),
)
HEIGHT = {name: height for height, names in enumerate(STACK) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path):
    own = layer(path)
    assert own in HEIGHT, f"jaxagent/{own} has no place in the stack"
    for name in imported(path):
        if name.startswith("jaxagent."):
            other = name.split(".")[1]
            assert HEIGHT[other] <= HEIGHT[own], f"{path} ({own}) imports {name}, which is above it"


@pytest.mark.parametrize(
    "path", [path for path in FILES if layer(path) == "agents"], ids=lambda path: path.stem
)
def test_agents_import_no_arrays(path: Path):
    heavy = {"jax", "jaxlib", "numpy", "flax", "optax", "transformers"}
    found = {name.split(".")[0] for name in imported(path)} & heavy
    assert not found, f"{path} imports {found}: a method is text and values only"
