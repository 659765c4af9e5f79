"""MMAgent-R2: search by image, compare the candidates by sight, rerank one or reject them all.

Each turn of the policy is `<reason>…</reason>` and one action:

    <search_call>{"image": j}</search_call>         SearchImage: the next K candidates of image j
    <search_call>{"text": ["q", …]}</search_call>   SearchText: the first passages of each query
    <rerank>name</rerank>                           Rerank: the entity of the current image, by name
                                                    or, where the settings say so, by number
    <rerank>None</rerank>                           Reject: the next K candidates, rej_max times
    <answer>y</answer>                              Answer: the end

Source: MMAgent-R2, sections 3.2 and A (algorithm S1). The paper prints no wire form, so the tags,
the JSON and every observation are this project's. Query images count from 1. An image's pool is its
first K (1 + rej_max) entities whoever asks for them; past it comes the boundary prompt. After
`max_turns` turns the answer is forced by one more generation that is primed with `<answer>`.

Left out on purpose: precomputed candidates (the index is asked live, the served ids excluded).
A method is one file, actions, prompts and rules together; hence its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from jaxagent.agents.parts import candidate_parts, passage_lines, question_parts
from jaxagent.agents.protocol import (
    Begin,
    Call,
    Event,
    Failed,
    Generate,
    ImageQuery,
    Method,
    Request,
    Result,
    Returned,
    Said,
    TextQuery,
    finished,
    with_turn,
)
from jaxagent.agents.wire import (
    Block,
    Malformed,
    compact_json,
    first_block,
    json_object,
    only_block,
    query_text,
)
from jaxagent.bounds import at_least, check_numbers, check_words
from jaxagent.retrieval.names import REJECT, normal_name
from jaxagent.types import Candidate, Dialogue, Part, Passage, Turn

NAME = "mmagent_r2"
GROUP = f"method.{NAME}"
IMAGE_TOOL = "search_images"
TEXT_TOOL = "search_passages"
TAGS = ("search_call", "rerank", "answer")
STOPS = tuple(f"</{tag}>" for tag in TAGS)
PRIME = "<answer>"
CHOICES = {"name": "entity name", "number": "number of the candidate"}
Step = tuple[Dialogue, tuple[Request, ...]]


@dataclass(frozen=True, kw_only=True)
class MMAgentR2:
    """The method's settings; the defaults are the paper's where it gives one."""

    variant: Literal["both", "rerank_only", "neither"] = "both"
    """The ablation's rows: rerank and reject; no reject; top-1 recorded at once, no rerank."""
    prompt: Literal["full", "short"] = "full"
    """`short` is for a policy that learns the wire form from traces: it saves the numbers too."""
    choice: Literal["name", "number"] = "name"
    """What stands in `<rerank>`: the entity's name, or (ours) its number in the batch, from 1, for
    a policy too small to copy a name from where it looks. The confirmation has the name anyway."""
    batch_size: int = 5
    """K: candidates in a batch."""
    rej_max: int = 2
    """Rejections that bring another batch, for each image."""
    passages_per_query: int = 3
    max_queries: int = 4
    """Queries in one SearchText (ours: a bound on what one turn can add to the context)."""
    max_turns: int = 8
    max_tokens: int = 1024
    """Tokens of one turn (ours)."""

    def __post_init__(self):
        check_words(
            self,
            GROUP,
            variant=("both", "rerank_only", "neither"),
            prompt=("full", "short"),
            choice=CHOICES,
        )
        sizes = ("batch_size", "passages_per_query", "max_queries", "max_turns", "max_tokens")
        check_numbers(self, GROUP, at_least(1), *sizes)
        check_numbers(self, GROUP, at_least(0), "rej_max")

    @property
    def candidates_per_batch(self) -> int:
        return 1 if self.variant == "neither" else self.batch_size

    @property
    def max_batches(self) -> int:
        """Batches in an image's pool."""
        return 1 + (self.rej_max if self.variant == "both" else 0)

    @property
    def pool(self) -> int:
        """The candidates that an image's searches can bring: K (1 + rej_max)."""
        return self.candidates_per_batch * self.max_batches


@dataclass(frozen=True)
class SearchImage:
    image: int


@dataclass(frozen=True)
class SearchText:
    queries: tuple[str, ...]


@dataclass(frozen=True)
class Rerank:
    name: str


@dataclass(frozen=True)
class Reject:
    pass


@dataclass(frozen=True)
class Answer:
    text: str


