"""Questions, candidates and passages as parts of a context, the same for every method."""

from jaxagent.types import Candidate, ImageRef, Part, Passage, Question


def question_parts(question: Question) -> tuple[Part, ...]:
    """The user's message: the query images, numbered when there are several, then the question."""
    if len(question.images) == 1:
        return ImageRef(question.images[0]), question.text
    numbered = (
        part
        for number, key in enumerate(question.images, start=1)
        for part in (f"{number} ", ImageRef(key), " ")
    )
    return *numbered, question.text


def candidate_parts(candidates: tuple[Candidate, ...]) -> tuple[Part, ...]:
    """`1 <image> name 2 <image> name …`: the name follows the image that it names."""
    parts: list[Part] = ["1 "]
    for number, candidate in enumerate(candidates, start=2):
        last = number > len(candidates)
        parts.append(ImageRef(candidate.image))
        parts.append(f" {candidate.name}" if last else f" {candidate.name} {number} ")
    return tuple(parts)


def passage_lines(passages: tuple[Passage, ...]) -> str:
    """One line a passage: title and text."""
    return "\n".join(f"{passage.title}. {passage.text}" for passage in passages)
