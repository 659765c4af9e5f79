"""The pages that the commands leave: of a run's work folder, and of a results file."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ml_collections import ConfigDict

from jaxagent.cli import build
from jaxagent.cli.configs import base_config, differences
from jaxagent.cli.errors import UserError, told
from jaxagent.cli.work import WorkFolder
from jaxagent.data.views import FlagImages
from jaxagent.evaluation import Row, read_rows
from jaxagent.report.page import write_report
from jaxagent.report.records import Report
from jaxagent.report.results import read_results, results_table
from jaxagent.report.run import headlines, read_scalars, run_report, scalar_curves
from jaxagent.types import Images

ALGORITHM_NAMES = {"grpo": "GRPO", "gspo": "GSPO", "tn_gspo": "TN-GSPO"}
SHOWN_VERSIONS = ("jaxagent", "jax", "flax", "optax", "transformers", "scann")


def page_of_run(folder: WorkFolder, config: ConfigDict, *, output: Path) -> Path:
    """The page of a work folder; it is the same whoever writes it, during a run or long after."""
    with told():
        before, after = (rows_of(folder, when) for when in ("before", "after"))
        if not before and not after:
            after = newest_rows(folder)
        scalars = read_scalars(folder.metrics)
    if not before and not after and not folder.metrics.exists():
        raise UserError(f"{folder.root} holds neither a training nor an evaluation yet.")
    with told(ValueError):
        report = run_report(
            title=title(config),
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


def title(config: ConfigDict) -> str:
    """The method, and how it was trained."""
    method = build.chosen(config.method.name, build.METHODS, "method.name").title
    if config.rl.steps:
        return f"{method} with {ALGORITHM_NAMES.get(config.algorithm.name, config.algorithm.name)}"
    return f"{method}, supervised" if config.sft.steps else method


def headline_lines(
    before: Sequence[Row], after: Sequence[Row], scalars: Iterable[Mapping[str, float]]
) -> list[str]:
    """The page's headlines as text; none where nothing was evaluated."""
    if not before and not after:
        return []
    figures = headlines(before, after, list(scalar_curves(scalars)))
    return [f"{figure.label}: {figure.value} ({figure.note})" for figure in figures]


def rows_of(folder: WorkFolder, when: str) -> list[dict]:
    """The rows of an evaluation; none when it was not run."""
    path = folder.dialogues(when)
    return read_rows(path) if path.exists() else []


def newest_rows(folder: WorkFolder) -> list[dict]:
    """The rows of the last evaluation of another name, whose config the folder holds."""
    paths = folder.dialogues("x").parent.glob("*.jsonl")
    newest = max(paths, key=lambda path: path.stat().st_mtime, default=None)
    return read_rows(newest) if newest else []


def images_of(config: ConfigDict, folder: WorkFolder) -> Images:
    with told():
        return FlagImages(build.kb_folder(config, folder.root), size=config.data.image_side)


def no_images(key: str):
    raise KeyError(key)


def facts(folder: WorkFolder, config: ConfigDict) -> dict[str, str]:
    """What made the page: versions, the config's changes, the machine."""
    changed = differences(config, base_config())
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


def page_of_results(path: Path, output: Path | None) -> Path:
    """The page of a sweep: its tables."""
    lines = checked_results(path)
    report = Report(
        title="Results",
        summary=f"{len(lines)} runs",
        tables=[results_table(lines, split) for split in splits_of(lines)],
        facts={"Results file": path.name, "Versions": versions_text(lines[-1]["versions"])},
    )
    target = output or path.with_suffix(".html")
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
