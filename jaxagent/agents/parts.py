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
    """Each candidate's image, its number on a line of its own if wanted, and its name on a line.

    No space stands before the name: its tokens are those that `<rerank>name` takes. The number
    stands behind the image, where a policy can know what it saw.
    """
    parts: list[Part] = []
    for number, candidate in enumerate(candidates, start=1):
        told = f"{number}\n{candidate.name}\n" if numbered else f"{candidate.name}\n"
        parts += [ImageRef(candidate.image), told]
    return tuple(parts)


def passage_lines(passages: tuple[Passage, ...]) -> str:
    """One line a passage: title and text."""
    return "\n".join(f"{passage.title}. {passage.text}" for passage in passages)
