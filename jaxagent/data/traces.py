"""Scripted experts: what a policy that knows the truth would write, for supervised fine-tuning.

An expert sees the dialogue so far and the question's true entities and evidence, and writes the
next turn. It acts through the method's own searches: it passes a verdict on every candidate, asks
for one fact after the other in the question's own words, and answers what stands in the context.
A policy that learns to copy the question needs no word of its own for a wording it never met.

    <reason>Find.</reason><search_call>{"image": 1}</search_call>
    <reason>1 no 2 yes 3 no 4 no 5 no</reason><rerank>2</rerank>
    <reason>Read.</reason><search_call>{"text": ["Romania: Which city is …?"]}</search_call>
    <reason>Found.</reason><answer> Bucharest</answer>

Where the base does not give what is needed, it guesses, and `usable` tells such a dialogue from a
demonstration.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA
from jaxagent.data.relations import RELATIONS, search_phrases
from jaxagent.types import Candidate, Dialogue, Passage, Question, Turn

Script = Callable[[Dialogue], str]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One fact to find: its passage, the entity's name, what is asked and the field's words."""

    passage: str
    name: str
    asked: str
    phrase: str

    @property
    def queries(self) -> tuple[str, ...]:
        """What to search for, try by try."""
        return f"{self.name}: {self.asked}", f"{self.name} {self.phrase}"


@dataclass(frozen=True, kw_only=True)
class Expert:
    """What both experts know: `passages` is the base by id."""

    passages: Mapping[str, Passage]

    def steps(self, question: Question, names: Sequence[str]) -> tuple[Step, ...]:
        """The facts in the order in which they can be asked for.

        `names[j]` is what image j is taken to show; the neighbour of a bridge is known once the
        passage about borders is.
        """
        phrases = search_phrases(question.relation)
        asked = (question.text,) * len(names)
        if question.family == "bridge":
            names = (*names, self.passages[question.evidence[-1]].title)
            asked = (phrases[0], question.text.partition(". ")[2])
        elif question.family == "compare":
            phrases = phrases * len(names)
        rows = zip(question.evidence, names, asked, phrases, strict=True)
        return tuple(
            Step(passage=passage, name=name, asked=asked, phrase=phrase)
            for passage, name, asked, phrase in rows
        )

    def shown(self, passage: str, dialogue: Dialogue) -> bool:
        """Whether the beginning of the passage stands in the context, behind its title."""
        title, start = self.passages[passage].title, self.passages[passage].text[:24]
        heads = (f"{title}. {start}", f"{title}: {start}")
        return any(head in text for text in observations(dialogue) for head in heads)

    def complete(self, dialogue: Dialogue) -> bool:
        """Whether all evidence and the answer, or the numbers to compare, stand in the context."""
        question = dialogue.question
        if not all(self.shown(passage, dialogue) for passage in question.evidence):
            return False
        if question.family == "compare":
            return bool(self.compared(question))
        return any(question.answers[0] in text for text in observations(dialogue))

    def compared(self, question: Question) -> tuple[str, ...]:
        """Name and number of each side of a comparison; none when a passage does not tell it."""
        read = RELATIONS[question.relation].read
        rows = [self.passages[passage] for passage in question.evidence]
        numbers = [read(row.text.partition(": ")[2]) for row in rows]
        if not all(numbers):
            return ()
        return tuple(f"{row.title} {found[0]}" for row, found in zip(rows, numbers, strict=True))

    def answer(self, dialogue: Dialogue) -> str:
        """The answer where the context holds it, else the best guess.

        It is written as it stands there, so that its tokens are the same: a fact behind a space,
        the name that wins a comparison at the start of a line.
        """
        if self.complete(dialogue):
            space = "" if dialogue.question.family == "compare" else " "
            return f"{space}{dialogue.question.answers[0]}"
        found = [one for turn in dialogue.turns for one in turn.found if isinstance(one, Passage)]
        guess = found[-1].text.partition(": ")[2] or found[-1].text if found else "unknown"
        return f" {re.split(r'[;<]', guess)[0].strip()[:60] or 'unknown'}"

    def conclusion(self, dialogue: Dialogue) -> str:
        """The reasoning before the answer; numbers are set side by side before a comparison."""
        question = dialogue.question
        if question.family != "compare" or not self.complete(dialogue):
            return "Found." if self.complete(dialogue) else "Not found."
        return "\n".join(self.compared(question))


