"""`jaxagent kb build | info`: the benchmark with its knowledge base, and the retriever's recall."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from jaxagent.cli import build
from jaxagent.cli.configs import config_flags, read_config
from jaxagent.cli.errors import told
from jaxagent.cli.progress import Bars
from jaxagent.cli.work import open_work_folder
from jaxagent.data.benchmark import open_benchmark
from jaxagent.data.questions import SPLITS
from jaxagent.retrieval.headers import read_header
from jaxagent.retrieval.search import recall
from jaxagent.types import Split

TOPS = (1, 5, 15)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("build", "info"), help="make it, or tell what it holds")
    parser.add_argument("--workdir", required=True, help="the work folder; the base lies in kb/")
    parser.add_argument("--config", default="flags_mmagent_r2_grpo", help="an experiment")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config = read_config(options.config, config_flags(rest))
    if options.action == "info":
        print(info(build.kb_folder(config, Path(options.workdir))))
        return 0
    folder = open_work_folder(options.workdir)
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        figures = measured_recall(world, count=config.retrieval.measured, progress=bars)
    (world.benchmark.folder / "recall.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(info(world.benchmark.folder))
    return 0


def measured_recall(
    world: build.World, *, count: int, progress: Bars
) -> dict[Split, dict[int, float]]:
    """R@k of the image search by split, over the images of `count` one-image questions each."""
    figures = {}
    for done, split in enumerate(SPLITS, 1):
        found = world.questions(split, families=("single", "bridge"))
        figures[split] = recall(world.base, found[:count], TOPS) if found else {}
        progress("retriever's recall", done, len(SPLITS))
    return figures


def info(folder: Path) -> str:
    """What a built benchmark and base hold, as text."""
    with told():
        lines = [f"Knowledge base in {folder}", open_benchmark(folder).summary()]
        missing = read_header(folder / "base", "knowledge base")["missing"]
    if missing:
        keys = ", ".join(row["image"] for row in missing)
        lines.append(f"Unreadable images of the base, not replaced: {keys}")
    figures = folder / "recall.json"
    if figures.exists():
        lines += recall_lines(json.loads(figures.read_text()))
    return "\n".join(lines)


def recall_lines(figures: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{split}: the image search finds the entity in "
        + ", ".join(f"{100 * share:.1f} % (first {top})" for top, share in shares.items())
        for split, shares in figures.items()
        if shares
    ]
