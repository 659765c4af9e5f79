"""A `Report` from what a run left in its folder: scalars, dialogues, config."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from jaxagent.evaluation import Row, Summary, is_harmonic, paired_change, summary
from jaxagent.json_lines import check_rows, read_lines
from jaxagent.report.records import Curve, Figure, Report, Table

CURVES = {
    "reward/total": "Reward of the sampled dialogues",
    "reward/outcome": "Reward: right answer",
    "reward/verification": "Reward: right decisions",
    "reward/format": "Reward: syntax kept",
    "reward/cost": "Reward: cost of calls",
    "reward/groups_with_signal": "Groups whose dialogues differ in reward",
    "dialogue/calls": "Tool calls a dialogue",
    "dialogue/tokens": "Tokens a dialogue",
    "dialogue/truncated": "Dialogues out of room",
    "update/loss": "Loss",
    "update/entropy": "Entropy of the policy, nats a token",
    "update/clipped": "Share of ratios clipped",
    "update/sampler_gap": "Sampler against trainer, nats a token",
    "update/grad_norm": "Norm of the gradient",
    "sft/loss": "SFT: loss",
    "sft/verdict_accuracy": "SFT: verdicts by sight that are right",
}
"""Scalars that are drawn, with their titles; further terms of the reward follow under their names.

What tells of the machine and not of the learning stands in TensorBoard alone.
"""
METRICS = ("accuracy", "ident", "tower", "R@1", "R@15", "rejections", "calls", "tokens", "reward")
SHARES = ("accuracy", "ident", "tower", "R@1", "R@15")
HARMONIC = "harmonic mean of unseen question and unseen entity"


def run_report(
    *,
    title: str,
    summary_line: str,
    scalars: Iterable[Mapping[str, float]],
    before: Sequence[Row],
    after: Sequence[Row],
    facts: Mapping[str, str],
    num_dialogues: int,
) -> Report:
    """The page of one run.

    Args:
        before, after: dialogues of the two evaluations; either may be empty.
        num_dialogues: dialogues that can be read on the page, spread over the last evaluation.
    """
    curves = list(scalar_curves(scalars))
    rows = after or before
    return Report(
        title=title,
        summary=summary_line,
        figures=headlines(before, after, curves) if rows else (),
        curves=curves,
        tables=tables(before, after) if rows else (),
        dialogues=sample_of(rows, num_dialogues),
        facts=facts,
    )


def scalar_curves(rows: Iterable[Mapping[str, float]]) -> Iterable[Curve]:
    """One curve a scalar, known ones first."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if value is not None and (name in CURVES or name.startswith("reward/")):
                series[name].append((row["step"], value))
    known = [name for name in CURVES if name in series]
    for name in [*known, *sorted(series.keys() - CURVES.keys())]:
        yield Curve(title=CURVES.get(name, name), series={name: series[name]})


