"""`jaxagent report`: the HTML page of a run or of a results file; the README's generated parts."""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.configs import base_config, flat, saved_config
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.tables import markdown_table
from jaxagent.cli.work import WorkFolder
from jaxagent.data.views import FlagImages
from jaxagent.evaluation import metrics, read_rows
from jaxagent.report.page import write_report
from jaxagent.report.records import Report, Table
from jaxagent.report.results import read_results, results_table
from jaxagent.report.run import read_scalars, run_report
from jaxagent.types import Images

COLD_STARTS = {"mmagent_r2": "flags_cold_start", "promsa": "flags_promsa_cold_start"}
"""Method -> the experiment that made its shipped policy."""
SHOWN_VERSIONS = ("jaxagent", "jax", "flax", "optax", "transformers", "scann")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", help="the work folder of a run")
    parser.add_argument("--results", help="a results file of `jaxagent sweep`")
    parser.add_argument(
        "--readme",
        help="write between this file's markers: the results, or without --results the cold start",
    )
    parser.add_argument("--card", help="write what made the policy of --workdir to this JSON file")
    parser.add_argument("--output", help="the page; by default report.html beside its source")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    if rest:
        raise UserError(f"Unknown argument {rest[0]!r}. See `jaxagent report --help`.")
    check_together(options)
    with told(OSError):
        written = write_wanted(options)
    print(f"Written: {written}")
    return 0


def check_together(options: argparse.Namespace) -> None:
    """Refuses options of which one would be passed over in silence."""
    if options.card and (options.results or options.readme or not options.workdir):
        raise UserError(
            "--card is written from the work folder of a training: give --workdir with it, and "
            "neither --results nor --readme."
        )
    if options.readme and options.workdir:
        raise UserError(
            "--readme takes the figures of --results, or alone those of the shipped policies. "
            "Leave out --workdir."
        )
    if options.output and (options.card or options.readme):
        raise UserError("--output names a page, and --card and --readme write none. Leave it out.")
    if not options.readme and bool(options.workdir) == bool(options.results):
        raise UserError("Give either --workdir of a run or --results of a sweep.")


def write_wanted(options: argparse.Namespace) -> Path:
    """Where what was asked for is written."""
    if options.readme:
        name, text = (
            ("results", readme_results(Path(options.results)))
            if options.results
            else ("cold-start", readme_cold_start())
        )
        fill(Path(options.readme), name, text)
        return Path(options.readme)
    if options.results:
        return page_of_results(Path(options.results), options.output)
    folder = WorkFolder.at(options.workdir)
    if options.card:
        Path(options.card).write_text(json.dumps(policy_card(folder), indent=1) + "\n")
        return Path(options.card)
    output = Path(options.output) if options.output else folder.report
    return page_of_run(folder, saved_config(folder.config), output=output)


def page_of_run(folder: WorkFolder, config: ConfigDict, *, output: Path) -> Path:
    """The page of a work folder; it is the same whoever writes it, during a run or long after."""
    others = sorted(folder.dialogues("x").parent.glob("*.jsonl"))
    with told():
        before, after = (rows_of(folder, when) for when in ("before", "after"))
        if not before and not after and others:
            after = read_rows(others[-1])
        scalars = read_scalars(folder.metrics)
    if not before and not after and not folder.metrics.exists():
        raise UserError(f"{folder.root} holds neither a training nor an evaluation yet.")
    report = run_report(
        title=f"{METHOD_NAMES.get(config.method.name, config.method.name)} with "
        f"{ALGORITHM_NAMES.get(config.algorithm.name, config.algorithm.name)}",
        summary_line=f"embedded flags benchmark, seed {config.seed}",
        scalars=scalars,
        before=before,
        after=after,
        facts=facts(folder, config),
        num_dialogues=config.report.dialogues,
    )
    images = images_of(config, folder) if report.dialogues else no_images
    write_report(output, report, images=images, image_side=config.report.image_side)
    return output


def rows_of(folder: WorkFolder, when: str) -> list[dict]:
    """The rows of an evaluation; none when it was not run."""
    path = folder.dialogues(when)
    return read_rows(path) if path.exists() else []


CARD_FIELDS = (
    *("command", "cores", "seed", "figures"),
    *("warm_start_steps", "sft_steps", "sft_minutes"),
)
CARD_FIGURES = ("dialogues", "accuracy", "ident", "R@1", "R@15", "reward")
IN_PERCENT = ("accuracy", "ident", "R@1", "R@15")
METHOD_NAMES = {"mmagent_r2": "MMAgent-R2", "promsa": "ProMSA"}
ALGORITHM_NAMES = {"grpo": "GRPO", "gspo": "GSPO", "tn_gspo": "TN-GSPO"}


def images_of(config: ConfigDict, folder: WorkFolder) -> Images:
    with told():
        return FlagImages(build.kb_folder(config, folder.root), size=config.data.image_side)


