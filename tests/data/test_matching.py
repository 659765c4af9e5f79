"""The circuit that a new policy starts with: at a candidate, whether it looks like the question."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.data.induction import with_induction
from jaxagent.data.matching import with_matching
from jaxagent.data.tiny_policy import PolicySizes, hf_config
from jaxagent.data.tokenizer import trained_tokenizer
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.models.rope import position_ids
from jaxagent.types import ImageSpan
from tests import tiny

SIZES = PolicySizes(layers=3)
SEARCH_END = 7
NUM_IMAGES, NUM_CANDIDATES, NUM_CONTEXTS = 40, 5, 24
IMAGE, NAME = 4, 3  # tokens


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = trained_tokenizer(tiny.TEXTS, vocab=512)
    return Model(PolicyConfig.from_hf(hf_config(SIZES, tokenizer)))


@pytest.fixture(scope="module")
def features(model) -> ImageFeatures:
    """Images that differ, each with tokens that differ a little; as large as embeddings."""
    rng = np.random.default_rng(1)
    size = np.std(new_params(model)["text"]["embed"]["table"])
    levels, shape = len(model.config.vision.deepstack) + 1, (NUM_IMAGES, IMAGE, SIZES.width)
    found = rng.normal(size=(levels, NUM_IMAGES, 1, SIZES.width)) + rng.normal(
        scale=0.3, size=(levels, *shape)
    )
    tokens, *deepstack = jnp.asarray(size * found, jnp.float32)
    return ImageFeatures(tokens, jnp.stack(deepstack))


def test_the_candidate_that_looks_the_same_stands_out(model, features):
    params = new_params(model)
    made = with_matching(params, model.config, features, search_end=SEARCH_END)
    assert found(model, params, features, made, seed=0) < 0.5
    assert found(model, made, features, made, seed=0) > 0.9


def test_without_the_end_of_a_search_nothing_tells_question_and_candidates_apart(model, features):
    params = new_params(model)
    other = with_matching(params, model.config, features, search_end=SEARCH_END + 1)
    assert found(model, other, features, other, seed=0) < 0.7


def test_a_tower_without_room_is_refused(model, features):
    tokenizer = trained_tokenizer(tiny.TEXTS, vocab=512)
    narrow = Model(PolicyConfig.from_hf(hf_config(PolicySizes(width=64), tokenizer)))
    with pytest.raises(ValueError, match="a width of 94; model.sizes gives 2, 2 and 64"):
        with_matching({}, narrow.config, features, search_end=SEARCH_END)


def new_params(model: Model):
    params = model.init(jax.random.key(0))
    return params | {"text": with_induction(params["text"], model.config.text, seed=0)}


def found(model: Model, params, features: ImageFeatures, made, *, seed: int) -> float:
    """Share of contexts in which the circuit's output is largest at the name of the right image.

    A context is an image, words, the end of a search, and five candidates with names.
    """
    rng = np.random.default_rng(seed)
    shift = made["vision"]["merger"]["mlp"]["down"]["bias"]
    shown = ImageFeatures(features.tokens + shift[None, None], features.deepstack)
    share = -made["text"]["layers"]["attention"]["o"]["kernel"][0, 2, 0]
    right = []
    for _ in range(NUM_CONTEXTS):
        candidates = rng.permutation(NUM_IMAGES)[:NUM_CANDIDATES]
        truth = int(rng.integers(NUM_CANDIDATES))
        pieces = [words(rng, 6), image(candidates[truth]), words(rng, 30), [(SEARCH_END, -1)]]
        for one in candidates:
            pieces += [words(rng, 3), image(one), words(rng, NAME)]
        ids, index = np.array([token for piece in pieces for token in piece]).T
        starts = np.flatnonzero((index >= 0) & (index % IMAGE == 0))
        spans = [ImageSpan(key="", start=int(start), grid=(1, 4, 4)) for start in starts]
        hidden = model.forward(
            params,
            jnp.asarray(ids)[None],
            jnp.asarray(position_ids(ids, spans, 2).ids)[:, None],
            jnp.ones((1, len(ids)), jnp.int32),
            shown,
            jnp.asarray(index)[None],
        )
        right.append(int(np.argmax(hidden[0, starts[1:] + IMAGE + 1] @ share)) == truth)
    return float(np.mean(right))


def words(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Tokens of text, and that no feature stands there."""
    return [(int(token), -1) for token in rng.integers(20, SIZES.vocab, count)]


def image(number: int) -> list[tuple[int, int]]:
    """Tokens of an image with their rows of the flattened features."""
    return [(0, int(number) * IMAGE + at) for at in range(IMAGE)]