def headlines(before: Sequence[Row], after: Sequence[Row], curves: Sequence[Curve]) -> list[Figure]:
    """The three figures that matter: right answers, right entities, reward in training.

    Training questions are in none of the first two where others were asked.
    """
    rows = after or before
    now = summary(rows).overall
    then = summary(before).overall if before and after else {}
    figures = [
        Figure(
            label="Right answers",
            value=percent(now["accuracy"]),
            note=was(then, "accuracy")
            + f"{now['dialogues']:.0f} dialogues"
            + f", {HARMONIC}" * is_harmonic(row["split"] for row in rows),
        )
    ]
    if "ident" in now:
        figures.append(
            Figure(
                label="Right entity named",
                value=percent(now["ident"]),
                note=was(then, "ident")
                + f"the retriever's first: {percent(now['R@1'])}, its 15: {percent(now['R@15'])}",
            )
        )
    reward = [curve for curve in curves if curve.title == CURVES["reward/total"]]
    if reward:
        first, last = ends([y for _, y in reward[0].series["reward/total"]])
        note = f"was {first:.2f}; means of the first and last fifth of training"
        figures.append(Figure(label="Reward in training", value=f"{last:.2f}", note=note))
    return figures


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and of the last fifth."""
    width = max(1, len(values) // 5)
    return sum(values[:width]) / width, sum(values[-width:]) / width


def was(then: Mapping[str, float], name: str) -> str:
    return f"was {percent(then[name])}; " if name in then else ""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def tables(before: Sequence[Row], after: Sequence[Row]) -> list[Table]:
    """Figures by split, by type, and the change with its interval."""
    runs = {name: summary(rows) for name, rows in (("before", before), ("after", after)) if rows}
    out = [by_split(runs), by_type(runs)]
    if before and after:
        out.append(changes(before, after))
    return out


def by_split(runs: Mapping[str, Summary]) -> Table:
    splits = sorted(next(iter(runs.values())).groups.keys() & all_splits(runs))
    rows = [
        [label(split), name, int(figures["dialogues"]), *cells(figures)]
        for split in splits
        for name, figures in ((name, run.groups[split]) for name, run in runs.items())
    ]
    if len(splits) > 1:
        rows += [
            ["all", name, int(run.overall["dialogues"]), *cells(run.overall)]
            for name, run in runs.items()
        ]
    return Table(
        title="By split",
        columns=["split", "policy", "dialogues", *METRICS],
        rows=rows,
        note="Shares in percent"
        + "; all leaves training questions out" * leaves_train_out(splits)
        + f"; accuracy over all is the {HARMONIC}" * is_harmonic(splits)
        + ". R@k is the retriever's alone; tower: the policy's vision tower reranking its 15 by "
        "cosine, with no dialogue. Rejections, calls, tokens and reward are means a dialogue.",
    )


def all_splits(runs: Mapping[str, Summary]) -> set[str]:
    """Groups that have subgroups `split family`."""
    names = {name for run in runs.values() for name in run.groups}
    return {name.partition(" ")[0] for name in names if " " in name}


def leaves_train_out(splits: Collection[str]) -> bool:
    """Whether figures over all these splits are without training questions."""
    return "train" in splits and len(splits) > 1


def cells(figures: Mapping[str, float]) -> list[float | None]:
    return [
        None if name not in figures else figures[name] * (100 if name in SHARES else 1)
        for name in METRICS
    ]


def by_type(runs: Mapping[str, Summary]) -> Table:
    groups = sorted({name for run in runs.values() for name in run.groups} - all_splits(runs))
    groups = [name for name in groups if " " not in name]
    rows = []
    for group in groups:
        of = [run.groups.get(group, {}) for run in runs.values()]
        counts = max(int(figures.get("dialogues", 0)) for figures in of)
        accuracy = [100 * figures["accuracy"] if figures else None for figures in of]
        rows.append([label(group), counts, *accuracy])
    columns = ["questions", "dialogues", *(f"accuracy {name}" for name in runs)]
    note = "Percent" + ", without training questions" * leaves_train_out(all_splits(runs))
    return Table(
        title="By family, kind of answer and view",
        columns=columns,
        rows=rows,
        note=f"{note}. An ambiguous view keeps too little of its image.",
    )


def changes(before: Sequence[Row], after: Sequence[Row]) -> Table:
    """After less before on the same questions."""
    rows = []
    for split in sorted({row["split"] for row in after}):
        old = [row for row in before if row["split"] == split]
        new = [row for row in after if row["split"] == split]
        for name, value in (
            ("accuracy", "accuracy"),
            ("ident", "identified"),
            ("reward", "reward"),
        ):
            if any(row[value] is None for row in (*old, *new)):
                continue
            change = paired_change(old, new, value=lambda row, value=value: row[value])
            unit = 100 if name in SHARES else 1
            interval = f"{unit * change.low:+.3g} to {unit * change.high:+.3g}"
            rows.append([label(split), name, f"{unit * change.mean:+.3g}", interval])
    return Table(
        title="What training changed",
        columns=["split", "figure", "after − before", "95 % interval"],
        rows=rows,
        note="Points of percent for accuracy and ident. The interval is a paired bootstrap that "
        "draws entities.",
    )


def label(name: str) -> str:
    return name.replace("_", " ")


def sample_of(rows: Sequence[Row], count: int) -> list[Row]:
    """Every so-many-th dialogue."""
    if len(rows) <= count:
        return list(rows)
    return [rows[at * len(rows) // count] for at in range(count)]


def read_scalars(path: Path) -> list[dict]:
    """Rows of metrics.jsonl but a torn last one; none when there is no such file.

    Raises:
        ValueError: any other line is no row, or holds what is no number.
    """
    if not path.exists():
        return []
    lines = read_lines(path)
    check_rows(path, lines, scalars_fault)
    return lines.rows


def scalars_fault(row: Mapping) -> str:
    for name, value in row.items():
        if not isinstance(value, int | float | None):
            return f"step of a training: {name} is {value!r}."
    return "" if row.get("step") is not None else "step of a training: it lacks step."
