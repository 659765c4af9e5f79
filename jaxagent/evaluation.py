"""A protocol over splits: which questions, what is kept of a dialogue, and the figures of a run.

    questions ──► dialogues (rows of `evaluation/<name>.jsonl`) ──► Summary

A row is a plain mapping, complete enough to be read in the report and to be counted again. Figures:

    accuracy       by the data set's own metric; over all the harmonic mean (InfoSeek)
    ident.         share of dialogues whose recorded entities equal the true ones for ALL images
    R@1, R@15      the retriever alone, on the same questions
    tower          share where the policy's own vision tower, reranking the retriever's 15, puts
                   the true entity first for all images: sight without a dialogue
    paired change  of two policies on the same questions, with a 95 % interval from a bootstrap that
                   draws ENTITIES with replacement (`scoring.metrics.entity_interval`)

Where questions of other splits were asked, figures over several splits leave training questions
out.

Left out: the public data sets' file formats, and any choice of sampling.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxagent.agents.protocol import with_images
from jaxagent.json_lines import check_rows, read_lines, write_lines
from jaxagent.retrieval.knowledge_base import KnowledgeBase
from jaxagent.retrieval.search import entity_ranks, search_images
from jaxagent.scoring.infoseek import harmonic_mean
from jaxagent.scoring.metrics import (
    Interval,
    answered_right,
    entity_interval,
    identified,
    rejections,
    verified,
)
from jaxagent.scoring.rewards import Reward, scores
from jaxagent.types import (
    Candidate,
    Dialogue,
    ImageRef,
    Passage,
    Progress,
    Question,
    Score,
    Split,
    Trajectory,
    Turn,
    silent,
)

Row = Mapping
"""One dialogue: see `dialogue_row`."""
Sampler = Callable[[Sequence[Question]], Sequence[Sequence[Trajectory]]]
"""Questions to the dialogues of each."""
Towers = Callable[[Sequence[str]], Mapping[str, Float[np.ndarray, " e"]]]
"""Image keys to unit vectors."""
POOL = 15
"""Entities of the retriever's pool in which ranks are looked for: the papers' K (1 + rej_max)."""
FIELDS = (
    *("id", "data_id", "split", "family", "kind", "ambiguous", "entity_ids", "accuracy"),
    *("identified", "rank", "tower", "reward", "terms", "calls", "rejections", "tokens"),
    *("truncated", "turns"),
)
"""What figures are made of in a row, and what the report shows of each."""
VIEWS = {False: "clear_view", True: "ambiguous_view"}
"""The group of a question by whether its image shows too little to tell."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is asked: `count` questions over all `splits` (0 = all)."""

    splits: tuple[Split, ...]
    count: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of one policy: group -> metric -> value, over splits, families, kinds and views.

    `overall["accuracy"]` is the harmonic mean of unseen question and unseen entity (InfoSeek), or
    the mean where only one of them was asked. Figures over several splits, those of types too, are
    of the rows `without_train`.
    """

    overall: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]]


def chosen(questions: Sequence[Question], protocol: Protocol) -> list[Question]:
    """The protocol's questions in the data set's order, spread evenly over splits and entities.

    Within a split the entities take turns, each giving its questions in a seeded order: every
    entity is asked about before any is asked about twice.

    Raises:
        ValueError: a split holds no question.
    """
    kept = set()
    for at, split in enumerate(protocol.splits):
        here = [question for question in questions if question.split == split]
        if not here:
            found = sorted({question.split for question in questions})
            raise ValueError(f"There is no question in split {split!r}. Found: {', '.join(found)}.")
        share = len(protocol.splits)
        wanted = protocol.count // share + (at < protocol.count % share)
        turns = by_turns(here, seed=protocol.seed)
        kept.update(question.data_id for question in (turns[:wanted] if protocol.count else here))
    return [question for question in questions if question.data_id in kept]


def by_turns(questions: Sequence[Question], *, seed: int) -> list[Question]:
    """The questions ordered so that entities take turns; both orders are drawn with the seed."""
    stream = np.random.default_rng(seed)
    shuffled = [questions[at] for at in stream.permutation(len(questions))]
    rounds: dict[str, int] = defaultdict(int)
    keyed = []
    for question in shuffled:
        entity = question.entities[0]
        keyed.append((rounds[entity], len(keyed), question))
        rounds[entity] += 1
    return [question for _, _, question in sorted(keyed, key=lambda row: row[:2])]


def evaluated(
    questions: Sequence[Question],
    *,
    sample: Sampler,
    reward: Reward,
    base: KnowledgeBase,
    towers: Towers | None = None,
    chunk: int = 64,
    progress: Progress = silent,
) -> list[dict]:
    """One row a dialogue, in the order of the questions.

    Args:
        towers: unit vectors of images by the policy's vision tower; None leaves the control out.
        sample: runs dialogues for some questions; asked for `chunk` questions at a time.
    """
    names = {entity.id: entity.name for entity in base.entities.values()}
    ranks = entity_ranks(base, questions, POOL).tolist()
    seen = tower_identified(questions, base, towers) if towers else [None] * len(questions)
    rows: list[dict] = []
    for start in range(0, len(questions), chunk):
        part = slice(start, start + chunk)
        groups = sample(questions[part])
        for group, rank, tower in zip(groups, ranks[part], seen[part], strict=True):
            rows += [
                dialogue_row(done, score, rank=rank, tower=tower, names=names)
                for done, score in zip(group, scores(reward, group), strict=True)
            ]
        progress("evaluation", min(start + chunk, len(questions)), len(questions))
    return rows


def tower_identified(
    questions: Sequence[Question], base: KnowledgeBase, towers: Towers
) -> list[bool]:
    """For each question whether the tower puts the true entity first for all its images."""
    pairs = list(
        dict.fromkeys(
            pair
            for question in questions
            for pair in zip(question.images, question.entities, strict=True)
        )
    )
    images = [image for image, _ in pairs]
    pools = search_images(base, images, [POOL] * len(pairs), [()] * len(pairs))
    found = {candidate.image for pool in pools for candidate in pool}
    vectors = towers(sorted({*images, *found}))
    right = {
        (image, entity): best.entity == entity
        for (image, entity), pool in zip(pairs, pools, strict=True)
        for best in [max(pool, key=lambda one, view=image: vectors[view] @ vectors[one.image])]
    }
    return [
        all(right[pair] for pair in zip(question.images, question.entities, strict=True))
        for question in questions
    ]


def dialogue_row(
    trajectory: Trajectory,
    score: Score,
    *,
    rank: int,
    names: Mapping[str, str],
    tower: bool | None = None,
) -> dict:
    """One dialogue as JSON can hold it.

    Args:
        rank: at which the retriever has found all the question's entities; 0 = not in its pool.
        names: entity id -> name.
        tower: whether the vision tower alone finds the entities; None = not asked.
    """
    dialogue, question = trajectory.dialogue, trajectory.question
    accuracy = answered_right(question, dialogue.answer)
    return {
        "id": f"{question.data_id}#{trajectory.sample}",
        "data_id": question.data_id,
        "split": question.split,
        "family": question.family,
        "kind": question.kind,
        "ambiguous": question.ambiguous,
        "relation": question.relation,
        "question": question.text,
        "images": list(question.images),
        "entity_ids": list(question.entities),
        "entities": [names.get(entity, entity) for entity in question.entities],
        "answers": list(question.answers),
        "answer": dialogue.answer,
        "accuracy": accuracy,
        "correct": accuracy >= 1,
        "identified": identified(dialogue),
        "rank": rank,
        "tower": tower,
        "reward": score.total,
        "terms": dict(score.terms),
        "calls": trajectory.num_calls,
        "rejections": rejections(dialogue),
        "tokens": len(trajectory.ids),
        "truncated": trajectory.truncated,
        "failures": dict(trajectory.failures),
        "turns": turn_rows(dialogue, correct=accuracy >= 1),
    }


def turn_rows(dialogue: Dialogue, *, correct: bool) -> list[dict]:
    """The turns with a verdict on each decision: a rerank, a rejection or the answer."""
    rows, number, right = [], 0, verified(dialogue)
    for turn, image in with_images(dialogue):
        if turn.author == "environment":
            rows.append(environment_row(turn, dialogue.question, image))
            continue
        number += 1
        decision = {"kind": action_words(turn), "right": right.get(number)}
        if decision["kind"] == "answer":
            decision["right"] = correct
        row = {"author": "policy", "text": turn.text, "decision": decision}
        rows.append(row | ({"forced": True} if turn.forced else {}))
    return rows


def action_words(turn: Turn) -> str:
    """An action's name in lower-case words: `SearchImage(1)` is "search image"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(turn.action).__name__).lower()


