"""ProMSA: progressive search with a budget for each tool and summarised text observations.

Each step of the policy is `<thinking>…</thinking>` and one of

    <tool_call>{"name": "image_search_tool", "arguments": {}}</tool_call>              ImageSearch
    <tool_call>{"name": "text_search_tool", "arguments": {"query": "…"}}</tool_call>   TextSearch
    <answer>…</answer>                                                                 Answer

A search goes to its tool, what it found to the summariser, and only the summary enters the context:

    TextSearch ──► search_passages ──► summarise ──► observation

Pages and sections that were served are left out of later searches. A search or a summary that fails
leaves no trace but one line, and the served list stays. A call past its tool's budget returns
nothing and still counts; so does every other call that was parsed, whatever is wrong with it, and
each takes one from the budget of the tool that it names, if it names one. The last step without an
answer ends the dialogue without one.

Source: ProMSA, section 3, and its public release for names and arguments. Ours: `"image": j`
chooses the query image when there are several; state lives in the dialogue, so budgets and
exclusion take effect (in the release they do not).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from jaxagent.agents.parts import question_parts
from jaxagent.agents.protocol import (
    Begin,
    Call,
    Event,
    Failed,
    Found,
    Generate,
    ImageQuery,
    Method,
    Request,
    Returned,
    Said,
    SummaryQuery,
    TextQuery,
    finished,
    with_turn,
)
from jaxagent.agents.wire import (
    Malformed,
    compact_json,
    first_block,
    json_object,
    only_block,
    query_text,
)
from jaxagent.bounds import at_least, check_numbers, check_words
from jaxagent.types import Candidate, Dialogue, Passage, Turn

NAME = "promsa"
GROUP = f"method.{NAME}"
PAGE_TOOL = "search_pages"
TEXT_TOOL = "search_passages"
SUMMARY_TOOL = "summarise"
TAGS = ("tool_call", "answer")
STOPS = tuple(f"</{tag}>" for tag in TAGS)
Step = tuple[Dialogue, tuple[Request, ...]]


@dataclass(frozen=True, kw_only=True)
class ProMSA:
    """The method's settings; the defaults are the paper's where it gives one."""

    prompt: Literal["full", "short"] = "full"
    """`short` is for a policy that learns the wire form from traces."""
    image_tool: str = "image_search_tool"
    """The tool's name on the wire (the release's; the paper writes `img_search`)."""
    text_tool: str = "text_search_tool"
    image_calls: int = 3
    text_calls: int = 3
    """Calls of each tool in a dialogue (the release: 3 and 4); 0 takes the tool away."""
    pages_per_call: int = 3
    passages_per_call: int = 3
    max_turns: int = 7
    max_tokens: int = 4096
    """Tokens of one step."""
    arguments: Literal["plain", "paper"] = "plain"
    """`paper` also takes `top_k` (1 to 10) and a list `exclude`, which changes nothing: the
    environment leaves out whatever was served."""
    thinking: Literal["free", "required"] = "free"
    """Whether a step without `<thinking>` loses the format reward (in the release it does not)."""

    def __post_init__(self):
        check_words(
            self,
            GROUP,
            prompt=("full", "short"),
            arguments=("plain", "paper"),
            thinking=("free", "required"),
        )
        sizes = ("pages_per_call", "passages_per_call", "max_turns", "max_tokens")
        check_numbers(self, GROUP, at_least(1), *sizes)
        check_numbers(self, GROUP, at_least(0), "image_calls", "text_calls")
        if self.image_tool == self.text_tool:
            raise ValueError(f"Both tools are called {self.image_tool!r}. Give each its own name.")


@dataclass(frozen=True, kw_only=True)
class ImageSearch:
    image: int = 1
    top: int | None = None


@dataclass(frozen=True, kw_only=True)
class TextSearch:
    query: str
    top: int | None = None


@dataclass(frozen=True)
class BadCall:
    """A call that was parsed but cannot be executed; it counts as a call of the tool it names."""

    reason: str
    tool: str = ""


@dataclass(frozen=True)
class Answer:
    text: str


Action = ImageSearch | TextSearch | BadCall | Answer


@dataclass(frozen=True, kw_only=True)
class Written:
    """A step as read: `fault` names what loses the format reward."""

    thinking: str
    action: Action | Malformed
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    """The method's memory. `served_pages[j]` are the entity ids served for query image j + 1."""

    served_pages: tuple[tuple[str, ...], ...]
    served_passages: tuple[str, ...] = ()
    num_steps: int = 0
    num_calls: int = 0
    image_calls: int = 0
    text_calls: int = 0
    pending: Found | None = None
    faults: tuple[str, ...] = ()