def no_images(key: str):
    raise KeyError(key)


def facts(folder: WorkFolder, config: ConfigDict) -> dict[str, str]:
    """What made the page: versions, the config's changes, the machine."""
    base = dict(flat(base_config()))
    changed = {name: value for name, value in flat(config) if base[name] != value}
    return {
        "Work folder": folder.root.name,
        "Changes to configs/base.py": ", ".join(f"{k}={v!r}" for k, v in changed.items()) or "none",
        "Versions": versions_text(versions()),
        "Python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Of the packages that decide a result; those that are not installed are left out."""
    found = {}
    for name in SHOWN_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def versions_text(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def page_of_results(path: Path, output: str | None) -> Path:
    """The page of a sweep: its tables."""
    lines = checked_results(path)
    report = Report(
        title="Results",
        summary=f"{len(lines)} runs",
        tables=[results_table(lines, split) for split in splits_of(lines)],
        facts={"Results file": path.name, "Versions": versions_text(lines[-1]["versions"])},
    )
    target = Path(output) if output else path.with_suffix(".html")
    write_report(target, report, images=no_images)
    return target


def checked_results(path: Path) -> list[dict]:
    """The lines of a results file, some of which were evaluated after training."""
    with told():
        lines = read_results(path)
    if not lines:
        raise UserError(f"{path} holds no run. `jaxagent sweep --results {path}` adds some.")
    if not splits_of(lines):
        raise UserError(
            f"{path} holds no evaluation after training. Sweep with --config.evaluation.when=after "
            "or before,after."
        )
    return lines


def splits_of(lines: Sequence[Mapping]) -> list[str]:
    return sorted({split for line in lines for split in line["after"]})


def readme_results(path: Path) -> str:
    """The README's results, as Markdown."""
    lines = checked_results(path)
    return "\n".join(markdown_table(results_table(lines, split)) for split in splits_of(lines))


def policy_card(folder: WorkFolder) -> dict:
    """What made the policy of a supervised training, and its figures after it."""
    config = saved_config(folder.config)
    name = build.chosen(config.method.name, COLD_STARTS, "method.name")
    with told():
        scalars, rows = read_scalars(folder.metrics), rows_of(folder, "after")
    seconds = [row["time/sft"] for row in scalars if "time/sft" in row]
    if not seconds or not rows:
        raise UserError(
            f"{folder.root} holds no supervised training that was evaluated after it. Run "
            f"`jaxagent train --config {name} --workdir {folder.root}` to its end."
        )
    return {
        "command": f"jaxagent train --config {name} --workdir work/{name}",
        "cores": os.cpu_count(),
        "seed": config.seed,
        "warm_start_steps": config.warm_start.steps,
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


def readme_cold_start() -> str:
    """What the shipped policies' cards say, as Markdown."""
    return "\n".join(map(cold_start_text, build.shipped_methods()))


def cold_start_text(method: str) -> str:
    """What made a method's shipped policy, and a table of its figures."""
    card = read_card(build.policy_folder("shipped", method) / "card.json", method)
    table = Table(
        title=method,
        columns=("split", *(f"{n} %" if n in IN_PERCENT else n for n in CARD_FIGURES)),
        rows=[
            (split, *(card_cell(figures, name) for name in CARD_FIGURES))
            for split, figures in card["figures"].items()
        ],
    )
    warm = f"{card['warm_start_steps']} steps of warm start, then " * bool(card["warm_start_steps"])
    return (
        f"{METHOD_NAMES[method]}: `{card['command']}`, seed {card['seed']}; {warm}"
        f"{card['sft_steps']} updates of SFT in {card['sft_minutes']} minutes on "
        f"{card['cores']} CPU cores.\n\n{markdown_table(table)}"
    )


def card_cell(figures: Mapping[str, float], name: str) -> int | float | None:
    """A figure as the table shows it; None where the method records nothing such."""
    if name == "dialogues":
        return int(figures[name])
    return figures[name] * (100 if name in IN_PERCENT else 1) if name in figures else None


def read_card(path: Path, method: str) -> dict:
    """What `policy_card` wrote for a shipped policy; UserError where it lacks something."""
    again = (
        f"Write it with `jaxagent report --workdir work/{COLD_STARTS[method]} --card {path}`, "
        "after that training."
    )
    try:
        card = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"The card {path} cannot be read: {error.strerror}. {again}") from error
    except ValueError as error:
        raise UserError(f"The card {path} is broken: {error}. {again}") from error
    lacking = [name for name in CARD_FIELDS if not isinstance(card, dict) or name not in card]
    if lacking:
        raise UserError(f"The card {path} lacks {', '.join(lacking)}. {again}")
    return card


def fill(path: Path, name: str, text: str) -> None:
    """Puts the text between the markers `<!-- name:begin -->` and `<!-- name:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    with told():
        old = path.read_text()
    before, found, rest = old.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UserError(f"{path} has no markers {begin} and {end} to write between.")
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")
