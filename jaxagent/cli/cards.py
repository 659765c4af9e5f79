"""The card of a shipped policy: what made it and its figures, from the folder of its training."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.configs import differences, read_config, saved_config
from jaxagent.cli.costs import read_costs
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.json_files import read_json
from jaxagent.cli.pages import rows_of, versions
from jaxagent.cli.tables import markdown_table
from jaxagent.cli.work import WorkFolder
from jaxagent.evaluation import metrics
from jaxagent.report.records import Table
from jaxagent.report.run import read_scalars
from jaxagent.weights.folder import CARD

CARD_FIELDS = (
    *("command", "cores", "seed", "figures"),
    *("warm_start_steps", "sft_steps", "sft_minutes"),
)
CARD_FIGURES = ("dialogues", "accuracy", "ident", "R@1", "R@15", "reward")
IN_PERCENT = ("accuracy", "ident", "R@1", "R@15")


def policy_card(folder: WorkFolder) -> dict:
    """What made the policy of a supervised training, and its figures after it.

    `warm_start_minutes` is there where it was measured.
    """
    config = saved_config(folder.config)
    name = build.chosen(config.method.name, build.METHODS, "method.name").cold_start
    with told():
        scalars, rows = read_scalars(folder.metrics), rows_of(folder, "after")
    seconds = [row["time/sft"] for row in scalars if "time/sft" in row]
    if not seconds or not rows:
        raise UserError(
            f"{folder.root} holds no supervised training that was evaluated after it. Run "
            f"`{train_command(name, config, folder.root)}` to its end."
        )
    costs = read_costs(folder.costs)
    warm = costs.get("policy_seconds")
    return {
        "command": train_command(name, config, Path("work") / name),
        "cores": costs.get("cores", os.cpu_count()),
        "seed": config.seed,
        "warm_start_steps": config.warm_start.steps,
        **({"warm_start_minutes": round(warm / 60, 1)} if warm else {}),
        "sft_steps": len(seconds),
        "sft_minutes": round(seconds[-1] / 60, 1),
        "figures": {
            split: {
                name: round(value, 4)
                for name, value in metrics([row for row in rows if row["split"] == split]).items()
                if name in CARD_FIGURES
            }
            for split in sorted({row["split"] for row in rows})
        },
        "versions": versions(),
    }


def train_command(name: str, config: ConfigDict, workdir: Path) -> str:
    """The command that trains by `config`."""
    return whole_command("train", name, config, workdir)


def whole_command(command: str, name: str, config: ConfigDict, workdir: Path) -> str:
    """The command by `config`: the experiment, and every field that differs from it."""
    changed = differences(config, read_config(name, {}))
    words = ["jaxagent", *command.split(), "--config", name, "--workdir", str(workdir)]
    return shlex.join([*words, *(f"--config.{field}={value}" for field, value in changed.items())])


def cold_start_text(method: str) -> str:
    """What made a method's shipped policy, and a table of its figures."""
    card = read_card(build.policy_folder("shipped", method) / CARD, method)
    table = Table(
        title=method,
        columns=("split", *(f"{n} %" if n in IN_PERCENT else n for n in CARD_FIGURES)),
        rows=[
            (split, *(card_cell(figures, name) for name in CARD_FIGURES))
            for split, figures in card["figures"].items()
        ],
    )
    return (
        f"{build.METHODS[method].title}: `{card['command']}`, seed {card['seed']}; "
        f"{warm_text(card)}{card['sft_steps']} updates of SFT in {card['sft_minutes']} minutes on "
        f"{card['cores']} CPU cores.\n\n{markdown_table(table)}"
    )


def warm_text(card: Mapping) -> str:
    if not card["warm_start_steps"]:
        return ""
    minutes = card.get("warm_start_minutes")
    took = "" if minutes is None else f" in {minutes} minutes"
    return f"{card['warm_start_steps']} steps of warm start{took}, then "


def card_cell(figures: Mapping[str, float], name: str) -> int | float | None:
    """A figure as the table shows it; None where the method records nothing such."""
    if name == "dialogues":
        return int(figures[name])
    return figures[name] * (100 if name in IN_PERCENT else 1) if name in figures else None


def read_card(path: Path, method: str) -> dict:
    """What `policy_card` wrote for a shipped policy; UserError where it lacks something."""
    training = f"work/{build.METHODS[method].cold_start}"
    again = (
        f"Write it with `jaxagent report --workdir {training} --card {path}`, after that training."
    )
    card = read_json(path, "card", remedy=again)
    lacking = [name for name in CARD_FIELDS if name not in card]
    if lacking:
        raise UserError(f"The card {path} lacks {', '.join(lacking)}. {again}")
    return card
