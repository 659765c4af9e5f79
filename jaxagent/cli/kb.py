"""`jaxagent kb build | info | encoder`: the benchmark with its base, and the retriever's encoder.

`encoder` trains the image encoder that ships with the package (the experiment `flag_encoder`) on
views of the base's own drawings, and leaves its weights and its card in `<workdir>/encoder`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.cards import whole_command
from jaxagent.cli.checks import checked_base
from jaxagent.cli.configs import config_flags, read_config
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.json_files import read_json
from jaxagent.cli.progress import Bars
from jaxagent.cli.records import record
from jaxagent.cli.work import WorkFolder, open_work_folder
from jaxagent.data.benchmark import build_benchmark, open_benchmark
from jaxagent.data.config import FlagsConfig
from jaxagent.data.questions import SPLITS
from jaxagent.json_lines import write_json
from jaxagent.retrieval.knowledge_base import read_header
from jaxagent.retrieval.search import recall
from jaxagent.training.image_encoder import ImageEncoderConfig, train_image_encoder
from jaxagent.types import Split

RECALL = "recall.json"
ACTIONS = {
    "build": "make the benchmark and the base",
    "info": "tell what they hold",
    "encoder": "train the retriever's image encoder",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="; ".join(map(": ".join, ACTIONS.items())))
    parser.add_argument("--workdir", required=True, help="the work folder; the base lies in kb/")
    parser.add_argument("--config", default="flags_mmagent_r2_grpo", help="an experiment")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config = checked_base(read_config(options.config, config_flags(rest)))
    if options.action == "info":
        print(info(build.kb_folder(config, WorkFolder.at(options.workdir).root)))
        return 0
    folder = open_work_folder(options.workdir)
    if options.action == "encoder":
        return train_encoder(options.config, config, folder)
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        figures = measured_recall(world, count=config.retrieval.measured, progress=bars)
    write_json(world.benchmark.folder / RECALL, figures)
    print(info(world.benchmark.folder))
    return 0


def train_encoder(name: str, config: ConfigDict, folder: WorkFolder) -> int:
    """Trains the image encoder by the config and says how it finds the flags."""
    settings = record(ImageEncoderConfig, config, "image_encoder")
    if not settings.steps:
        raise UserError(f"The experiment {name} has image_encoder.steps=0. Try flag_encoder.")
    with Bars() as bars, told(ValueError, OSError, FloatingPointError):
        flags = build_benchmark(
            build.kb_folder(config, folder.root), record(FlagsConfig, config, "data.flags"), bars
        )
        card = train_image_encoder(
            flags,
            folder.root / "encoder",
            settings,
            seed=config.seed,
            command=whole_command("kb encoder", name, config, Path("work") / folder.root.name),
            progress=bars,
        )
    for row in card["recall"]:
        shares = ", ".join(f"{top} {share} %" for top, share in row["unseen_entity"].items())
        print(f"{row['artist']}, views {row['level']}, unseen entities: {shares}")
    print(f"Written: {folder.root / 'encoder'}")
    return 0


def measured_recall(
    world: build.World, *, count: int, progress: Bars
) -> dict[Split, dict[int, float]]:
    """R@k of the image search by split, over the images of `count` one-image questions each."""
    figures = {}
    for done, split in enumerate(SPLITS, 1):
        found = world.questions(split, families=("single", "bridge"))
        figures[split] = recall(world.base, found[:count]) if found else {}
        progress("retriever's recall", done, len(SPLITS))
    return figures


def info(folder: Path) -> str:
    """What a built benchmark and base hold, as text."""
    with told():
        lines = [f"Knowledge base in {folder}", open_benchmark(folder).summary()]
        missing = read_header(folder / "base")["missing"]
    if missing:
        keys = ", ".join(row["image"] for row in missing)
        lines.append(f"Unreadable images of the base, not replaced: {keys}")
    if (folder / RECALL).exists():
        remedy = "`jaxagent kb build` writes it again."
        lines += recall_lines(read_json(folder / RECALL, "record of recall", remedy=remedy))
    return "\n".join(lines)


def recall_lines(figures: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{split}: the image search finds the entity in "
        + ", ".join(f"{100 * share:.1f} % (first {top})" for top, share in shares.items())
        for split, shares in figures.items()
        if shares
    ]
