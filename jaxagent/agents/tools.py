"""The tools that methods call, as batched functions over an open base and an injected summariser.

A search that cannot be made raises; deadlines, retries and `Failed` are the engine's business.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxagent.agents.protocol import (
    Failed,
    Found,
    ImageQuery,
    Result,
    SummaryQuery,
    TextQuery,
    Tool,
    ToolCall,
    Tools,
)
from jaxagent.retrieval.knowledge_base import KnowledgeBase
from jaxagent.retrieval.names import normal_name
from jaxagent.retrieval.search import search_images, search_passages
from jaxagent.types import Passage

T = TypeVar("T")
Summarise = Callable[[Sequence[SummaryQuery]], Sequence[str | Failed]]
"""Summaries in the order of the queries."""


def image_tool(base: KnowledgeBase) -> Tool:
    """The tool that returns the next entities for an image."""

    def search(calls: Sequence[ToolCall]) -> list[Result]:
        queries = [_arguments(call, ImageQuery) for call in calls]
        found = search_images(
            base,
            [query.image for query in queries],
            [query.top for query in queries],
            [query.exclude for query in queries],
        )
        return [Found(candidates=tuple(candidates)) for candidates in found]

    return search


def page_tool(base: KnowledgeBase) -> Tool:
    """The tool that returns the next entities for an image with all passages of their pages.

    A page is every passage whose title is the entity's name.
    """
    pages: dict[str, list[Passage]] = defaultdict(list)
    for passage in base.passages:
        pages[normal_name(passage.title)].append(passage)
    search = image_tool(base)

    def search_pages(calls: Sequence[ToolCall]) -> list[Result]:
        return [
            found
            if isinstance(found, Failed)
            else Found(
                candidates=found.candidates,
                passages=tuple(
                    passage
                    for candidate in found.candidates
                    for passage in pages.get(normal_name(candidate.name), ())
                ),
            )
            for found in search(calls)
        ]

    return search_pages


def text_tool(base: KnowledgeBase) -> Tool:
    """The tool that returns passages for one or several queries a call, in query order."""

    def search(calls: Sequence[ToolCall]) -> list[Result]:
        arguments = [_arguments(call, TextQuery) for call in calls]
        rows = [(row, query) for row in arguments for query in row.queries]
        found = iter(
            search_passages(
                base,
                [query for _, query in rows],
                [row.top for row, _ in rows],
                [row.exclude for row, _ in rows],
            )
        )
        return [
            Found(passages=tuple(passage for _ in row.queries for passage in next(found)))
            for row in arguments
        ]

    return search


def summary_tool(summarise: Summarise) -> Tool:
    """The tool that condenses passages for a question."""

    def condense(calls: Sequence[ToolCall]) -> list[Result]:
        texts = summarise([_arguments(call, SummaryQuery) for call in calls])
        return [text if isinstance(text, Failed) else Found(text=text) for text in texts]

    return condense


def all_tools(base: KnowledgeBase, summarise: Summarise) -> Tools:
    """Every tool by the name under which methods call it."""
    return {
        "search_images": image_tool(base),
        "search_pages": page_tool(base),
        "search_passages": text_tool(base),
        "summarise": summary_tool(summarise),
    }


def _arguments(call: ToolCall, kind: type[T]) -> T:
    if not isinstance(call.arguments, kind):
        raise TypeError(
            f"{call.tool} was called with {type(call.arguments).__name__};"
            f" it takes {kind.__name__}."
        )
    return call.arguments