def parse(config: ProMSA, text: str) -> Written:
    """The step that `text` holds; any text gives one."""
    block = first_block(text, tags=TAGS)
    if isinstance(block, Malformed):
        return Written(thinking=text, action=block, fault=block.reason)
    thinking = only_block(block.before, tag="thinking")
    body = block.body.strip()
    if block.tag == "tool_call":
        action = _call(config, body)
    else:
        action = Answer(body) if body else Malformed("the answer is empty")
    fault = action.reason if isinstance(action, Malformed | BadCall) else ""
    if not fault and thinking is None and config.thinking == "required":
        fault = "no <thinking>…</thinking> before the action"
    return Written(
        thinking=block.before if thinking is None else thinking, action=action, fault=fault
    )


def _call(config: ProMSA, body: str) -> Action | Malformed:
    call = json_object(body)
    if isinstance(call, Malformed):
        return Malformed(f"<tool_call> is {call.reason}")
    name, arguments = call.get("name"), call.get("arguments")
    arguments = {} if arguments is None else arguments
    if name not in (config.image_tool, config.text_tool):
        return BadCall(f"the tools are {config.image_tool} and {config.text_tool}")
    own = "image" if name == config.image_tool else "query"
    allowed = {own, "top_k", "exclude"} if config.arguments == "paper" else {own}
    if not isinstance(arguments, dict) or not arguments.keys() <= allowed:
        return BadCall(f"{name} takes {', '.join(sorted(allowed))}", name)
    top = arguments.get("top_k")
    if not (top is None or (_is_int(top) and 1 <= top <= 10)):
        return BadCall("top_k is a number from 1 to 10", name)
    if not isinstance(arguments.get("exclude", []), list):
        return BadCall("exclude is a list", name)
    if name == config.image_tool:
        image = arguments.get("image", 1)
        if not _is_int(image):
            return BadCall("image is a number", name)
        return ImageSearch(image=image, top=top)
    query = query_text(arguments.get("query"))
    if query is None:
        return BadCall(f'{name} needs {{"query": "…"}}', name)
    return TextSearch(query=query, top=top)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def format_turn(config: ProMSA, thinking: str, action: Action) -> str:
    """The text that `parse` reads as this thinking and this action."""
    match action:
        case Answer(text):
            body = f"<answer>{text}</answer>"
        case ImageSearch(image=image, top=top):
            arguments = {} if image == 1 else {"image": image}
            body = _format_call(config.image_tool, arguments, top)
        case TextSearch(query=query, top=top):
            body = _format_call(config.text_tool, {"query": query}, top)
        case BadCall():
            raise ValueError(f"A bad call has no text: {action.reason}.")
    return f"<thinking>{thinking}</thinking>{body}"


def _format_call(name: str, arguments: dict[str, object], top: int | None) -> str:
    if top is not None:
        arguments = arguments | {"top_k": top}
    return f"<tool_call>{compact_json({'name': name, 'arguments': arguments})}</tool_call>"


def system_prompt(config: ProMSA) -> str:
    """The system prompt; its text is held by a golden file."""
    if config.prompt == "short":
        return "Search, then answer."
    lines = [
        "You answer a question about an image. In each step first think between <thinking> and"
        " </thinking>, then either call one tool or answer.",
        "",
        'Tools, called as <tool_call>{"name": "tool name", "arguments": {…}}</tool_call>:',
    ]
    if config.image_calls:
        lines.append(
            f"- {config.image_tool}, arguments {{}}: pages about entities that look like the image,"
            f' {config.pages_per_call} new ones each time; {{"image": 2}} asks for a second image.'
            f" Use it while you do not know what the image shows. At most {config.image_calls}"
            " calls."
        )
    if config.text_calls:
        lines.append(
            f'- {config.text_tool}, arguments {{"query": "…"}}: {config.passages_per_call} new'
            " passages for the query. Use it when you know what the image shows and a fact is"
            f" missing. At most {config.text_calls} calls."
        )
    lines += [
        "",
        "What a tool finds comes back as a summary. Check that it fits the image before you use"
        " it, and search again if it does not.",
        "End with <answer>answer</answer>: a name, a date or a number, nothing else. You have"
        f" {config.max_turns} steps.",
    ]
    return "\n".join(lines)


def _observe(
    config: ProMSA,
    dialogue: Dialogue,
    line: str,
    found: tuple[Candidate | Passage, ...] = (),
) -> Step:
    text = line if config.prompt == "short" else f"<tool_response>{line}</tool_response>"
    dialogue = with_turn(dialogue, Turn(author="environment", parts=(text,), found=found))
    if dialogue.state.num_steps >= config.max_turns:
        return finished(dialogue, None)
    return dialogue, (Generate(parts=(text,), stops=STOPS, max_tokens=config.max_tokens),)


def _refuse(config: ProMSA, dialogue: Dialogue, reason: str) -> Step:
    """The error line for a step that cannot be executed; it loses the format reward."""
    state = dialogue.state
    fault = f"step {state.num_steps}: {reason}"
    dialogue = replace(dialogue, state=replace(state, faults=(*state.faults, fault)))
    return _observe(config, dialogue, f"Error: {reason}.")


