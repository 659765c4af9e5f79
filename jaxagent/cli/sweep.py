"""`jaxagent sweep`: every row of a config's `sweep()`, one JSON line a run; finished rows are kept.

Each row runs in `<workdir>/<name>` with its own resume; all share `<workdir>/kb` and the
compilation cache, and rows that begin alike share the evaluation before training. A row that is in
the results file already is skipped, so the same command goes on after a stop; one that is there
with other fields, or began with other weights, is refused.
"""

import argparse
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.agent import assemble
from jaxagent.cli.checks import checked_training
from jaxagent.cli.configs import (
    as_tuple,
    config_flags,
    differences,
    experiment,
    experiment_name,
    flat,
    read_config,
    were,
)
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.learning import trained
from jaxagent.cli.pages import versions
from jaxagent.cli.progress import Bars
from jaxagent.cli.work import WorkFolder, claim, local_path, open_work_folder
from jaxagent.evaluation import read_rows, write_rows
from jaxagent.json_lines import append_line
from jaxagent.report.results import read_results, result_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="an experiment with a sweep()")
    parser.add_argument("--workdir", required=True, help="holds a folder for each row")
    parser.add_argument("--results", required=True, help="the JSON lines file to append to")
    parser.add_argument("--only", default="", help="rows whose names start so, e.g. grpo")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    changes = config_flags(rest)
    config = experiment_name(options.config)
    rows = wanted_rows(config, options.only)
    check_free(changes, rows)
    wanted = {row.pop("name"): changes | row for row in rows}
    for fields in wanted.values():
        checked_training(read_config(config, fields))
    root, results = open_work_folder(options.workdir), open_results(options.results)
    done = names_done(results, config, wanted)
    for at, (name, fields) in enumerate(wanted.items(), 1):
        print(f"[{at}/{len(wanted)}] {name}", flush=True)
        if name in done:
            print("  is in the results file already")
            continue
        append_line(results, finished_row(config, name, fields, root))
    return 0


def check_free(changes: Mapping[str, str], rows: Sequence[Mapping]) -> None:
    """Refuses a change of a field that a row sets itself."""
    for field in changes:
        if names := [row["name"] for row in rows if field in row]:
            raise UserError(
                f"config.{field} is set by the sweep itself, in {', '.join(names)}. Leave "
                f"--config.{field} out, or choose other rows with --only."
            )


def names_done(results: Path, config: str, wanted: Mapping[str, Mapping]) -> set[str]:
    """The wanted rows that the results file holds; UserError when one of them was another run."""
    with told(ValueError):
        lines = [line for line in read_results(results) if line["config"] == config]
    found = {line["name"]: line for line in lines if line["name"] in wanted}
    for name, line in found.items():
        fields = {field: as_tuple(value) for field, value in line["changes"].items()}
        now = read_config(config, wanted[name])
        begun = differences(read_config(config, fields), now)
        if begun:
            raise UserError(
                f"{results} holds the row {name} with other fields ({were(begun)}). Give the same "
                "fields to go on with that sweep, or another file with --results."
            )
        if line["weights"] != weights_digest(now):
            raise UserError(
                f"{results} holds the row {name} of a run that began with other weights than "
                f"{now.model.folder!r} holds now. Give another file with --results."
            )
    return set(found)


def open_results(path: str) -> Path:
    """The results file, made when missing and known to be writable before anything is run."""
    results = local_path(path, "--results")
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.open("a").close()
    except OSError as error:
        raise UserError(
            f"The results file {results} cannot be written: {error.strerror}. "
            "Give another one with --results."
        ) from error
    return results


def wanted_rows(config: str, prefix: str) -> list[dict]:
    """The rows of the experiment's sweep whose names start with `prefix`."""
    sweep = getattr(experiment(config), "sweep", None)
    if sweep is None:
        raise UserError(f"The experiment {config} has no sweep(); run it with `jaxagent train`.")
    rows = [dict(row) for row in sweep()]
    found = [row for row in rows if row["name"].startswith(prefix)]
    if not found:
        names = ", ".join(row["name"] for row in rows)
        raise UserError(f"No row's name starts with {prefix!r}. Rows: {names}.")
    return found


def finished_row(config_name: str, name: str, changes: dict, root: WorkFolder) -> dict:
    """Runs one row to its end and gives its line."""
    config = read_config(config_name, changes)
    if not config.data.folder:
        config.data.folder = str(root.root / "kb")
    folder = WorkFolder(root.root / name)
    folder.root.mkdir(exist_ok=True)
    claim(folder, config)
    shared = root.root / "evaluation" / f"{start_key(config)}.jsonl"
    if shared.exists() and not folder.dialogues("before").exists():
        with told():
            write_rows(folder.dialogues("before"), read_rows(shared))
    with Bars() as bars:
        world = build.open_world(config, folder, bars)
        agent, params = assemble(config, world, folder, bars)
        result = trained(agent, params, folder, bars)
    if result.before:
        write_rows(shared, result.before)
    return result_line(
        name=name,
        config=config_name,
        changes=json.loads(json.dumps(changes)),
        weights=weights_digest(config),
        seed=config.seed,
        minutes=sum(result.seconds.values()) / 60,
        steps=sum("time/step" in row for row in result.scalars),
        rewards=result.rewards,
        before=result.before,
        after=result.after,
        versions=versions(),
    )


def start_key(config: ConfigDict) -> str:
    """The same for rows whose evaluation before training is the same, so that it is run once."""
    fields = dict(flat(config)) | {"weights": weights_digest(config)}
    if config.model.folder != "new":
        later = ("seed", "algorithm", "optimizer", "packing", "sft", "rl", "checkpoint", "report")
        fields = {k: v for k, v in fields.items() if k.partition(".")[0] not in later}
    return f"before-{zlib.crc32(repr(sorted(fields.items())).encode()):08x}"


def weights_digest(config: ConfigDict) -> str:
    """Of the files that the policy starts from, which can change under one name; "" if new."""
    if config.model.folder == "new":
        return ""
    folder = build.policy_folder(config.model.folder, config.method.name)
    digests = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return " ".join(digests)