@dataclass(frozen=True, kw_only=True)
class MMAgentR2Expert(Expert):
    """Identifies each image in turn, then reads, then answers."""

    config: MMAgentR2

    def __call__(self, dialogue: Dialogue) -> str:
        state = dialogue.state
        if state.forced:
            return f"{self.answer(dialogue)}</answer>"
        for number, search in enumerate(state.images, start=1):
            if search.entity is None and not self.given_up(dialogue, number):
                return mmagent_r2.format_turn(*self.identify(dialogue, number))
        names = [search.entity.name if search.entity else "" for search in state.images]
        queries = self.queries(dialogue, names)
        if queries:
            return mmagent_r2.format_turn("Read.", mmagent_r2.SearchText(queries))
        return self.concluded(dialogue)

    def concluded(self, dialogue: Dialogue) -> str:
        answer = mmagent_r2.Answer(self.answer(dialogue))
        return mmagent_r2.format_turn(self.conclusion(dialogue), answer)

    def given_up(self, dialogue: Dialogue, number: int) -> bool:
        """Whether the base has shown nothing at all for the image."""
        asked = [turn.action for turn in dialogue.turns].count(mmagent_r2.SearchImage(number))
        return asked >= 2 and not dialogue.state.images[number - 1].batches

    def identify(self, dialogue: Dialogue, number: int) -> tuple[str, mmagent_r2.Action]:
        """The next search or verification of an image, with its reason."""
        search = dialogue.state.images[number - 1]
        if not search.batches:
            return "Find.", mmagent_r2.SearchImage(number)
        batch, truth = search.batches[-1], dialogue.question.entities[number - 1]
        right = next((one for one in batch if one.entity == truth), None)
        fresh = dialogue.turns[-1].found == batch
        if right is None and (not fresh or self.config.variant == "rerank_only"):
            return "Take the nearest.", self.chosen(batch, batch[0])
        reason = verdicts(batch, truth, numbered=self.config.choice == "number")
        return reason, self.chosen(batch, right) if right else mmagent_r2.Reject()

    def chosen(self, batch: Sequence[Candidate], one: Candidate) -> mmagent_r2.Rerank:
        """The rerank of one of the batch, by name or by number."""
        by_number = self.config.choice == "number"
        return mmagent_r2.Rerank(str(1 + batch.index(one)) if by_number else one.name)

    def queries(self, dialogue: Dialogue, names: Sequence[str]) -> tuple[str, ...]:
        """The next text search; none when all is found or was tried."""
        question = dialogue.question
        steps = self.steps(question, names)
        missing = [step for step in steps if not self.shown(step.passage, dialogue)]
        asked = [
            turn.action.queries
            for turn in dialogue.turns
            if isinstance(turn.action, mmagent_r2.SearchText)
        ]
        if question.family != "compare":
            missing = missing[:1]
        tries = zip(*(step.queries for step in missing), strict=True)
        return next((queries for queries in tries if queries not in asked), ())


