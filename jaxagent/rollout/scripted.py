"""An author with a script in the policy's place: the same loop without a model, for traces."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from jaxagent.agents.protocol import Method, Tools
from jaxagent.processing.chat import Chat
from jaxagent.processing.policy import Policy
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.loop import Loop, Rollout, Row, Spoken
from jaxagent.types import Dialogue, Images, Question

Script = Callable[[Dialogue], str]
"""What the author writes next, with its stop string, seeing the dialogue so far."""


class ScriptedGenerator:
    """Writes the script's text, tokenised as plain text.

    A text without a stop string is ended by the end token. Nothing is sampled: log-probs are 0.
    """

    replicas = 1

    def __init__(self, script: Script, chat: Chat, *, slots: int):
        self.script = script
        self.chat = chat
        self.slots = slots
        self.num_prefilled = 0

    def append(self, rows: Sequence[Row]) -> None:
        for row in rows:
            fed = row.context.size - 1
            self.num_prefilled += fed - row.context.fed
            row.context.fed = fed

    def speak(self, rows: Sequence[Row]) -> list[Spoken]:
        return [self._spoken(row) for row in rows]

    def metrics(self) -> dict[str, float]:
        return {"tokens_prefilled": self.num_prefilled}

    def _spoken(self, row: Row) -> Spoken:
        text = self.script(row.dialogue)
        ids = self.chat.plain(text)
        if not any(stop in text for stop in row.request.stops):
            ids = [*ids, self.chat.end_id]
        return Spoken(np.array(ids, np.int32), np.zeros(len(ids), np.float32))


def scripted_rollout(
    script: Script,
    questions: Sequence[Question],
    *,
    policy: Policy,
    method: Method,
    tools: Tools,
    images: Images,
    config: RolloutConfig,
    samples: int = 1,
) -> Rollout:
    """The dialogues of the script's author, in the policy's tokens."""

    @cache
    def image_grid(key: str):
        return policy.image_processor.grid(*images(key).shape[:2])

    loop = Loop(
        ScriptedGenerator(script, policy.chat, slots=config.slots),
        method=method,
        tools=tools,
        chat=policy.chat,
        image_grid=image_grid,
        config=config,
    )
    return loop.run(questions, samples=samples)
