"""Reading what a policy wrote: tagged blocks and JSON arguments.

Everything here takes any text, is linear in its length and never raises; a text that cannot be read
gives a `Malformed` with one line for the policy.
"""

import json
from dataclasses import dataclass

from jaxagent.processing.texts import encodable

MAX_BODY = 20_000
"""Longest JSON body that is looked at, in characters (far above any generation limit)."""


@dataclass(frozen=True)
class Malformed:
    """A turn without an action that can be executed, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """`before` + `<tag>` + `body` + `</tag>`."""

    tag: str
    body: str
    before: str


def first_block(text: str, *, tags: tuple[str, ...]) -> Block | Malformed:
    """The block that ends at the first closing tag, where generation stopped."""
    ends = [(at, tag) for tag in tags if (at := text.find(f"</{tag}>")) >= 0]
    if not ends:
        return Malformed(f"no action; write one of {', '.join(f'<{tag}>' for tag in tags)}")
    end, tag = min(ends)
    start = text.rfind(f"<{tag}>", 0, end)
    if start < 0:
        return Malformed(f"</{tag}> without <{tag}>")
    return Block(tag=tag, body=text[start + len(tag) + 2 : end], before=text[:start])


def only_block(text: str, *, tag: str) -> str | None:
    """The body when `text` is exactly one `<tag>…</tag>` with blanks around it, else None."""
    text = text.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    body = text[len(opening) : -len(closing)]
    exact = text == opening + body + closing and opening not in body and closing not in body
    return body.strip() if exact else None


def json_object(body: str) -> dict[str, object] | Malformed:
    """The JSON object in `body`; data only, never evaluated."""
    if len(body) > MAX_BODY:
        return Malformed(f"more than {MAX_BODY} characters of JSON")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return Malformed("not valid JSON")
    return value if isinstance(value, dict) else Malformed("not a JSON object")


def compact_json(value: dict[str, object]) -> str:
    """`value` as JSON in which no closing tag can occur."""
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/")


def query_text(value: object) -> str | None:
    """`value` as a search query, or None when it is not a string or blank.

    JSON can name lone surrogates, which no encoder downstream accepts.
    """
    if not isinstance(value, str) or not value.strip():
        return None
    return encodable(value).strip()