def environment_row(turn: Turn, question: Question, image: int) -> dict:
    """What came back; the entity of that query image (from 0) and the evidence are marked."""
    candidates = [
        {
            "name": found.name,
            "image": found.image,
            "score": round(found.score, 4),
            "right": found.entity == question.entities[image],
        }
        for found in turn.found
        if isinstance(found, Candidate)
    ]
    passages = [
        {"title": found.title, "text": found.text, "right": found.id in question.evidence}
        for found in turn.found
        if isinstance(found, Passage)
    ]
    parts = [{"image": part.key} if isinstance(part, ImageRef) else part for part in turn.parts]
    return {
        "author": "environment",
        "parts": parts,
        "candidates": candidates,
        "passages": passages,
    }


def summary(rows: Sequence[Row]) -> Summary:
    """Figures over all splits and by split, family, kind, view and split x family.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("There is nothing to summarise: no dialogue was run.")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for name in (row["split"], f"{row['split']} {row['family']}"):
            groups[name].append(row)
    over_splits = without_train(rows)
    for row in over_splits:
        for name in (row["family"], row["kind"], VIEWS[row["ambiguous"]]):
            groups[name].append(row)
    return Summary(
        overall=metrics(over_splits) | {"accuracy": overall_accuracy(over_splits)},
        groups={name: metrics(members) for name, members in sorted(groups.items())},
    )


def without_train(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of all splits but `train`; all rows where there is no other split."""
    return [row for row in rows if row["split"] != "train"] or rows


def metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Figures of one group; shares are 0 to 1."""
    out = {
        "dialogues": float(len(rows)),
        "accuracy": mean(row["accuracy"] for row in rows),
        "R@1": mean(row["rank"] == 1 for row in rows),
        "R@15": mean(1 <= row["rank"] <= 15 for row in rows),
        "rejections": mean(row["rejections"] for row in rows),
        "calls": mean(row["calls"] for row in rows),
        "tokens": mean(row["tokens"] for row in rows),
        "truncated": mean(row["truncated"] for row in rows),
        "reward": mean(row["reward"] for row in rows),
    }
    if any(row["identified"] is not None for row in rows):
        out["ident"] = mean(bool(row["identified"]) for row in rows)
    if any(row["tower"] is not None for row in rows):
        out["tower"] = mean(bool(row["tower"]) for row in rows)
    for term in rows[0]["terms"]:
        out[f"reward {term}"] = mean(row["terms"][term] for row in rows)
    return out


def mean(values: Iterable[float]) -> float:
    return float(np.mean([float(value) for value in values]))


def overall_accuracy(rows: Sequence[Row]) -> float:
    """InfoSeek's "all": the harmonic mean of unseen question and unseen entity, else the mean.

    Args:
        rows: those `without_train`.
    """
    if not is_harmonic(row["split"] for row in rows):
        return mean(row["accuracy"] for row in rows)
    kinds: dict[bool, list[float]] = defaultdict(list)
    for row in rows:
        kinds[row["split"].endswith("unseen_question")].append(row["accuracy"])
    return harmonic_mean(mean(kinds[True]), mean(kinds[False]))


def is_harmonic(splits: Iterable[str]) -> bool:
    """Whether the accuracy over all these splits is a harmonic mean: both kinds are there."""
    return len({split.endswith("unseen_question") for split in splits if split != "train"}) == 2


def paired_change(
    before: Sequence[Row], after: Sequence[Row], *, value: Callable[[Row], float]
) -> Interval:
    """What `after` has more than `before` in the mean of `value`, with its 95 % interval.

    Raises:
        ValueError: the two runs answered different questions.
    """
    old, new = by_question(before, value), by_question(after, value)
    if old.keys() != new.keys():
        raise ValueError(
            f"The two runs share {len(old.keys() & new.keys())} of {len(old.keys() | new.keys())} "
            "questions. Evaluate both with the same protocol."
        )
    return entity_interval(
        np.array([mean(values) for values in new.values()]),
        [entity for entity, _ in new],
        minus=np.array([mean(old[key]) for key in new]),
    )


def by_question(
    rows: Iterable[Row], value: Callable[[Row], float]
) -> dict[tuple[str, str], list[float]]:
    """(first entity, question) -> values of its dialogues."""
    out: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        out[row["entity_ids"][0], row["data_id"]].append(float(value(row)))
    return out


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """JSON lines, there as a whole or not at all."""
    write_lines(path, rows)


def read_rows(path: Path) -> list[dict]:
    """The rows of an evaluation.

    Raises:
        ValueError: a line is torn or no row, or there is none.
    """
    again = "Delete the file; the same command evaluates again."
    lines = read_lines(path)
    if lines.torn:
        raise ValueError(f"The last line of {path} is torn. {again}")
    if not lines.rows:
        raise ValueError(f"{path} holds no dialogue. {again}")

    def fault(row: Row) -> str:
        lacking = [name for name in FIELDS if name not in row]
        words = f"dialogue of this version: it lacks {', '.join(lacking)}. {again}"
        return words if lacking else ""

    check_rows(path, lines, fault)
    return lines.rows