@dataclass(frozen=True, kw_only=True)
class ProMSAExpert(Expert):
    """Looks at pages until the entity is among them, reads what is missing, then answers."""

    config: ProMSA

    def __call__(self, dialogue: Dialogue) -> str:
        if self.complete(dialogue):
            return self.concluded(dialogue)
        question = dialogue.question
        found = [self.taken_for(dialogue, image) for image in range(1, 1 + len(question.images))]
        for image, candidate in enumerate(found, start=1):
            if self.looks_on(dialogue, image, candidate):
                thinking = "No." if candidate else "Find."
                return self.written(thinking, promsa.ImageSearch(image=image))
        query = self.next_query(dialogue, [one.name if one else "" for one in found])
        if query is None:
            return self.concluded(dialogue)
        known = ", ".join(one.name for one in found if one)
        return self.written(f"{known}. Read.", promsa.TextSearch(query=query))

    def written(self, thinking: str, action: promsa.Action) -> str:
        return promsa.format_turn(self.config, thinking, action)

    def concluded(self, dialogue: Dialogue) -> str:
        return self.written(self.conclusion(dialogue), promsa.Answer(self.answer(dialogue)))

    def served(self, dialogue: Dialogue, image: int) -> list[Candidate]:
        """The pages shown for an image."""
        return [
            one
            for turn, answer in zip(dialogue.turns, dialogue.turns[1:], strict=False)
            if isinstance(turn.action, promsa.ImageSearch) and turn.action.image == image
            for one in answer.found
        ]

    def taken_for(self, dialogue: Dialogue, image: int) -> Candidate | None:
        """The true entity when its page was shown, else the first page, else None."""
        served = self.served(dialogue, image)
        truth = dialogue.question.entities[image - 1]
        return next((one for one in served if one.entity == truth), served[0] if served else None)

    def looks_on(self, dialogue: Dialogue, image: int, candidate: Candidate | None) -> bool:
        """Whether to search the image again: the entity is unknown and calls are left.

        Every later image keeps one call.
        """
        later = len(dialogue.question.images) - image
        known = candidate is not None and candidate.entity == dialogue.question.entities[image - 1]
        return not known and dialogue.state.image_calls < self.config.image_calls - later

    def next_query(self, dialogue: Dialogue, names: Sequence[str]) -> str | None:
        """The next text search; None when all is found or was tried."""
        state, question = dialogue.state, dialogue.question
        if state.text_calls >= self.config.text_calls:
            return None
        asked = [
            turn.action.query
            for turn in dialogue.turns
            if isinstance(turn.action, promsa.TextSearch)
        ]
        for step in self.steps(question, names):
            if self.shown(step.passage, dialogue):
                continue
            return next((query for query in step.queries if query not in asked), None)
        return None


def expert(
    config: MMAgentR2 | ProMSA, passages: Iterable[Passage]
) -> MMAgentR2Expert | ProMSAExpert:
    """The expert of the method with these settings over this base."""
    known = {passage.id: passage for passage in passages}
    match config:
        case MMAgentR2():
            return MMAgentR2Expert(config=config, passages=known)
        case ProMSA():
            return ProMSAExpert(config=config, passages=known)
    raise TypeError(f"No expert is written for a method with {type(config).__name__}.")


def glancer(config: MMAgentR2 | ProMSA, passages: Iterable[Passage]) -> Script:
    """The expert that stops, with a guess, one turn after a search has brought something."""
    searching = expert(config, passages)

    def script(dialogue: Dialogue) -> str:
        chosen = any(turn.found for turn in dialogue.turns[:-1])
        return searching.concluded(dialogue) if chosen else searching(dialogue)

    return script


def usable(dialogue: Dialogue, passages: Mapping[str, Passage]) -> bool:
    """Whether an expert's dialogue is a demonstration.

    It is when nothing was guessed or forced: every image identified (where the method records
    that), all evidence in the context, the true answer given, no fault.
    """
    state = dialogue.state
    if isinstance(state, mmagent_r2.State) and (
        state.forced or state.recorded != dialogue.question.entities
    ):
        return False
    told = dialogue.answer == dialogue.question.answers[0]
    return told and not state.faults and Expert(passages=passages).complete(dialogue)


def verdicts(batch: Sequence[Candidate], truth: str, *, numbered: bool) -> str:
    """One verdict on every candidate, `no yes no` or `1 no 2 yes 3 no`.

    A policy that writes the number first can look the verdict up where that number stands.
    """
    words = ["yes" if one.entity == truth else "no" for one in batch]
    return " ".join(f"{at} {word}" if numbered else word for at, word in enumerate(words, start=1))


def observations(dialogue: Dialogue) -> list[str]:
    """The text of every environment turn."""
    return [text_of(turn) for turn in dialogue.turns if turn.author == "environment"]


def text_of(turn: Turn) -> str:
    return "".join(part for part in turn.parts if isinstance(part, str))
