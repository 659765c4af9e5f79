"""Fictional countries for supervised traces, so that a small policy learns to look and to copy.

A policy that only ever meets 142 countries learns them by heart: this flag goes by that name, and a
country that is never asked about is always a "no". So a trace may play in a fictional world: every
flag with its colours exchanged and mirrored, every country under an invented name, and the question
in words that mean nothing. What is left to learn is what carries over to countries and wordings it
never met: compare the images, copy the name, copy the question.

    twist5/view:td:twemoji:L2:17   a query view, twisted
    twist5/kb:td                   the base's image under the same twist

Twists act on pixels and number 24: six orders of the colour channels, mirrored or not, turned
upside down or not; twist 0 changes nothing. The tools are asked in the real world and their answers
are translated. Images of training entities alone appear, so none is known by its absence; passages
of all may, as they do when the agent acts.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from jaxagent.agents.protocol import (
    Found,
    ImageQuery,
    Result,
    SummaryQuery,
    TextQuery,
    Tool,
    ToolCall,
    Tools,
)
from jaxagent.types import Images, Passage, Question

TWISTS = tuple(
    (channels, mirrored, turned)
    for channels in permutations(range(3))
    for mirrored in (False, True)
    for turned in (False, True)
)


def twisted_key(key: str, twist: int) -> str:
    """The key of an image under a twist; twist 0 is the image itself."""
    return f"twist{twist}/{key}" if twist else key


def untwisted_key(key: str) -> str:
    """The key of the image that was twisted."""
    return key.rpartition("/")[2]


def twisted_images(images: Images) -> Images:
    """`images` that also knows twisted keys."""

    def pixels(key: str):
        twist, _, plain = key.rpartition("/")
        if not twist:
            return images(key)
        channels, mirrored, turned = TWISTS[int(twist.removeprefix("twist"))]
        found = images(plain)[:: -1 if turned else 1, :: -1 if mirrored else 1, list(channels)]
        return np.ascontiguousarray(found)

    return pixels


@dataclass(frozen=True, kw_only=True)
class Fiction:
    """A world with other flags and other names. `words` are what names are invented from.

    `asked_as` is what the question `text` is told as.
    """

    twist: int
    seed: str
    names: Sequence[str]
    words: Sequence[str]
    text: str = ""
    asked_as: str = ""

    @cached_property
    def invented(self) -> Mapping[str, str]:
        """Real name -> invented name, of one or two words."""
        found = {}
        for name in self.names:
            drawn = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=8).digest()
            first, second = (int.from_bytes(half, "little") for half in (drawn[:4], drawn[4:]))
            parts = [self.words[first % len(self.words)]]
            if second % 2:
                parts.append(self.words[second // 2 % len(self.words)])
            found[name] = " ".join(parts).title()
        return found

    @cached_property
    def real(self) -> Mapping[str, str]:
        """Invented name -> real name."""
        return {invented: name for name, invented in self.invented.items()}

    def passage(self, passage: Passage) -> Passage:
        """The passage under its country's invented name."""
        return replace(passage, title=self.invented.get(passage.title, passage.title))

    def asked(self, query: str) -> str:
        """A query `<invented name>: …` or `<invented name> …` in the real world's words."""
        known = [name for name in self.real if query.startswith(name)]
        name = max(known, key=len, default="")
        return self.real.get(name, "") + self.in_its_words(query[len(name) :])

    def in_its_words(self, told: str) -> str:
        """What is told, with the question as the real world asks it."""
        return told.replace(self.asked_as, self.text)

    def found(self, found: Found) -> Found:
        """A tool's answer, translated."""
        return replace(
            found,
            candidates=tuple(
                replace(
                    one,
                    name=self.invented.get(one.name, one.name),
                    image=twisted_key(one.image, self.twist),
                )
                for one in found.candidates
            ),
            passages=tuple(self.passage(one) for one in found.passages),
        )


def fictional(question: Question, fiction: Fiction) -> Question:
    """The question about the fiction's images, in its words."""
    shown = tuple(twisted_key(key, fiction.twist) for key in question.images)
    return replace(question, images=shown, text=fiction.asked_as or question.text)


def reworded(text: str, words: Sequence[str], rng: np.random.Generator) -> str:
    """The text with about half of its words, and its last mark, exchanged for random ones."""
    told = []
    for word in text.rstrip("?.").split(" "):
        end = word[len(word.rstrip("?.,")) :]
        told.append(f"{words[rng.integers(len(words))]}{end}" if rng.random() < 0.5 else word)
    return " ".join(told) + "?."[rng.integers(2)]


def fictional_tools(
    tools: Tools, fictions: Mapping[str, Fiction], *, hidden: frozenset[str]
) -> Tools:
    """Tools that answer each question in its fiction, if it has one.

    Args:
        fictions: by `data_id`.
        hidden: ids of entities that no image search finds.
    """

    def translated(tool: Tool) -> Tool:
        def answer(calls: Sequence[ToolCall]) -> list[Result]:
            results = tool(
                [_real_call(call, fictions.get(call.question.data_id)) for call in calls]
            )
            return [
                fictions[call.question.data_id].found(result)
                if isinstance(result, Found) and call.question.data_id in fictions
                else result
                for call, result in zip(calls, results, strict=True)
            ]

        return answer

    def _real_call(call: ToolCall, fiction: Fiction | None) -> ToolCall:
        match call.arguments:
            case ImageQuery() as query:
                real = replace(
                    query, image=untwisted_key(query.image), exclude=query.exclude | hidden
                )
            case TextQuery() as query if fiction is not None:
                real = replace(query, queries=tuple(map(fiction.asked, query.queries)))
            case SummaryQuery() as query if fiction is not None:
                real = replace(query, question=fiction.in_its_words(query.question))
            case _:
                return call
        return replace(call, arguments=real)

    return {name: translated(tool) for name, tool in tools.items()}


def name_words(texts: Iterable[str], *, lengths: range = range(4, 11)) -> list[str]:
    """The words of `texts` that a name can be invented from: of letters alone, of these lengths."""
    words = {word.strip(".,;:()\"'").lower() for text in texts for word in text.split()}
    return sorted(word for word in words if word.isalpha() and len(word) in lengths)
