"""Summaries of retrieved passages, conditioned on the question: by extraction or by an endpoint.

`extract` is the deterministic default. It ranks sentences by the words they share with the
question, rare words counting more,

    score(s) = sum over the words w of s that stand in the question of log(n / n_w),

n being the number of sentences and n_w of those that hold w. The best sentence of every title comes
first (so that each retrieved page stays visible), then the best of the rest that share any word;
ties go to the earlier sentence, and the chosen ones are shown in their first order, each after its
title.

`EndpointSummariser` asks any server that speaks OpenAI's chat completions. ProMSA uses Qwen3-VL-8B
(its release 32B) there; at most four sentences, `<think>` blocks removed.
"""

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from jaxagent.agents.protocol import Failed, SummaryQuery
from jaxagent.retrieval.lexical import terms
from jaxagent.types import Passage

MAX_SENTENCES = 4
INSTRUCTION = (
    "Summarise what the passages say that helps to answer the question, in at most {sentences}"
    " sentences. Name the page of every fact. Add nothing that the passages do not say."
)


def summarise_by_extraction(queries: Sequence[SummaryQuery]) -> list[str | Failed]:
    """`extract` of every query; it cannot fail."""
    return [extract(query) for query in queries]


def extract(query: SummaryQuery, *, max_sentences: int = MAX_SENTENCES) -> str:
    """The sentences of the passages that fit the question best, with their titles; "" for none."""
    rows = [(one.title, text) for one in query.passages for text in sentences(one.text)]
    rows = list(dict.fromkeys(rows))
    found = [set(words(text)) for _, text in rows]
    spread = Counter(word for row in found for word in row)
    asked = set(words(query.question))
    scores = [
        sum(math.log(len(rows) / spread[word]) for word in sorted(row & asked)) for row in found
    ]
    ranked = sorted(range(len(rows)), key=lambda row: (-scores[row], row))
    first: dict[str, int] = {}
    for row in ranked:
        first.setdefault(rows[row][0], row)
    more = (row for row in ranked if row not in first.values() and found[row] & asked)
    chosen = [*first.values(), *more]
    return "\n".join(f"{title}: {text}" for title, text in _shown(rows, chosen[:max_sentences]))


def _shown(rows: Sequence[tuple[str, str]], chosen: Sequence[int]) -> list[tuple[str, str]]:
    return [rows[row] for row in sorted(chosen)]


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text; `St. Helena` and `U.S. dollar` stay whole."""
    parts = (part.strip() for part in re.split(r"(?<=\w\w\w[.!?])\s+|\n+", text))
    return [part for part in parts if part]


def words(text: str) -> list[str]:
    """The terms of a text for comparison: a plural s is removed."""
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in terms(text)]


def without_thinking(text: str) -> str:
    """The text after its `<think>` blocks; an unclosed one reaches to the end."""
    kept = []
    while (start := text.find("<think>")) >= 0:
        kept.append(text[:start])
        _, closed, text = text[start:].partition("</think>")
        if not closed:
            text = ""
    # Some servers strip the opening tag only.
    return ("".join(kept) + text).rpartition("</think>")[2].strip()


@dataclass(frozen=True, kw_only=True)
class EndpointSummariser:
    """Summaries from an endpoint, e.g. `http://localhost:8000/v1`; call it with a batch of queries.

    A query whose every try fails gives `Failed`. `ask` is replaced in tests.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    timeout_s: float = 60.0
    retries: int = 2
    pause_s: float = 1.0
    """Before the first retry; doubled before each further one."""
    max_parallel: int = 16
    max_tokens: int = 512
    max_characters: int = 24_000
    """Passages beyond this many characters are left out."""
    ask: Callable[[urllib.request.Request, float], bytes] = field(
        default=lambda request, timeout: _bytes(request, timeout), repr=False
    )

    def __post_init__(self):
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(
                f"The summariser's url is {self.url!r}; give one such as http://localhost:8000/v1."
            )

    def __call__(self, queries: Sequence[SummaryQuery]) -> list[str | Failed]:
        with ThreadPoolExecutor(max(1, min(self.max_parallel, len(queries)))) as pool:
            return list(pool.map(self._one, queries))

    def _one(self, query: SummaryQuery) -> str | Failed:
        reason = ""
        for tried in range(1 + self.retries):
            if tried:
                time.sleep(self.pause_s * 2 ** (tried - 1))
            try:
                reply = json.loads(self.ask(self._request(query), self.timeout_s))
                text = without_thinking(reply["choices"][0]["message"]["content"])
            except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if text:
                return text
            reason = "the reply is empty"
        return Failed(f"no summary from {self.url} after {1 + self.retries} tries ({reason})")

    def _request(self, query: SummaryQuery) -> urllib.request.Request:
        body = {
            "model": self.model,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "messages": [
                {"role": "system", "content": INSTRUCTION.format(sentences=MAX_SENTENCES)},
                {
                    "role": "user",
                    "content": f"Question: {query.question}\n\n"
                    + _within(query.passages, self.max_characters),
                },
            ],
        }
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        url = f"{self.url.rstrip('/')}/chat/completions"
        return urllib.request.Request(url, json.dumps(body).encode(), headers)


def _within(passages: Sequence[Passage], limit: int) -> str:
    lines, used = [], 0
    for passage in passages:
        line = f"[{passage.title}] {passage.text}"
        used += len(line) + 1
        if used > limit:
            break
        lines.append(line)
    return "\n".join(lines)


def _bytes(request: urllib.request.Request, timeout: float) -> bytes:
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return reply.read()