Action = SearchImage | SearchText | Rerank | Reject | Answer


@dataclass(frozen=True, kw_only=True)
class Written:
    """A turn as read: `fault` names a breach of the syntax, whether or not there is an action."""

    reason: str
    action: Action | Malformed
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageSearch:
    """What happened to one query image: batches served, rejections granted, entity recorded."""

    batches: tuple[tuple[Candidate, ...], ...] = ()
    rejections: int = 0
    entity: Candidate | None = None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """One Rerank (`chosen` is the entity's id) or Reject (None) of image `image`'s batch `batch`.

    `image` and `batch` count from 0 and index `State.images` and `ImageSearch.batches`; `turn` is
    the policy's, from 1.
    """

    turn: int
    image: int
    batch: int
    chosen: str | None


@dataclass(frozen=True, kw_only=True)
class State:
    """The method's memory. `current` indexes `images`; `faults` lose the format reward."""

    images: tuple[ImageSearch, ...]
    current: int | None = None
    num_turns: int = 0
    num_calls: int = 0
    verifications: tuple[Verification, ...] = ()
    faults: tuple[str, ...] = ()
    forced: bool = False

    @property
    def recorded(self) -> tuple[str | None, ...]:
        """The id of the entity that is recorded for each image."""
        return tuple(search.entity and search.entity.entity for search in self.images)

    def is_right(self, step: Verification, truth: str) -> bool:
        """Whether the verification chose the true entity, or rejected a batch without it."""
        if step.chosen is not None:
            return step.chosen == truth
        batch = self.images[step.image].batches[step.batch]
        return all(candidate.entity != truth for candidate in batch)


def parse(text: str) -> Written:
    """The turn that `text` holds; any text gives one."""
    block = first_block(text, tags=TAGS)
    if isinstance(block, Malformed):
        return Written(reason=text, action=block, fault=block.reason)
    action = _action(block)
    reason = only_block(block.before, tag="reason")
    if isinstance(action, Malformed):
        fault = action.reason
    else:
        fault = "" if reason is not None else "no <reason>…</reason> before the action"
    return Written(reason=block.before if reason is None else reason, action=action, fault=fault)


def _action(block: Block) -> Action | Malformed:
    body = block.body.strip()
    match block.tag:
        case "answer":
            return Answer(body) if body else Malformed("the answer is empty")
        case "rerank":
            if normal_name(body) == normal_name(REJECT):
                return Reject()
            return Rerank(body) if body else Malformed(f"a name or {REJECT} must stand in <rerank>")
    arguments = json_object(body)
    match arguments:
        case Malformed():
            return Malformed(f"<search_call> is {arguments.reason}")
        case {"image": int(image), **rest} if not rest and not isinstance(image, bool):
            return SearchImage(image)
        case {"text": [_, *_] as queries, **rest} if not rest:
            texts = tuple(text for query in queries if (text := query_text(query)) is not None)
            if len(texts) == len(queries):
                return SearchText(texts)
    return Malformed('<search_call> must hold {"image": number} or {"text": ["query", …]}')


def format_turn(reason: str, action: Action) -> str:
    """The text that `parse` reads as this reason and this action."""
    match action:
        case SearchImage(image):
            body = f"<search_call>{compact_json({'image': image})}</search_call>"
        case SearchText(queries):
            body = f"<search_call>{compact_json({'text': list(queries)})}</search_call>"
        case Rerank(name):
            body = f"<rerank>{name}</rerank>"
        case Reject():
            body = f"<rerank>{REJECT}</rerank>"
        case Answer(text):
            body = f"<answer>{text}</answer>"
    return f"<reason>{reason}</reason>{body}"


def boundary_prompt(config: MMAgentR2, image: int) -> str:
    """What an image's spent pool answers, to a search as to a rejection."""
    advice = "" if config.variant == "neither" else " Rerank one of the last batch or go on."
    return f"No more batches for image {image}.{advice}"


