"""BM25 over words: the text search that needs no encoder.

For a query's distinct terms w, with n passages, n_w of them holding w, f the count of w in a
passage of length d:

    rarity_w = log(1 + (n - n_w + 1/2) / (n_w + 1/2))
    score = sum_w rarity_w * f (k1 + 1) / (f + k1 (1 - b + b d / mean d))

Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009. Terms are runs
of letters and digits, case folded and stripped of accents; there is no stemming and no list of stop
words.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float32, Int32

from jaxagent.retrieval.hits import Hits

K1 = 1.2
B = 0.75


def unaccented(text: str) -> str:
    """The text with accents taken off its letters: `Brasília` -> Brasilia."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def terms(text: str) -> list[str]:
    """Words of a text in order: `Côte d'Ivoire, 1960` -> cote d ivoire 1960."""
    return re.findall(r"[^\W_]+", unaccented(text).casefold())


class LexicalIndex:
    """An open BM25 index: for every term, who holds it and what it adds to their score."""

    def __init__(self, texts: Sequence[str]):
        self._size = len(texts)
        counts = [Counter(terms(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], np.float64)
        mean = max(lengths.mean(), 1.0) if len(lengths) else 1.0
        rows, found = defaultdict(list), defaultdict(list)
        for row, count in enumerate(counts):
            for term, times in count.items():
                rows[term].append(row)
                found[term].append(times)
        self._postings: dict[str, tuple[Int32[np.ndarray, " n"], Float32[np.ndarray, " n"]]] = {}
        for term, where in rows.items():
            ids = np.array(where, np.int32)
            times = np.array(found[term], np.float64)
            rarity = np.log1p((self._size - len(ids) + 0.5) / (len(ids) + 0.5))
            weight = times * (K1 + 1) / (times + K1 * (1 - B + B * lengths[ids] / mean))
            self._postings[term] = (ids, (rarity * weight).astype(np.float32))

    def search(
        self,
        queries: Sequence[str],
        top: int,
        *,
        exclude: Sequence[Collection[int]] | None = None,
    ) -> Hits:
        """The best passages that share a word with the query; -1 where there are no more."""
        exclude = exclude or [()] * len(queries)
        hits = [self._row(query, top, out) for query, out in zip(queries, exclude, strict=True)]
        return Hits(
            np.array([scores for scores, _ in hits], np.float32).reshape(-1, top),
            np.array([ids for _, ids in hits], np.int32).reshape(-1, top),
        )

    def _row(
        self, query: str, top: int, exclude: Collection[int]
    ) -> tuple[Float32[np.ndarray, " top"], Int32[np.ndarray, " top"]]:
        scores = np.zeros(self._size, np.float32)
        for term in sorted(set(terms(query))):
            if term in self._postings:
                ids, weight = self._postings[term]
                scores[ids] += weight
        scores[list(exclude)] = 0
        order = np.lexsort((np.arange(self._size), -scores))[:top]
        order = order[scores[order] > 0]
        pad = (0, top - len(order))
        return (
            np.pad(scores[order], pad),
            np.pad(order, pad, constant_values=-1).astype(np.int32),
        )
