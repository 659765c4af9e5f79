"""Search over an open base, batched over many dialogues, and the retriever's own metric.

Each call carries its own `top` and its own exclusion list, so the batches that a dialogue is served
never overlap:

    pool of an image: a b c d e f g      served: -      ->  a b c      (top 3)
                                         served: a .. c ->  d e f
                                         served: a .. f ->  g          (the pool is exhausted)
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from jaxagent.retrieval.knowledge_base import KnowledgeBase
from jaxagent.types import Candidate, Passage, Question


def search_images(
    base: KnowledgeBase,
    keys: Sequence[str],
    tops: Sequence[int],
    excludes: Sequence[Collection[str]],
) -> list[list[Candidate]]:
    """For each query image the next entities, best first, each with its best image.

    `excludes` holds entity ids. A list shorter than its `top` means that the base is exhausted.
    Raises KeyError for an image key without an image and for an excluded entity that is not in the
    base.
    """
    if not keys:
        return []
    out = [
        {row for entity in served for row in _found(base.image_rows, entity, "entity")}
        for served in excludes
    ]
    vectors = base.query_vectors(
        keys, lambda new: base.image_encoder([base.images(key) for key in new])
    )
    # An entity with several images may fill several places.
    places = max(tops) * max(map(len, base.image_rows.values()))
    hits = base.image_index.search(vectors, places, exclude=out)
    return [
        _candidates(base, scores, ids, top)
        for scores, ids, top in zip(hits.scores, hits.ids, tops, strict=True)
    ]


def _candidates(
    base: KnowledgeBase,
    scores: Float32[np.ndarray, " places"],
    ids: Int32[np.ndarray, " places"],
    top: int,
) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for score, row in zip(scores.tolist(), ids.tolist(), strict=True):
        if row >= 0 and len(best) < top:
            entity = base.entities[base.image_entities[row]]
            if entity.id not in best:
                best[entity.id] = Candidate(
                    entity=entity.id, name=entity.name, image=base.image_keys[row], score=score
                )
    return list(best.values())


def search_passages(
    base: KnowledgeBase,
    queries: Sequence[str],
    tops: Sequence[int],
    excludes: Sequence[Collection[str]],
) -> list[list[Passage]]:
    """For each query the next passages, best first; `excludes` holds passage ids.

    A list shorter than its `top` means that nothing more was found. Raises KeyError for an excluded
    passage that is not in the base.
    """
    if not queries:
        return []
    out = [
        {_found(base.passage_rows, passage, "passage") for passage in served} for served in excludes
    ]
    hits = base.text_index.search(queries, max(tops), exclude=out)
    return [
        [
            dataclasses.replace(base.passages[row], score=score)
            for score, row in zip(scores[:top].tolist(), ids[:top].tolist(), strict=True)
            if row >= 0
        ]
        for scores, ids, top in zip(hits.scores, hits.ids, tops, strict=True)
    ]


def _found(rows: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in rows:
        raise KeyError(f"There is no {what} {name!r} in the base.")
    return rows[name]


def entity_ranks(
    base: KnowledgeBase, questions: Sequence[Question], top: int
) -> Int32[np.ndarray, " g"]:
    """The rank (from 1) by which ALL images of a question found their entity; 0 = not within `top`.

    ranks of the images  2 5   1 -   1
    rank of the question   5     0   1
    """
    pairs = [
        (image, entity)
        for question in questions
        for image, entity in zip(question.images, question.entities, strict=True)
    ]
    pools = search_images(
        base, [image for image, _ in pairs], [top] * len(pairs), [()] * len(pairs)
    )
    ranks = []
    rest = iter(zip(pools, pairs, strict=True))
    for question in questions:
        worst = 0
        for _ in question.images:
            pool, (_, entity) = next(rest)
            places = [place for place, found in enumerate(pool, 1) if found.entity == entity]
            worst = max(worst, places[0]) if places else top + 1
        ranks.append(worst if worst <= top else 0)
    return np.array(ranks, np.int32)


TOPS = (1, 5, 15)
"""The numbers of entities within which recall is told."""


def recall(
    base: KnowledgeBase, questions: Sequence[Question], tops: Sequence[int] = TOPS
) -> dict[int, float]:
    """R@top: the share of questions whose images all find their entity within `top`.

    Raises ValueError when there is no question.
    """
    if not questions:
        raise ValueError("Recall needs at least one question; the split is empty.")
    ranks = entity_ranks(base, questions, max(tops))
    return {top: float(np.mean((ranks > 0) & (ranks <= top))) for top in tops}
