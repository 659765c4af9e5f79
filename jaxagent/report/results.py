"""Runs of a sweep as lines of a results file, and the file as a table.

A line holds the figures of one run and the outcome of every evaluated question before and after, so
that intervals can be drawn again from the file alone:

    {"name": "grpo-0", "config": …, "changes": {field: value}, "weights": …, "seed": 0,
     "minutes": …, "steps": …, "reward": [first, last],
     "before": {split: figures}, "after": {split: figures},
     "outcomes": {split: {data_id: [entity, reward, reward after, accuracy, …, ident., …, R@1]}}}

Runs of one experiment whose names differ in the last number alone are seeds of one row of the
table: a question's outcome is averaged over them before the bootstrap over entities.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxagent.evaluation import Row, metrics
from jaxagent.json_lines import check_rows, read_lines
from jaxagent.report.records import Table
from jaxagent.report.run import METRICS, ends, label
from jaxagent.scoring.metrics import Interval, entity_interval

KEPT = ("dialogues", *METRICS)
FIELDS = {
    **dict.fromkeys(("name", "config", "weights"), str),
    **{"minutes": int | float, "steps": int},
    **dict.fromkeys(("changes", "before", "after", "outcomes", "versions"), dict),
}
"""What a line is read for, and the type of each."""
PAIRS = {"reward": "reward", "accuracy": "accuracy", "ident": "identified"}
"""Metric -> what a row of dialogues calls it; an outcome holds them in this order."""
AT = {name: (1 + 2 * at, 2 + 2 * at) for at, name in enumerate(PAIRS)}
"""Metric -> where an outcome holds it before and after."""
AT_FIRST = 1 + 2 * len(PAIRS)
"""Where an outcome holds whether the retriever's first is right (R@1)."""


def result_line(
    *,
    name: str,
    config: str,
    changes: Mapping[str, object],
    weights: str,
    seed: int,
    minutes: float,
    steps: int,
    rewards: Sequence[float],
    before: Sequence[Row],
    after: Sequence[Row],
    versions: Mapping[str, str],
) -> dict:
    """One run as a line of the results file.

    Args:
        weights: a digest of those that the run began with.
        minutes, steps: of training, without building, evaluating and compiling ahead.
        rewards: mean reward of every step of training, in order; may be empty.
        before, after: either may be empty, when the run was not evaluated then.
    """
    splits = splits_of(before) | splits_of(after)
    return {
        "name": name,
        "config": config,
        "changes": dict(changes),
        "weights": weights,
        "seed": seed,
        "minutes": round(minutes, 2),
        "steps": steps,
        "reward": [round(value, 4) for value in ends(rewards)] if rewards else None,
        "before": {split: figures(before, split) for split in sorted(splits_of(before))},
        "after": {split: figures(after, split) for split in sorted(splits_of(after))},
        "outcomes": {split: outcomes(before, after, split) for split in sorted(splits)},
        "versions": dict(versions),
    }


def splits_of(rows: Iterable[Row]) -> set[str]:
    return {row["split"] for row in rows}


def figures(rows: Sequence[Row], split: str) -> dict[str, float]:
    found = metrics([row for row in rows if row["split"] == split])
    return {name: round(found[name], 4) for name in KEPT if name in found}


def outcomes(before: Sequence[Row], after: Sequence[Row], split: str) -> dict[str, list]:
    """Question -> first entity, the means over its dialogues before and after, and R@1."""
    values: dict[str, list] = {}
    for when, rows in enumerate((before, after)):
        found = defaultdict(list)
        for row in rows:
            if row["split"] == split:
                found[row["data_id"], row["entity_ids"][0]].append(row)
        for (data_id, entity), members in found.items():
            first = float(members[0]["rank"] == 1)
            line = values.setdefault(data_id, [entity, *[None] * (2 * len(PAIRS)), first])
            for metric, field in PAIRS.items():
                if members[0][field] is not None:
                    mean = float(np.mean([row[field] for row in members]))
                    line[AT[metric][when]] = round(mean, 4)
    return values


def read_results(path: Path) -> list[dict]:
    """The lines of a results file; none when there is no such file.

    A last line that was not written to its end is left out, with a message; `append_line` cuts it
    off.

    Raises:
        ValueError: any other line is none that `result_line` made; the message has its number.
    """
    if not path.exists():
        return []
    lines = read_lines(path)
    check_rows(path, lines, line_fault)
    seen = {}
    for number, line in zip(lines.numbers, lines.rows, strict=True):
        run = (line["config"], line["name"], line["weights"], repr(sorted(line["changes"].items())))
        if (first := seen.setdefault(run, number)) != number:
            raise ValueError(
                f"Lines {first} and {number} of {path} are the same run, which would count as two "
                "seeds. Delete one of them."
            )
    if lines.torn:
        logging.warning("The last line of %s is torn, as a stop leaves it; left out.", path)
    return lines.rows


def line_fault(line: Mapping) -> str:
    """What the tables read and the line lacks; nothing when it is a run."""
    lacking = lacking_fields(line) or lacking_figures(line) or lacking_pairs(line)
    if not lacking:
        return ""
    return (
        f"run of `jaxagent sweep`: it lacks {', '.join(lacking)}. Delete it, or name another file."
    )


def lacking_fields(line: Mapping) -> list[str]:
    return [
        f"{name} (it is {line[name]!r})" if name in line else name
        for name, kind in FIELDS.items()
        if not isinstance(line.get(name), kind)
    ]


