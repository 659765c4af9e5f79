"""`jaxagent report`: the HTML page of a run or of a results file; the README's generated parts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxagent.cli import build
from jaxagent.cli.cards import cold_start_text, policy_card
from jaxagent.cli.configs import differences, read_config, saved_config, were
from jaxagent.cli.costs import read_costs
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.pages import (
    checked_results,
    headline_lines,
    page_of_results,
    page_of_run,
    rows_of,
    splits_of,
)
from jaxagent.cli.quickstart import EXPERIMENT, USUAL
from jaxagent.cli.tables import markdown_table
from jaxagent.cli.work import WorkFolder, local_path
from jaxagent.json_lines import write_json, write_whole
from jaxagent.report.results import results_table
from jaxagent.report.run import read_scalars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", help="the work folder of a run")
    parser.add_argument("--results", help="a results file of `jaxagent sweep`")
    parser.add_argument(
        "--readme",
        help="write between this file's markers: the table of --results, what the quickstart in "
        "--workdir gave, or with neither the cold start",
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
    given = {name for name, value in vars(options).items() if value is not None}
    if "card" in given and ({"results", "readme"} & given or "workdir" not in given):
        raise UserError(
            "--card is written from the work folder of a training: give --workdir with it, and "
            "neither --results nor --readme."
        )
    if "output" in given and {"card", "readme"} & given:
        raise UserError("--output names a page, and --card and --readme write none. Leave it out.")
    if {"workdir", "results"} <= given:
        raise UserError("Give either --workdir of a run or --results of a sweep, not both.")
    if not {"readme", "workdir", "results"} & given:
        raise UserError("Give either --workdir of a run or --results of a sweep.")


def write_wanted(options: argparse.Namespace) -> Path:
    """Where what was asked for is written."""
    names = ("results", "output", "readme", "card")
    results, output, readme, card = (
        None if (path := getattr(options, name)) is None else local_path(path, f"--{name}")
        for name in names
    )
    folder = None if options.workdir is None else WorkFolder.at(options.workdir)
    if readme:
        if results:
            fill(readme, "results", readme_results(results))
        elif folder:
            fill(readme, "quickstart", readme_quickstart(folder))
        else:
            fill(readme, "cold-start", readme_cold_start())
        return readme
    if results:
        return page_of_results(results, output)
    if card:
        write_json(card, policy_card(folder))
        return card
    return page_of_run(folder, saved_config(folder.config), output=output or folder.report)


def readme_results(path: Path) -> str:
    """The README's results, as Markdown."""
    lines = checked_results(path)
    return "\n".join(markdown_table(results_table(lines, split)) for split in splits_of(lines))


def readme_quickstart(folder: WorkFolder) -> str:
    """What a run of `jaxagent quickstart` took and printed, as Markdown."""
    changed = differences(saved_config(folder.config), read_config(EXPERIMENT, USUAL))
    if changed:
        raise UserError(
            f"The run in {folder.root} is not `jaxagent quickstart` without changes "
            f"({were(changed)}). Run that, in a new work folder."
        )
    costs = read_costs(folder.costs)
    if "seconds" not in costs:
        raise UserError(
            f"What the run in {folder.root} took is not known: it has not ended, or did not begin "
            "with an empty folder. Run `jaxagent quickstart` in a new one."
        )
    with told():
        before, after = (rows_of(folder, when) for when in ("before", "after"))
        lines = headline_lines(before, after, read_scalars(folder.metrics))
    return "\n".join(
        [
            f"The quickstart takes {costs['seconds'] / 60:.1f} minutes on {costs['cores']} CPU "
            f"cores and {costs['peak_bytes'] / 1e9:.1f} GB of memory at its peak, and ends with",
            "",
            "```",
            *lines,
            "```",
        ]
    )


def readme_cold_start() -> str:
    """What the shipped policies' cards say, as Markdown."""
    return "\n".join(map(cold_start_text, build.shipped_methods()))


def fill(path: Path, name: str, text: str) -> None:
    """Puts the text between the markers `<!-- name:begin -->` and `<!-- name:end -->`.

    What stood between them is lost, so nothing is written where it could be another's.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    with told():
        content = path.read_bytes()
    try:
        old = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text: {error}.") from error
    before, _, rest = old.partition(begin)
    between, _, after = rest.partition(end)
    if (old.count(begin), old.count(end), rest.count(end)) != (1, 1, 1):
        raise UserError(
            f"{path} has no markers {begin} and {end} to write between: each must stand there "
            "once, in this order."
        )
    if "<!--" in between:
        raise UserError(
            f"Between {begin} and {end} of {path} another comment begins. Move the markers to "
            "where nothing but the generated text lies between them."
        )
    write_whole(path, [f"{before}{begin}\n{text.strip()}\n{end}{after}"])
