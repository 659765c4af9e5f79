"""An encoder's folder, compared from its texts or images to its vectors.

BERT and XLM-RoBERTa (E5, BGE, bge-m3, MiniLM): token ids, hidden states, sentence vectors made as
the folder says. EVA-CLIP: the embeddings of images and of texts, whose ids are drawn at random,
since not every folder has a tokenizer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.bert import Model as Bert
from jaxagent.models.eva_clip import Model as EvaClip
from jaxagent.parity.cases import drawings
from jaxagent.parity.compare import HALF_FACTOR, TOLERANCES, Row, Sides, compared, exact
from jaxagent.processing.clip import ClipImages
from jaxagent.retrieval.sentence_recipe import Recipe
from jaxagent.retrieval.text_encoder import open_sentence_encoder
from jaxagent.types import Progress
from jaxagent.weights.bert import read_bert
from jaxagent.weights.eva_clip import read_config, read_eva_clip

COSINE = 1e-6
"""How far below 1 a cosine may be in float32."""
TEXTS = (
    "What is the capital of Chad?",
    "N'Djamena is the capital and largest city of Chad; it lies where two rivers meet.",
    "Bucharest",
    "A flag of three vertical bands: blue, yellow and red. " * 12,
)


def compare_sentence_encoder(
    folder: Path, *, dtype: str, device: str, progress: Progress
) -> Iterator[Row]:
    """A row for each stage; raises RecipeError, ConfigError or WeightsError."""
    from jaxagent.parity import torch_encoders  # needs PyTorch, which is an extra

    encoder = open_sentence_encoder(folder)
    recipe = encoder.recipe
    progress("compare", 0, 3)
    tokens = encoder.tokens(TEXTS, "query") + encoder.tokens(TEXTS, "passage")
    texts = [recipe.text(text, role) for role in ("query", "passage") for text in TEXTS]
    ours = _padded(tokens, -1)
    theirs = _padded(torch_encoders.token_ids(folder, texts, recipe.max_tokens), -1)
    yield exact("token ids", ours, theirs)
    ids = _padded(tokens, encoder.model.config.pad)
    real = np.arange(ids.shape[1])[None] < np.array([len(row) for row in tokens])[:, None]
    progress("compare", 1, 3)
    made = torch_encoders.hidden_states(folder, ids, real, dtype=dtype, device=device)
    progress("compare", 2, 3)
    weights = read_bert(folder, dtype=dtype)
    params = jax.device_put(weights.params)
    hidden = jax.jit(Bert(weights.config).forward)(params, jnp.asarray(ids), jnp.asarray(real))
    states = Sides(_host(hidden), *made)
    yield compared("hidden states", _kept(states, real), TOLERANCES["tower"])
    if dtype == "float32":  # the way that the retriever goes
        vectors = np.concatenate([encoder.queries(TEXTS), encoder(TEXTS)])
    else:
        vectors = Bert(weights.config).sentence_vectors(
            params,
            jnp.asarray(ids),
            jnp.asarray(real),
            pooling=recipe.pooling,
            normalised=recipe.normalised,
        )
        vectors = _host(vectors)
    pooled = (None if one is None else _pooled(one, real, recipe) for one in made)
    yield from _vector_rows("sentence", Sides(vectors, *pooled))
    progress("compare", 3, 3)


def compare_eva_clip(folder: Path, *, dtype: str, device: str, progress: Progress) -> Iterator[Row]:
    """A row for each tower; raises ConfigError or WeightsError. Runs the folder's Python code."""
    from jaxagent.parity import torch_encoders  # needs PyTorch, which is an extra

    config = read_config(folder)
    pixels = ClipImages(config.image.image).pixels(drawings())
    numbers = np.random.default_rng(0)
    ids = numbers.integers(1, config.text.vocab - 1, (4, config.text.positions)).astype(np.int32)
    for row, end in enumerate(numbers.integers(1, config.text.positions, len(ids))):
        ids[row, end:] = 0
        ids[row, end] = config.text.vocab - 1  # the largest id ends a text
    progress("compare", 0, 2)
    theirs = torch_encoders.embeddings(folder, pixels, ids, dtype=dtype, device=device)
    progress("compare", 1, 2)
    model = EvaClip(config)
    params = jax.device_put(read_eva_clip(folder, dtype=dtype).params)
    images = jax.jit(model.image_embeddings)(params, jnp.asarray(pixels, dtype))
    yield from _vector_rows("image", Sides(_host(images), *theirs.images))
    texts = jax.jit(model.text_embeddings)(params, jnp.asarray(ids))
    yield from _vector_rows("text", Sides(_host(texts), *theirs.texts))
    progress("compare", 2, 2)


def _vector_rows(what: str, sides: Sides) -> Iterator[Row]:
    """The rows of vectors: their numbers, and the smallest cosine of two that should be one."""
    yield compared(f"{what} embeddings", sides, TOLERANCES["tower"])
    reference = sides.theirs if sides.wide is None else sides.wide
    away = 1 - _cosine(sides.ours, reference)
    own = None if sides.wide is None else float(1 - _cosine(sides.theirs, sides.wide))
    yield Row(
        stage=f"{what} cosine",
        absolute=away,
        relative=away,
        tolerance=COSINE if own is None else COSINE + HALF_FACTOR**2 * own,  # of squared errors
        theirs=own,
        note=f"smallest {1 - away:.7f}",
    )


def _cosine(ours: Float[np.ndarray, "b d"], theirs: Float[np.ndarray, "b d"]) -> float:
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float((np.sum(ours * theirs, axis=1) / lengths).min())


def _pooled(
    hidden: Float[np.ndarray, "b t d"], real: Bool[np.ndarray, "b t"], recipe: Recipe
) -> Float[np.ndarray, "b d"]:
    """Sentence vectors of transformers' hidden states, in NumPy."""
    if recipe.pooling == "cls":
        vectors = hidden[:, 0]
    else:
        vectors = (hidden * real[:, :, None]).sum(1) / real.sum(1, keepdims=True)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / lengths if recipe.normalised else vectors).astype(np.float32)


def _kept(sides: Sides, real: Bool[np.ndarray, "b t"]) -> Sides:
    """The states of what is no padding."""
    return Sides(*(None if side is None else side[real] for side in sides))


def _padded(tokens: Sequence[Sequence[int]], filling: int) -> Int[np.ndarray, "b t"]:
    made = np.full((len(tokens), max(map(len, tokens))), filling, np.int32)
    for row, ids in enumerate(tokens):
        made[row, : len(ids)] = ids
    return made


def _host(values: Array) -> np.ndarray:
    return np.asarray(values.astype(jnp.float32))