def system_prompt(config: MMAgentR2) -> str:
    """The system prompt of this variant; its text is held by a golden file."""
    if config.prompt == "short":
        return "Search, verify, answer."
    actions = [
        '<search_call>{"image": 1}</search_call>'
        + (
            " looks up query image 1 (2 for the second, and so on) and records its best match."
            if config.variant == "neither"
            else f" returns {config.batch_size} entities that look like query image 1 (2 for the"
            " second, and so on), each with its picture and its name. Asking again returns others."
        ),
        '<search_call>{"text": ["first query", "second query"]}</search_call> returns passages for'
        f" each of at most {config.max_queries} queries. Name the entity in the query.",
    ]
    if config.variant != "neither":
        actions.append(
            f"<rerank>{CHOICES[config.choice]}</rerank> records the candidate of the current batch"
            " that shows the same entity as the query image. Compare the pictures in detail before"
            " you choose."
        )
    if config.variant == "both":
        actions.append(
            f"<rerank>{REJECT}</rerank> rejects the current batch because no candidate matches, and"
            f" returns the next one, at most {config.rej_max} times for each image."
        )
    actions.append("<answer>answer</answer> ends with a short answer: a name, a date or a number.")
    return "\n".join(
        [
            "You answer a question about one or more images with the help of an image base and a"
            " text base. In each turn first reason between <reason> and </reason>, then take"
            " exactly one action:",
            *(f"- {action}" for action in actions),
            f"You have {config.max_turns} turns. You may answer as soon as you know.",
        ]
    )


def _observe(
    config: MMAgentR2,
    dialogue: Dialogue,
    parts: tuple[Part, ...],
    found: tuple[Candidate | Passage, ...] = (),
) -> Step:
    dialogue = with_turn(dialogue, Turn(author="environment", parts=parts, found=found))
    if dialogue.state.num_turns < config.max_turns:
        return dialogue, (Generate(parts=parts, stops=STOPS, max_tokens=config.max_tokens),)
    forced = replace(dialogue, state=replace(dialogue.state, forced=True))
    stop = Generate(parts=parts, stops=("</answer>",), max_tokens=config.max_tokens, prime=PRIME)
    return forced, (stop,)


def _refuse(config: MMAgentR2, dialogue: Dialogue, reason: str) -> Step:
    """The error line for a turn that cannot be executed; it loses the format reward."""
    state = dialogue.state
    fault = f"turn {state.num_turns}: {reason}"
    dialogue = replace(dialogue, state=replace(state, faults=(*state.faults, fault)))
    return _observe(config, dialogue, (f"Error: {reason}.",))


def _with_image(dialogue: Dialogue, image: int, search: ImageSearch) -> Dialogue:
    images = dialogue.state.images
    images = (*images[:image], search, *images[image + 1 :])
    return replace(dialogue, state=replace(dialogue.state, images=images))


def _with_verification(dialogue: Dialogue, chosen: str | None) -> Dialogue:
    state = dialogue.state
    batch = len(state.images[state.current].batches) - 1
    step = Verification(turn=state.num_turns, image=state.current, batch=batch, chosen=chosen)
    state = replace(state, verifications=(*state.verifications, step))
    return replace(dialogue, state=state)


def _next_batch(config: MMAgentR2, dialogue: Dialogue) -> Step:
    state = dialogue.state
    search = state.images[state.current]
    if len(search.batches) >= config.max_batches:
        return _observe(config, dialogue, (boundary_prompt(config, state.current + 1),))
    query = ImageQuery(
        image=dialogue.question.images[state.current],
        top=config.candidates_per_batch,
        exclude=frozenset(one.entity for batch in search.batches for one in batch),
    )
    return dialogue, (Call(tool=IMAGE_TOOL, arguments=query),)


def picked(batch: Sequence[Candidate], word: str, choice: str) -> Candidate | None:
    """The candidate whose name, or whose number from 1, the word is."""
    names = [
        str(number) if choice == "number" else normal_name(one.name)
        for number, one in enumerate(batch, start=1)
    ]
    word = normal_name(word)
    return batch[names.index(word)] if word in names else None


def confirmation(image: int, entity: Candidate) -> str:
    """The recorded entity of an image (from 0), its name in the tokens of a query's start."""
    return f'Image {image + 1} is "{entity.name}".'


def _rerank(config: MMAgentR2, dialogue: Dialogue, name: str) -> Step:
    state = dialogue.state
    if state.current is None:
        return _refuse(config, dialogue, "search an image before <rerank>")
    search = state.images[state.current]
    batch = search.batches[-1] if search.batches else ()
    entity = picked(batch, name, config.choice)
    if entity is None:
        return _refuse(config, dialogue, f"that {config.choice} is not in the current batch")
    dialogue = _with_verification(dialogue, entity.entity)
    dialogue = _with_image(dialogue, state.current, replace(search, entity=entity))
    return _observe(config, dialogue, (confirmation(state.current, entity),))