def lacking_figures(line: Mapping) -> list[str]:
    return [
        f"{when}.{split}.{name}"
        for when in ("before", "after")
        for split, found in line[when].items()
        for name in ("dialogues", "accuracy")
        if not isinstance(found, dict) or not is_number(found.get(name))
    ]


def lacking_pairs(line: Mapping) -> list[str]:
    """What intervals are drawn from, and what a figure after training is held against."""
    before, after, outcomes = line["before"], line["after"], line["outcomes"]
    return [
        *(
            f"outcomes.{split}, {AT_FIRST + 1} values a question"
            for split in sorted(after.keys() | outcomes.keys())
            if not holds_outcomes(outcomes.get(split))
        ),
        *(
            f"before.{split}.{name}"
            for split in sorted(before.keys() & after.keys())
            for name in PAIRS
            if name in after[split] and name not in before[split]
        ),
    ]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def holds_outcomes(found: object) -> bool:
    """Whether these are a split's outcomes: each an entity, then numbers or null."""
    return isinstance(found, dict) and all(
        isinstance(one, list)
        and len(one) == AT_FIRST + 1
        and isinstance(one[0], str)
        and all(value is None or is_number(value) for value in one[1:])
        for one in found.values()
    )


def groups(lines: Iterable[Mapping]) -> dict[tuple[str, ...], list[Mapping]]:
    """(experiment, row of its table, other fields) -> its runs, in the order of the file.

    Runs that began with other weights, or with a field changed besides the seed, are another row.
    """
    found = defaultdict(list)
    for line in lines:
        changes = sorted((k, repr(v)) for k, v in line["changes"].items() if k != "seed")
        key = (line["config"], row_name(line["name"]), line["weights"], repr(changes))
        found[key].append(line)
    return dict(found)


def row_name(run: str) -> str:
    """`grpo-2` belongs to the row `grpo`."""
    stem, dash, number = run.rpartition("-")
    return stem if dash and number.isdigit() else run


def results_table(lines: Sequence[Mapping], split: str) -> Table:
    """One row for each group of seeds, on one split."""
    rows = []
    for (_, name, *_), runs in groups(line for line in lines if split in line["after"]).items():
        steps, minutes = (float(np.mean([run[of] for run in runs])) for of in ("steps", "minutes"))
        cells: list[str | int | float | None] = [name, len(runs), round(steps), minutes]
        for metric in PAIRS:
            change = difference_cell(runs, split, metric, *AT[metric])
            cells += [change_cell(runs, split, metric), change]
        cells.append(difference_cell(runs, split, "ident", AT_FIRST, AT["ident"][1]))
        first = runs[0]["after"][split]
        cells += [100 * first[of] if of in first else None for of in ("tower", "R@1", "R@15")]
        rows.append(cells)
    counts = {line["after"][split]["dialogues"] for line in lines if split in line["after"]}
    return Table(
        title=f"Runs, {label(split)}",
        columns=[
            *("run", "seeds", "steps", "minutes", "reward", "change, 95 %"),
            *("accuracy, %", "change, 95 %", "ident., %", "change, 95 %", "over R@1, 95 %"),
            *("tower", "R@1", "R@15"),
        ],
        rows=rows,
        note=f"Before → after on {label(split)}, {', '.join(f'{n:.0f}' for n in sorted(counts))} "
        "dialogues a run, means over seeds. Steps and minutes are of training alone. "
        "Changes are paired over questions and seeds, and so is what ident. after is over R@1; the "
        "interval is a bootstrap over entities (the first of a question), seeds averaged before. "
        "R@k is the retriever's alone; tower: the trained policy's vision tower reranking its 15; "
        "both of the first seed.",
    )


def shown(metric: str) -> tuple[int, int]:
    """What a metric is multiplied by in a table, and its decimals: shares are in percent."""
    return (1, 2) if metric == "reward" else (100, 1)


def change_cell(runs: Sequence[Mapping], split: str, metric: str) -> str | None:
    """The means over seeds before and after; after alone where a run was not evaluated before."""
    if any(metric not in run["after"][split] for run in runs):
        return None
    whens = ["before", "after"] if all(split in run["before"] for run in runs) else ["after"]
    unit, digits = shown(metric)
    means = [unit * np.mean([run[when][split][metric] for run in runs]) for when in whens]
    return " → ".join(f"{mean:.{digits}f}" for mean in means)


def difference_cell(
    runs: Sequence[Mapping], split: str, metric: str, less: int, of: int
) -> str | None:
    found = pooled_difference(runs, split, less, of)
    if found is None:
        return None
    unit, digits = shown(metric)
    mean, low, high = (
        f"{unit * value:+.{digits}f}" for value in (found.mean, found.low, found.high)
    )
    return f"{mean} ({low} to {high})"


def pooled_difference(runs: Sequence[Mapping], split: str, less: int, of: int) -> Interval | None:
    """Place `of` of an outcome less place `less`, seeds averaged question by question.

    None where nothing was recorded.
    """
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    entities: dict[str, str] = {}
    for run in runs:
        for data_id, line in run["outcomes"][split].items():
            if line[less] is None or line[of] is None:
                return None
            values[data_id].append((line[less], line[of]))
            entities[data_id] = line[0]
    if not values:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in values.values()])
    return entity_interval(means[:, 1], [entities[name] for name in values], minus=means[:, 0])
