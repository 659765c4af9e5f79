"""Turns of a chat to tokens, appended one after the other and never tokenised twice.

    <|im_start|>system\\nSYSTEM<|im_end|>\\n                                     prompt
    <|im_start|>user\\nPARTS<|im_end|>\\n<|im_start|>assistant\\n
    what the policy wrote                                                       (sampled)
    <|im_end|>\\n<|im_start|>user\\nPARTS<|im_end|>\\n<|im_start|>assistant\\n      observation

An image among the parts is `<|vision_start|>`, as many `<|image_pad|>` as it has tokens, and
`<|vision_end|>`. Only this module writes control tokens: text of the environment is tokenised with
special tokens disabled, so a passage that holds `<|im_end|>` stays plain text. Left out: videos
(give frames as images; the token `<|video_pad|>` is never written) and the default system turn that
Qwen2-VL's template adds where none is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer

from jaxagent.processing.images import ImageProcessor
from jaxagent.types import Grid, ImageSpan, Part
from jaxagent.weights.folder import read_config

ImageGrid = Callable[[str], Grid]
"""The grid of the image of a key."""


class ChatError(ValueError):
    """A folder whose tokenizer cannot write Qwen's chats; the message says what it lacks."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Tokens to append to a context and the images among them (`start` counts within the piece)."""

    ids: list[int]
    images: tuple[ImageSpan, ...] = ()


_NEEDED = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@dataclass(frozen=True, eq=False)
class Chat:
    """The chat format of a policy's folder."""

    tokenizer: Tokenizer
    image_processor: ImageProcessor
    vocab: int  # rows of the embedding table, some of which may have no token

    @classmethod
    def read(cls, folder: str | Path) -> "Chat":
        """From `tokenizer.json`; ChatError when it is missing, unreadable or not Qwen's."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ChatError(f"{path} is not there; {_remedy(Path(folder))}")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ChatError(f"{path} cannot be read: {error}.") from None
        if missing := [token for token in _NEEDED if tokenizer.token_to_id(token) is None]:
            raise ChatError(
                f"{path} lacks {', '.join(missing)}; a Qwen-VL policy needs Qwen's tokenizer."
            )
        tokenizer.encode_special_tokens = True
        return cls(tokenizer, ImageProcessor.read(folder), read_config(folder).text.vocab)

    def plain(self, text: str) -> list[int]:
        """The tokens of text that may say anything: no control token comes out."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, system: str, parts: Sequence[Part], *, image_grid: ImageGrid) -> Piece:
        """The start of a dialogue, up to where the policy writes; no system turn when it is ""."""
        opening = [_START, f"system\n{system}", _END, "\n"] if system else []
        return self._piece([*opening, *_user_turn(parts)], image_grid)

    def observation(self, parts: Sequence[Part], *, ended: bool, image_grid: ImageGrid) -> Piece:
        """What the environment appends after the policy's turn, up to where it writes again.

        `ended` says that the policy wrote `<|im_end|>` itself; it is not repeated then.
        """
        closing = ["\n"] if ended else [_END, "\n"]
        return self._piece([*closing, *_user_turn(parts)], image_grid)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens written out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def end_id(self) -> int:
        """The token that ends a turn."""
        return self.tokenizer.token_to_id("<|im_end|>")

    @cached_property
    def image_id(self) -> int:
        """The placeholder token of images."""
        return self.tokenizer.token_to_id("<|image_pad|>")

    @cached_property
    def banned_ids(self) -> tuple[int, ...]:
        """What a policy may never write: specials but the turn's end, and rows without a token."""
        added = self.tokenizer.get_added_tokens_decoder()
        special = {id for id, token in added.items() if token.special} - {self.end_id}
        tokens = set(self.tokenizer.get_vocab().values())
        return tuple(sorted(special | set(range(self.vocab)) - tokens))

    def _piece(self, items: "Sequence[Part | _Control]", image_grid: ImageGrid) -> Piece:
        ids: list[int] = []
        images: list[ImageSpan] = []
        for kind, group in groupby(items, type):
            if kind is str:  # neighbouring text is tokenised as one, as a rendered template is
                ids += self.plain("".join(group))
                continue
            for item in group:
                if isinstance(item, _Control):
                    ids.append(self._id(item.token))
                    continue
                grid = image_grid(item.key)
                ids.append(self._id("<|vision_start|>"))
                images.append(ImageSpan(key=item.key, start=len(ids), grid=grid))
                ids += [self.image_id] * self.image_processor.num_tokens(grid)
                ids.append(self._id("<|vision_end|>"))
        return Piece(ids=ids, images=tuple(images))

    def _id(self, token: str) -> int:
        return self.tokenizer.token_to_id(token)


def _remedy(folder: Path) -> str:
    if not all((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        return "copy it from the policy's source."
    return (
        'write it from vocab.json and merges.txt with: python -c "from transformers import '
        f"AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\""
    )


@dataclass(frozen=True)
class _Control:
    token: str


_START, _END = _Control("<|im_start|>"), _Control("<|im_end|>")


def _user_turn(parts: Sequence[Part]) -> "list[Part | _Control]":
    return [_START, "user\n", *parts, _END, "\n", _START, "assistant\n"]