def _reject(config: MMAgentR2, dialogue: Dialogue) -> Step:
    state = dialogue.state
    if state.current is None:
        return _refuse(config, dialogue, "search an image before <rerank>")
    search = state.images[state.current]
    if search.batches:
        dialogue = _with_verification(dialogue, None)
    if search.rejections >= config.max_batches - 1:
        return _observe(config, dialogue, (boundary_prompt(config, state.current + 1),))
    return _next_batch(config, dialogue)


def _acted(config: MMAgentR2, dialogue: Dialogue, text: str) -> Step:
    written = parse(text)
    state = dialogue.state
    state = replace(
        state,
        num_turns=state.num_turns + 1,
        num_calls=state.num_calls + isinstance(written.action, SearchImage | SearchText | Reject),
    )
    turn = Turn(author="policy", text=text, action=written.action)
    dialogue = with_turn(replace(dialogue, state=state), turn)
    if isinstance(written.action, Malformed):
        return _refuse(config, dialogue, written.fault)
    if written.fault:
        faults = (*state.faults, f"turn {state.num_turns}: {written.fault}")
        dialogue = replace(dialogue, state=replace(state, faults=faults))
    match written.action:
        case Answer(answer):
            return finished(dialogue, answer)
        case SearchText(queries) if len(queries) > config.max_queries:
            return _refuse(config, dialogue, f"at most {config.max_queries} queries in one call")
        case SearchText(queries):
            query = TextQuery(queries=queries, top=config.passages_per_query)
            return dialogue, (Call(tool=TEXT_TOOL, arguments=query),)
        case SearchImage(image) if not 1 <= image <= len(state.images):
            return _refuse(config, dialogue, f"images are numbered 1 to {len(state.images)}")
        case SearchImage(image):
            current = replace(dialogue.state, current=image - 1)
            return _next_batch(config, replace(dialogue, state=current))
        case Rerank() | Reject() if config.variant == "neither":
            return _refuse(config, dialogue, "<rerank> is not an action here")
        case Reject() if config.variant == "rerank_only":
            return _refuse(config, dialogue, "no batch can be rejected here")
        case Rerank(name):
            return _rerank(config, dialogue, name)
        case Reject():
            return _reject(config, dialogue)


def _returned(config: MMAgentR2, dialogue: Dialogue, result: Result) -> Step:
    action = dialogue.turns[-1].action
    if isinstance(result, Failed):
        return _observe(config, dialogue, ("The search failed.",))
    if isinstance(action, SearchText):
        lines = passage_lines(result.passages) or "No passage was found."
        return _observe(config, dialogue, (lines,), result.passages)
    image = dialogue.state.current
    if not result.candidates:
        return _observe(
            config, dialogue, (f"The base has no more candidates for image {image + 1}.",)
        )
    search = dialogue.state.images[image]
    search = replace(
        search,
        batches=(*search.batches, result.candidates),
        rejections=search.rejections + isinstance(action, Reject),
    )
    numbered = config.prompt == "full" or config.choice == "number"
    parts = candidate_parts(result.candidates, numbered=numbered)
    if config.variant == "neither":
        (best,) = result.candidates
        search = replace(search, entity=best)
        parts = (*parts, confirmation(image, best))
    dialogue = _with_image(dialogue, image, search)
    return _observe(config, dialogue, parts, result.candidates)


def advance(config: MMAgentR2, dialogue: Dialogue, event: Event) -> Step:
    """The dialogue after `event`, and what the method asks for next."""
    match event:
        case Begin(question):
            state = State(images=(ImageSearch(),) * len(question.images))
            ask = Generate(
                parts=question_parts(question), stops=STOPS, max_tokens=config.max_tokens
            )
            return replace(dialogue, state=state), (ask,)
        case Said(text=text) if dialogue.state.forced:
            answer = text.partition("</answer>")[0].strip()
            turn = Turn(author="policy", text=text, action=Answer(answer), forced=True)
            return finished(with_turn(dialogue, turn), answer or None)
        case Said(text=text):
            return _acted(config, dialogue, text)
        case Returned(result=result):
            return _returned(config, dialogue, result)


def method(config: MMAgentR2) -> Method:
    """MMAgent-R2 with these settings."""
    return Method(
        name=NAME,
        system=system_prompt(config),
        advance=partial(advance, config),
        tools=frozenset({IMAGE_TOOL, TEXT_TOOL}),
        num_calls=lambda dialogue: dialogue.state.num_calls,
    )
