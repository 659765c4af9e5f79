"""`jaxagent train`: an experiment in a work folder, resumed where it was stopped."""

import argparse
import time
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.agent import assemble
from jaxagent.cli.checks import checked_training
from jaxagent.cli.configs import config_flags, experiments, read_config
from jaxagent.cli.costs import add_costs, costs_of_command
from jaxagent.cli.errors import UserError
from jaxagent.cli.learning import trained
from jaxagent.cli.pages import headline_lines, page_of_run
from jaxagent.cli.progress import Bars
from jaxagent.cli.work import claim, open_work_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help=f"one of {', '.join(experiments())}")
    parser.add_argument("--workdir", required=True, help="what the run leaves lies here")
    parser.add_argument(
        "--distributed", action="store_true", help="joins the cluster first: one process, for now"
    )
    parser.epilog = "Any field of configs/base.py: --config.name=value"


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config = read_config(options.config, config_flags(rest))
    if options.distributed:
        join_cluster()
    run_and_report(config, options.workdir)
    return 0


def join_cluster() -> None:
    """Joins the cluster that this process runs in; a run cannot be shared by several yet."""
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"--distributed finds no cluster to join: {error} Leave it out to train on this host."
        ) from error
    if (count := jax.process_count()) > 1:
        raise UserError(
            f"The cluster has {count} processes, and a run is one process: one host with all its "
            "devices. Start a single process on one host."
        )


def run_and_report(config: ConfigDict, workdir: str) -> None:
    """Runs the config to its end in a work folder, leaves its page and prints the headlines."""
    started = time.monotonic()
    checked_training(config)
    folder = open_work_folder(workdir)
    from_nothing = not any(folder.root.iterdir())
    claim(folder, config)
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        agent, params = assemble(config, world, folder, bars)
        result = trained(agent, params, folder, bars)
    page = page_of_run(folder, config, output=folder.report)
    if from_nothing:
        add_costs(folder.costs, costs_of_command(time.monotonic() - started))
    for line in headline_lines(result.before, result.after, result.scalars):
        print(line)
    print(f"Report: {page}")
