"""The nouns of the project: questions, parts of a context, turns, dialogues and trajectories.

Host records are frozen, keyword-only dataclasses; nothing here touches a device. An image is named
by a key (`ImageRef`), and its pixels are looked up by whoever needs them, so a record stays small
and printable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

Split = Literal[
    "train", "val_unseen_question", "val_unseen_entity", "unseen_question", "unseen_entity"
]
AnswerKind = Literal["String", "Time", "Numerical"]
Family = Literal["single", "bridge", "compare"]


@dataclass(frozen=True)
class ImageRef:
    """An image by its key: `kb:td` (the base's drawing), `view:td:twemoji:L2:17` (a query view)."""

    key: str


Part = str | ImageRef
Grid = tuple[int, int, int]
"""Frames, rows and columns of an image's patches."""
Images = Callable[[str], UInt8[np.ndarray, "y x 3"]]
"""Key -> RGB pixels; raises KeyError with the key when there is no such image."""
Progress = Callable[[str, int, int], None]
"""Called with what is being made, how many are done and how many there are."""


def silent(what: str, done: int, total: int) -> None:
    """`Progress` that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row of a data set. `entities[j]` is the true entity's id of query image `images[j]`."""

    data_id: str
    images: tuple[str, ...]
    text: str
    kind: AnswerKind
    family: Family
    answers: tuple[str, ...]
    answer_range: tuple[float, float] | None = None
    entities: tuple[str, ...]
    relation: str
    evidence: tuple[str, ...] = ()
    split: Split = "train"
    ambiguous: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An entity that the image index returned, with the image that stands for it."""

    entity: str
    name: str
    image: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A passage that the text index returned."""

    id: str
    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one author added to a dialogue.

    `text` of a policy's turn is a view of its tokens (up to and including the stop string); the
    tokens are the truth. `action` is the method's own action record, `found` what the environment
    returned with it.
    """

    author: Literal["policy", "environment"]
    text: str = ""
    parts: tuple[Part, ...] = ()
    action: Any = None
    found: tuple[Candidate | Passage, ...] = ()
    forced: bool = False


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A question, what was said so far, and the method's own state (a frozen record)."""

    question: Question
    turns: tuple[Turn, ...] = ()
    state: Any = None
    done: bool = False
    answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImageSpan:
    """An image in a token sequence: `start` is the index of its first placeholder token."""

    key: str
    start: int
    grid: Grid


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A finished dialogue with the exact tokens it was sampled in.

    `written` is True on tokens that the policy sampled (the only ones with loss); `log_probs` are
    under the distribution sampled from, and 0 elsewhere.
    """

    dialogue: Dialogue
    sample: int
    ids: Int[np.ndarray, " t"]
    written: Bool[np.ndarray, " t"]
    log_probs: Float[np.ndarray, " t"]
    images: tuple[ImageSpan, ...] = ()
    num_calls: int = 0
    truncated: bool = False
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def question(self) -> Question:
        return self.dialogue.question


@dataclass(frozen=True, kw_only=True)
class Score:
    """A reward and its terms; `total` is the sum of its terms, which are weighted."""

    total: float
    terms: Mapping[str, float]
