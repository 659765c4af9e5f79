"""Traces of the scripted expert to learn from, made through the rollout's own loop.

Every trace draws a training question, other views of its entities, and whether it is told in a
fiction (`data.fiction`). What the expert could not bring to the right end is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.agents.protocol import Method, Tools
from jaxagent.bounds import SHARE, check_numbers
from jaxagent.data.fiction import (
    TWISTS,
    Fiction,
    fictional,
    fictional_tools,
    name_words,
    reworded,
)
from jaxagent.data.traces import Script, expert, glancer, usable
from jaxagent.processing.policy import Policy
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.scripted import scripted_rollout
from jaxagent.training.sft import TraceError
from jaxagent.types import Dialogue, Images, Passage, Question, Trajectory

Views = Callable[[str], Sequence[str]]
"""Entity -> the keys of the views of it that training may show."""


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """How traces are drawn."""

    traces: int
    """Asked for; a share is left out as not usable."""
    fiction: float
    """Share of single-hop traces told in a fiction; the other families are told as they are."""
    reworded: float
    """Share of those that ask in words that mean nothing."""
    single: float
    """Share of single-hop questions."""
    max_tokens: int
    """Longer traces are left out."""
    seed: int

    def __post_init__(self):
        check_numbers(self, "sft", SHARE, "fiction", "reworded", "single")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where traces are played: the method over its tools, in the policy's tokens.

    `questions` are those of training, and `views` what training may show of an entity.
    """

    questions: Sequence[Question]
    views: Views
    policy: Policy
    settings: MMAgentR2 | ProMSA
    method: Method
    tools: Tools
    images: Images
    """Knows twisted keys too."""
    rollout: RolloutConfig
    passages: Mapping[str, Passage]
    names: Mapping[str, str]
    hidden: frozenset[str]
    """Entities whose images never appear: those that training does not ask about."""

    @cached_property
    def single(self) -> Sequence[Question]:
        """The questions about one fact of one image; all where there is none."""
        return [one for one in self.questions if one.family == "single"] or self.questions

    @cached_property
    def several(self) -> Sequence[Question]:
        """The questions about several; all where there is none."""
        return [one for one in self.questions if one.family != "single"] or self.questions

    @cached_property
    def words(self) -> list[str]:
        """What names and wordings are invented from: for one half the words of real names.

        Only the words, so that every name can be written: a token that is never a target is one
        that a policy with tied embeddings learns never to write.
        """
        told = name_words(passage.text for passage in self.passages.values())
        names = name_words(self.names.values(), lengths=range(3, 20))
        return [*told, *np.resize(names, len(told)).tolist()]


def demonstrations(
    stage: Stage,
    config: Demonstrations,
    *,
    chunk: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Trajectory]:
    """Usable traces, in the order in which they were drawn; `progress` hears of the tried."""
    rng = np.random.default_rng((config.seed, 7))
    for start in range(0, config.traces, chunk):
        numbers = range(start, min(start + chunk, config.traces))
        for trace, evidence in _played(rng, numbers, stage, config, expert):
            if usable(trace.dialogue, evidence) and len(trace.ids) <= config.max_tokens:
                yield trace
        progress(numbers.stop)


def looks(
    stage: Stage,
    config: Demonstrations,
    *,
    count: int,
    chunk: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Trajectory]:
    """Traces that end once one of the first candidates was chosen: other ones, and cheaper, than
    the demonstrations. Exactly `count` of them; `progress` hears how many there are."""
    rng = np.random.default_rng((config.seed, 8))
    made, start = 0, config.traces
    while made < count:
        numbers = range(start, start + min(chunk, count - made))
        played = _played(rng, numbers, stage, config, glancer)
        seen = [trace for trace, _ in played if any(turn.found for turn in trace.dialogue.turns)]
        if not seen:
            raise TraceError("No search of the expert's brings a candidate to look at.")
        yield from seen
        made, start = made + len(seen), numbers.stop
        progress(made)


def _drawn(
    rng: np.random.Generator, number: int, stage: Stage, config: Demonstrations
) -> tuple[Question, Fiction | None]:
    pool = stage.single if rng.random() < config.single else stage.several
    question = pool[rng.integers(len(pool))]
    shown = tuple(str(rng.choice(stage.views(entity))) for entity in question.entities)
    question = replace(question, data_id=f"{question.data_id}~{number}", images=shown)
    told = rng.random() < config.fiction and question.family == "single"
    twist = int(rng.integers(len(TWISTS)))
    if not told:
        return question, None
    rewords = config.reworded and rng.random() < config.reworded
    fiction = Fiction(
        twist=twist,
        seed=f"{config.seed} {number}",
        names=tuple(stage.names.values()),
        words=stage.words,
        text=question.text,
        asked_as=reworded(question.text, stage.words, rng) if rewords else question.text,
    )
    return fictional(question, fiction), fiction


def _played(
    rng: np.random.Generator,
    numbers: range,
    stage: Stage,
    config: Demonstrations,
    author: Callable[..., Script],
) -> list[tuple[Trajectory, dict[str, Passage]]]:
    """Dialogues on freshly drawn questions, each with the passages that hold its answer."""
    drawn, fictions = [], {}
    for number in numbers:
        question, fiction = _drawn(rng, number, stage, config)
        drawn.append(question)
        if fiction is not None:
            fictions[question.data_id] = fiction

    def script(dialogue: Dialogue) -> str:
        known = _evidence(dialogue.question, fictions, stage)
        return author(stage.settings, known.values())(dialogue)

    rollout = scripted_rollout(
        script,
        drawn,
        policy=stage.policy,
        method=stage.method,
        tools=fictional_tools(stage.tools, fictions, hidden=stage.hidden),
        images=stage.images,
        config=stage.rollout,
    )
    found = {group[0].question.data_id: group[0] for group in rollout.trajectories}
    return [(trace, _evidence(trace.question, fictions, stage)) for trace in found.values()]


def _evidence(
    question: Question, fictions: Mapping[str, Fiction], stage: Stage
) -> dict[str, Passage]:
    """The passages that hold the answer, as the question's world tells them."""
    fiction = fictions.get(question.data_id)
    rows = {name: stage.passages[name] for name in question.evidence}
    return rows if fiction is None else {name: fiction.passage(row) for name, row in rows.items()}