def _search(config: ProMSA, dialogue: Dialogue, action: ImageSearch | TextSearch) -> Step:
    state = dialogue.state
    by_image = isinstance(action, ImageSearch)
    spent, budget, name = (
        (state.image_calls, config.image_calls, config.image_tool)
        if by_image
        else (state.text_calls, config.text_calls, config.text_tool)
    )
    if spent > budget:
        return _refuse(config, dialogue, f"limit reached, {budget} calls of {name}")
    if by_image and not 1 <= action.image <= len(dialogue.question.images):
        count = len(dialogue.question.images)
        return _refuse(config, dialogue, f"images are numbered 1 to {count}")
    if state.num_steps >= config.max_turns:
        return finished(dialogue, None)
    if by_image:
        served = state.served_pages[action.image - 1]
        query = ImageQuery(
            image=dialogue.question.images[action.image - 1],
            top=action.top or config.pages_per_call,
            exclude=frozenset(served),
        )
        return dialogue, (Call(tool=PAGE_TOOL, arguments=query),)
    query = TextQuery(
        queries=(action.query,),
        top=action.top or config.passages_per_call,
        exclude=frozenset(state.served_passages),
    )
    return dialogue, (Call(tool=TEXT_TOOL, arguments=query),)


def _called(config: ProMSA, action: Action | Malformed) -> str | None:
    """The tool that a call names, "" for none that there is; None for what is no call."""
    named = {ImageSearch: config.image_tool, TextSearch: config.text_tool}
    return action.tool if isinstance(action, BadCall) else named.get(type(action))


def _acted(config: ProMSA, dialogue: Dialogue, text: str) -> Step:
    written = parse(config, text)
    action, state = written.action, dialogue.state
    tool = _called(config, action)
    state = replace(
        state,
        num_steps=state.num_steps + 1,
        num_calls=state.num_calls + (tool is not None),
        image_calls=state.image_calls + (tool == config.image_tool),
        text_calls=state.text_calls + (tool == config.text_tool),
    )
    dialogue = with_turn(
        replace(dialogue, state=state), Turn(author="policy", text=text, action=action)
    )
    if isinstance(action, Malformed | BadCall):
        return _refuse(config, dialogue, written.fault)
    if written.fault:
        faults = (*state.faults, f"step {state.num_steps}: {written.fault}")
        dialogue = replace(dialogue, state=replace(state, faults=faults))
    if isinstance(action, Answer):
        return finished(dialogue, action.text)
    return _search(config, dialogue, action)


def _returned(config: ProMSA, dialogue: Dialogue, event: Returned) -> Step:
    state = dialogue.state
    if isinstance(event.result, Failed):
        dialogue = replace(dialogue, state=replace(state, pending=None))
        return _observe(config, dialogue, "The call failed.")
    if event.request.tool == SUMMARY_TOOL:
        return _summarised(config, dialogue, event.result.text)
    found = event.result
    if not found.candidates and not found.passages:
        return _observe(config, dialogue, "Nothing new was found.")
    query = SummaryQuery(question=dialogue.question.text, passages=found.passages)
    dialogue = replace(dialogue, state=replace(state, pending=found))
    return dialogue, (Call(tool=SUMMARY_TOOL, arguments=query),)


def _summarised(config: ProMSA, dialogue: Dialogue, summary: str) -> Step:
    """The summary as observation; only now do the pages or sections count as served."""
    state, found = dialogue.state, dialogue.state.pending
    action = dialogue.turns[-1].action
    if isinstance(action, ImageSearch):
        pages = list(state.served_pages)
        pages[action.image - 1] += tuple(candidate.entity for candidate in found.candidates)
        state = replace(state, served_pages=tuple(pages))
        shown = found.candidates
    else:
        served = (*state.served_passages, *(passage.id for passage in found.passages))
        state = replace(state, served_passages=served)
        shown = found.passages
    dialogue = replace(dialogue, state=replace(state, pending=None))
    return _observe(config, dialogue, summary.strip() or "Nothing relevant was found.", shown)


def advance(config: ProMSA, dialogue: Dialogue, event: Event) -> Step:
    """The dialogue after `event`, and what the method asks for next."""
    match event:
        case Begin(question):
            state = State(served_pages=((),) * len(question.images))
            ask = Generate(
                parts=question_parts(question), stops=STOPS, max_tokens=config.max_tokens
            )
            return replace(dialogue, state=state), (ask,)
        case Said(text=text):
            return _acted(config, dialogue, text)
        case Returned():
            return _returned(config, dialogue, event)


def method(config: ProMSA) -> Method:
    """ProMSA with these settings."""
    return Method(
        name=NAME,
        system=system_prompt(config),
        advance=partial(advance, config),
        tools=frozenset({PAGE_TOOL, TEXT_TOOL, SUMMARY_TOOL}),
        num_calls=lambda dialogue: dialogue.state.num_calls,
    )
