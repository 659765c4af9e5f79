"""BEM's input and the open metric: candidate, reference and question to a probability.

    [CLS] candidate [SEP] reference [SEP] question [SEP] 0 0     segments 0.. 1.. 2.., padding 0

Texts are lower-cased and stripped of accents, and cut into pieces of the vocabulary. No special
token is known to the tokenizer, so a literal `[SEP]` in a text is three pieces, as in the metric's
own code (google-research, encyclopedic_vqa/evaluation_utils.py); transformers would keep it whole.
Left out: that code counts 100 bytes as the longest word, here it is 100 characters.

The metric's own code fails above 512 tokens. What is done here is a `TooLong`:

    candidate   the end of the candidate is cut off until all fits; reference and question, which
                the data set gives, are never touched, and refused where they alone do not fit
    reag        ReAG's way: of the candidate its first 128 characters, of all the first 512 tokens
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, Int32
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from jaxagent.models.bem import Model
from jaxagent.processing.texts import encodable
from jaxagent.trees import Params
from jaxagent.weights.bem import read_bem

VOCABULARY = "vocab.txt"
MAX_TOKENS = 512
REAG_CHARACTERS = 128
LENGTHS = (32, 64, 128, 256, 512)
BATCHES = (1, 8, 32)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

TooLong = Literal["candidate", "reag"]
"""What happens to an input above the longest; see the module's docstring."""


class BemError(ValueError):
    """A vocabulary that is none, or texts that cannot be packed."""


class Pair(NamedTuple):
    """A candidate answer beside the reference, both to the same question."""

    candidate: str
    reference: str
    question: str


class Packed(NamedTuple):
    """The ids of one input without padding, and each one's segment."""

    ids: list[int]
    segments: list[int]


class Packing:
    """Pairs to ids by a vocabulary."""

    def __init__(self, vocabulary: Path, *, max_tokens: int = MAX_TOKENS):
        words = _words(vocabulary)
        self.num_words = len(words)
        self.max_tokens = max_tokens
        self._cls, self._sep = words["[CLS]"], words["[SEP]"]
        self._tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
        self._tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=True, lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __call__(self, pair: Pair, *, too_long: TooLong = "candidate") -> Packed:
        """The packed pair; BemError when reference and question alone are too long."""
        candidate = pair.candidate[:REAG_CHARACTERS] if too_long == "reag" else pair.candidate
        texts = (candidate, pair.reference, pair.question)
        first, *others = (self._tokenizer.encode(encodable(text)).ids for text in texts)
        room = self.max_tokens - 4 - sum(map(len, others))
        if too_long == "candidate":
            if room < 0:
                raise BemError(
                    f"Reference and question are {self.max_tokens - room} tokens with the special "
                    f"ones, and BEM reads {self.max_tokens}: {pair.question[:60]!r}. Shorten them, "
                    "or pack as ReAG does."
                )
            first = first[:room]
        ids, segments = [self._cls], [0]
        for segment, part in enumerate((first, *others)):
            ids += [*part, self._sep]
            segments += [segment] * (len(part) + 1)
        return Packed(ids[: self.max_tokens], segments[: self.max_tokens])


def _words(path: Path) -> dict[str, int]:
    """The ids of a vocabulary's words: the lines, in order."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BemError(
            f"{path} cannot be read as a vocabulary ({error}). Give the vocab.txt of "
            "bert-base-uncased."
        ) from None
    words = {word: place for place, word in enumerate(lines)}
    missing = [word for word in SPECIAL if word not in words]
    if missing or words["[PAD]"] != 0:
        raise BemError(
            f"{path} is no vocabulary of BERT: {', '.join(missing) or '[PAD]'} "
            f"{'is not in it' if missing else 'is not its first line'}. Give the vocab.txt of "
            "bert-base-uncased."
        )
    return words


def scores(
    model: Model,
    params: Params,
    packing: Packing,
    pairs: Sequence[Pair],
    *,
    too_long: TooLong = "candidate",
) -> Float32[np.ndarray, " n"]:
    """The probability of each pair that its candidate is equivalent to the reference."""
    packed = [packing(pair, too_long=too_long) for pair in pairs]
    order = sorted(range(len(packed)), key=lambda row: len(packed[row].ids))
    found = np.zeros(len(packed), np.float32)
    for start in range(0, len(order), BATCHES[-1]):
        rows = order[start : start + BATCHES[-1]]
        size = next(size for size in BATCHES if size >= len(rows))
        wanted = max(len(packed[row].ids) for row in rows)
        length = min(next(rung for rung in LENGTHS if rung >= wanted), packing.max_tokens)
        ids = _padded([packed[row].ids for row in rows], size, length)
        segments = _padded([packed[row].segments for row in rows], size, length)
        found[rows] = np.asarray(_compiled(model)(params, ids, segments))[: len(rows)]
    return found


def _padded(
    rows: Sequence[Sequence[int]], size: int, length: int
) -> Int32[np.ndarray, "size length"]:
    padded = np.zeros((size, length), np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


@cache
def _compiled(model: Model):
    return jax.jit(model.scores)


class Bem:
    """The open metric."""

    def __init__(self, folder: str | Path):
        """Opens a folder of `convert_bem`; ConfigError, WeightsError or BemError for another."""
        config, params = read_bem(folder)
        self.model = Model(config)
        self.params = jax.device_put(params)
        self.packing = open_packing(Path(folder) / VOCABULARY, self.model)

    def scores(
        self, pairs: Sequence[Pair], *, too_long: TooLong = "candidate"
    ) -> Float32[np.ndarray, " n"]:
        """The probability of each pair; BEM's own threshold is 0.5."""
        return scores(self.model, self.params, self.packing, pairs, too_long=too_long)


def open_packing(vocabulary: Path, model: Model) -> Packing:
    """The packing of a vocabulary that fits the model; BemError when it does not."""
    packing = Packing(vocabulary, max_tokens=min(MAX_TOKENS, model.config.positions))
    if packing.num_words != model.config.vocab:
        raise BemError(
            f"{vocabulary} has {packing.num_words} words and the weights {model.config.vocab}. "
            "Give the vocab.txt of bert-base-uncased."
        )
    return packing
