"""Small methods, tools and questions for the loop, and an engine of the tiny policy."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxagent.agents.protocol import (
    Begin,
    Call,
    Failed,
    Found,
    Generate,
    ImageQuery,
    Method,
    Returned,
    Said,
    finished,
    with_turn,
)
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.engine import Engine
from jaxagent.types import Dialogue, ImageRef, Part, Question, Turn
from tests import tiny

Observe = Callable[[Dialogue, int], Sequence[Part] | None]
"""What the environment says after the policy's turn `n`; None ends the dialogue."""

SIDES = {"a": (16, 16), "b": (16, 16), "tall": (24, 16), "wide": (16, 24), "big": (24, 24)}
"""Height and width of the images by key; `tall:3` is another of that shape."""

CONFIG = RolloutConfig(
    context=192,
    slots=4,
    decode_steps=(4,),
    rows=(4,),
    chunk_lengths=(16, 48),
    image_rows=(4,),
)
"""One compiled shape of each program, the chunks' length apart."""


def images(key: str) -> np.ndarray:
    name, _, number = key.partition(":")
    if name not in SIDES:
        raise KeyError(key)
    return tiny.image(int(number or 0) + sum(map(ord, name)), *SIDES[name])


def question(data_id: str, *keys: str, text: str = "What is the capital?") -> Question:
    return Question(
        data_id=data_id,
        images=keys,
        text=text,
        kind="String",
        family="single",
        answers=("Bucharest",),
        entities=("ro",),
        relation="capital",
    )


def method(
    observe: Observe,
    *,
    stops: tuple[str, ...] = ("</answer>",),
    max_tokens: int = 12,
    prime: str = "",
    tool: str = "",
) -> Method:
    """Turns with observations between them, each fetched by a call of `tool` if one is named."""

    def ask(parts):
        return Generate(parts=tuple(parts), stops=stops, max_tokens=max_tokens, prime=prime)

    def advance(dialogue, event):
        num = sum(turn.author == "policy" for turn in dialogue.turns)
        match event:
            case Begin(asked):
                parts = (*map(ImageRef, asked.images), asked.text)
                return dialogue, (ask(parts),)
            case Said(text=text):
                dialogue = with_turn(dialogue, Turn(author="policy", text=text))
                parts = observe(dialogue, num + 1)
                if parts is None:
                    return finished(dialogue, text)
                if tool:
                    query = ImageQuery(image=f"{dialogue.question.data_id}/{num + 1}", top=1)
                    return dialogue, (Call(tool=tool, arguments=query),)
                return _observed(dialogue, parts, ask)
            case Returned(result=Failed()):
                return _observed(dialogue, ("The search failed.",), ask)
            case Returned():
                return _observed(dialogue, observe(dialogue, num), ask)

    return Method(
        name="fake",
        system="Search, verify, answer.",
        advance=advance,
        tools=frozenset({tool} if tool else ()),
        num_calls=lambda dialogue: sum(turn.author == "environment" for turn in dialogue.turns),
    )


def _observed(dialogue, parts, ask):
    turn = Turn(author="environment", parts=tuple(parts))
    return with_turn(dialogue, turn), (ask(parts),)


def nothing(calls):
    """A tool that finds nothing."""
    return [Found() for _ in calls]


def engine(method: Method, config: RolloutConfig = CONFIG, tools=None) -> Engine:
    tools = tools or {name: nothing for name in method.tools}
    return Engine(tiny.policy().policy, method, tools, images, config)


def run(engine: Engine, questions: Sequence[Question], *, samples: int = 1, **fields):
    """A rollout of the tiny policy's own parameters."""
    fields = {"seed": 0, "step": 0, "version": 0} | fields
    return engine.run(tiny.policy().params, questions, samples=samples, **fields)
