"""Questions, candidates and passages as parts of a context, the same for every method."""

from jaxagent.types import Candidate, ImageRef, Part, Passage, Question


def question_parts(question: Question) -> tuple[Part, ...]:
    """The user's message: the query images, numbered when there are several, then the question.

    A colon and a space stand before it as they do in a query `name: question`, so that a policy can
    copy it from its first word on.
    """
    text = f"Question: {question.text}"
    if len(question.images) == 1:
        return ImageRef(question.images[0]), text
    numbered = (
        part
        for number, key in enumerate(question.images, start=1)
        for part in (f"{number} ", ImageRef(key), " ")
    )
    return *numbered, text


def candidate_parts(candidates: tuple[Candidate, ...], *, numbered: bool) -> tuple[Part, ...]:
    """One line a candidate, `1 <image>name`, or without numbers.

    No space stands before the name: its tokens are those that `<rerank>name` takes.
    """
    parts: list[Part] = []
    for number, candidate in enumerate(candidates, start=1):
        if numbered:
            parts.append(f"{number} ")
        parts += [ImageRef(candidate.image), f"{candidate.name}\n"]
    return tuple(parts)


def passage_lines(passages: tuple[Passage, ...]) -> str:
    """One line a passage: title and text."""
    return "\n".join(f"{passage.title}. {passage.text}" for passage in passages)
