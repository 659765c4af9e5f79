"""A scripted policy and fake tools, so that a method can be played without a model or an index."""

from collections.abc import Callable, Sequence

from jaxagent.agents.protocol import (
    Begin,
    Call,
    Done,
    Failed,
    Found,
    Generate,
    ImageQuery,
    Method,
    Result,
    Returned,
    Said,
    SummaryQuery,
    TextQuery,
    begin,
)
from jaxagent.types import Candidate, Dialogue, ImageRef, Part, Passage, Question, Trajectory

COUNTRIES = ("td", "ro", "ad", "md", "be", "ml", "gn", "sn", "cm", "gh", "et", "bo", "lt", "mm")


def question(*entities: str, **fields: object) -> Question:
    """A question about the images of these entities (one, td, by default)."""
    entities = entities or ("td",)
    values = {
        "data_id": "q1",
        "images": tuple(f"view:{entity}" for entity in entities),
        "text": "What is the capital of this country?",
        "kind": "String",
        "family": "single",
        "answers": ("N'Djamena",),
        "entities": entities,
        "relation": "capital",
        "evidence": ("td-capital",),
    }
    return Question(**values | fields)


def candidate(entity: str) -> Candidate:
    return Candidate(entity=entity, name=f"Land {entity}", image=f"kb:{entity}", score=0.5)


def passage(name: str, text: str = "Capital: N'Djamena") -> Passage:
    return Passage(id=name, title=f"Land {name[:2]}", text=text)


def tools(ranking: Sequence[str] = COUNTRIES) -> Callable[[Call], Result]:
    """Image search by a fixed ranking, text search that echoes the query, a summary of titles."""

    def answer(call: Call) -> Result:
        match call.arguments:
            case ImageQuery(top=top, exclude=exclude):
                rest = [entity for entity in ranking if entity not in exclude][:top]
                pages = tuple(passage(f"{entity}-capital") for entity in rest)
                return Found(
                    candidates=tuple(map(candidate, rest)),
                    passages=pages if call.tool == "search_pages" else (),
                )
            case TextQuery(queries=queries, top=top, exclude=exclude):
                names = [f"td-{word}" for word in ("capital", "area", "anthem", "coast", "people")]
                kept = [name for name in names if name not in exclude][:top]
                return Found(passages=tuple(passage(name) for _ in queries for name in kept))
            case SummaryQuery(passages=passages):
                return Found(text=" ".join(f"{one.title}: {one.text}" for one in passages))

    return answer


def failing(*names: str, then: Callable[[Call], Result]) -> Callable[[Call], Result]:
    """Tools of which those named fail."""
    return lambda call: Failed("no reply") if call.tool in names else then(call)


def play(
    method: Method,
    asked: Question,
    script: Sequence[str],
    *,
    answer: Callable[[Call], Result] | None = None,
) -> tuple[Dialogue, list[Generate]]:
    """The dialogue after the script's turns, and every `Generate` on the way."""
    answer = answer or tools()
    texts = iter(script)
    generates: list[Generate] = []
    dialogue, requests = method.advance(begin(asked), Begin(asked))
    while True:
        (request,) = requests
        match request:
            case Done():
                assert dialogue.done
                assert dialogue.answer == request.answer
                assert next(texts, None) is None, "the dialogue ended before the script"
                return dialogue, generates
            case Generate():
                generates.append(request)
                text = next(texts, None)
                if text is None:
                    return dialogue, generates
                event = Said(text=text, finish="stop")
            case Call():
                assert request.tool in method.tools
                event = Returned(request=request, result=answer(request))
        before = repr(dialogue)
        changed, requests = method.advance(dialogue, event)
        assert repr(dialogue) == before, "advance changed its argument"
        assert method.advance(dialogue, event) == (changed, requests), "advance is not a function"
        dialogue = changed


def shown(parts: Sequence[Part]) -> str:
    """Parts as one line, images as <key>."""
    return "".join(f"<{part.key}>" if isinstance(part, ImageRef) else part for part in parts)


def trajectory(dialogue: Dialogue, *, sample: int = 0) -> Trajectory:
    """A trajectory without tokens, for what reads only the dialogue."""
    import numpy as np

    return Trajectory(
        dialogue=dialogue,
        sample=sample,
        ids=np.zeros(0, np.int32),
        written=np.zeros(0, bool),
        log_probs=np.zeros(0, np.float32),
        num_calls=dialogue.state.num_calls,
    )
