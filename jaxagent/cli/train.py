"""`jaxagent train`: an experiment in a work folder, resumed where it was stopped."""

import argparse
from collections.abc import Sequence

import jax

from jaxagent.cli import build
from jaxagent.cli.agent import assemble
from jaxagent.cli.checks import checked
from jaxagent.cli.configs import config_flags, experiments, read_config
from jaxagent.cli.learning import trained
from jaxagent.cli.progress import Bars
from jaxagent.cli.report import page_of_run
from jaxagent.cli.work import claim, open_work_folder
from jaxagent.report.run import headlines, scalar_curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help=f"one of {', '.join(experiments())}")
    parser.add_argument("--workdir", required=True, help="what the run leaves lies here")
    parser.add_argument(
        "--distributed", action="store_true", help="one process of many: joins the others first"
    )
    parser.epilog = "Any field of configs/base.py: --config.name=value"


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config = read_config(options.config, config_flags(rest))
    if options.distributed:
        jax.distributed.initialize()
    folder = open_work_folder(options.workdir)
    claim(folder, checked(config))
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        agent, params = assemble(config, world, folder, bars)
        result = trained(agent, params, folder, bars)
    if jax.process_index():
        return 0
    page = page_of_run(folder, config, output=folder.report)
    if result.before or result.after:
        for figure in headlines(result.before, result.after, list(scalar_curves(result.scalars))):
            print(f"{figure.label}: {figure.value} ({figure.note})")
    print(f"Report: {page}")
    return 0
