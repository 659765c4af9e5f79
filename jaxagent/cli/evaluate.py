"""`jaxagent evaluate`: a policy over splits; figures on the screen, dialogues in a file."""

import argparse
from collections.abc import Sequence

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.agent import assemble
from jaxagent.cli.checks import check_some, checked_agent
from jaxagent.cli.configs import apply, config_flags, read_config, saved_config
from jaxagent.cli.errors import UserError
from jaxagent.cli.progress import Bars
from jaxagent.cli.tables import text_table
from jaxagent.cli.work import WorkFolder, claim, open_work_folder
from jaxagent.data.questions import SPLITS
from jaxagent.evaluation import summary, write_rows
from jaxagent.report.run import by_split, by_type
from jaxagent.weights.folder import is_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="a training's work folder, or a new one")
    parser.add_argument("--config", help="an experiment; without it, the work folder's own")
    parser.add_argument("--name", default="evaluation", help="of the file of dialogues")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    check_name(options.name)
    config = checked_agent(wanted_config(options, rest))
    check_some(config, "evaluation.splits", SPLITS)
    folder = open_work_folder(options.workdir)
    if config.model.folder == "new" or not folder.begun:
        claim(folder, config)
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        agent, params = assemble(config, world, folder, bars)
        rows = agent.evaluate(params, progress=bars)
    write_rows(folder.dialogues(options.name), rows)
    runs = {options.name: summary(rows)}
    for table in (by_split(runs), by_type(runs)):
        print(text_table(table))
    print(f"Dialogues: {folder.dialogues(options.name)}")
    return 0


def check_name(name: str) -> None:
    """Refuses a name that is no plain one, or that a training keeps its own dialogues under."""
    if name in ("before", "after"):
        raise UserError(
            f"--name is {name!r}, where a training keeps its own evaluation. Give another name."
        )
    if not name or set(name) & set("/\\"):
        raise UserError(f"--name is {name!r}; it must be a file's name without a folder.")


def wanted_config(options: argparse.Namespace, rest: Sequence[str]) -> ConfigDict:
    """The experiment's config, or the one of the work folder with the policy trained there."""
    changes = config_flags(rest)
    if options.config:
        return read_config(options.config, changes)
    folder = WorkFolder.at(options.workdir)
    if not folder.config.exists():
        raise UserError(
            f"{folder.root} holds no training. Give --workdir of a `jaxagent train`, or --config "
            "to evaluate a policy as it is."
        )
    config = saved_config(folder.config)
    if is_whole(folder.trained):
        config.model.folder = str(folder.trained)
    elif config.sft.steps or config.rl.steps:
        raise UserError(
            f"No training has ended in {folder.root}. Run `jaxagent train` there to its end, or "
            "give --config to evaluate the policy that it starts from."
        )
    apply(config, changes)
    return config
