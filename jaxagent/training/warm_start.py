"""The vision tower's warm start: a query view and its base image are brought together (InfoNCE).

Published policies start from towers that were trained on millions of image-text pairs. A tower of
random weights sees nothing that the text tower could compare, so it first learns what belongs
together: the features of a view, averaged over the image's tokens, against those of the base image.
The tokens and each deepstack level count alike:

    e(image) = concat(unit(mean tokens), unit(mean deepstack_1), ...) / sqrt(1 + levels)

Views of the base's own drawings are made of every entity, as an index's encoder knows its base.
Views by the query artist are made of training entities alone: no drawing that a validation or test
question shows is ever read here. Half of the pairs are twisted alike (`data.fiction`): flags that
exist nowhere, which make the tower look rather than remember.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxagent.bounds import SHARE, at_least, check_numbers
from jaxagent.data.config import check_levels, check_views
from jaxagent.data.fiction import TWISTS, twisted_key
from jaxagent.data.views import view_key
from jaxagent.models.policy import Model
from jaxagent.training.contrastive import ContrastiveConfig, Pairs, train
from jaxagent.trees import Params, map_named
from jaxagent.types import Grid

Pair = tuple[str, str]
"""The key of a view and that of its base image."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """A warm start's choices; 0 steps leave the tower as it is."""

    steps: int = 0
    batch: int = 96
    """Entities a step; every other one is a negative."""
    learning_rate: float = 1.5e-3
    views: int = 32
    """Different views of an entity by each artist; `levels` take turns among them."""
    levels: tuple[str, ...] = ("L1", "L2", "L3", "L2")
    query_share: float = 0.5
    """Share of the training entities' views that the query artist drew."""
    twisted: float = 0.5
    """Share of pairs under a twist, the same for both images."""

    def __post_init__(self):
        check_levels(self.levels, "warm_start.levels")
        check_views(self.views, "warm_start.views")
        check_numbers(self, "warm_start", at_least(0), "learning_rate")
        check_numbers(self, "warm_start", SHARE, "query_share", "twisted")


def warm_start_pairs(
    entities: Sequence[str], trained: frozenset[str], artists: tuple[str, str], config: WarmStart
) -> Callable[[int, int], list[Pair]]:
    """(seed, step) -> a batch of pairs of different entities.

    Args:
        entities: all of the base.
        trained: those that training asks about.
        artists: of the base and of the queries.
    """
    if config.batch > len(entities):
        raise ValueError(
            f"warm_start.batch is {config.batch}, but the base has {len(entities)} entities and a "
            "batch shows each at most once. Lower it."
        )
    base, query = artists

    def pairs(seed: int, step: int) -> list[Pair]:
        rng = np.random.default_rng((seed, step))
        drawn = [entities[i] for i in rng.permutation(len(entities))[: config.batch]]
        numbers = rng.integers(0, config.views, config.batch)
        by_query = rng.random(config.batch) < config.query_share
        twists = rng.integers(0, len(TWISTS), config.batch)
        twists *= rng.random(config.batch) < config.twisted
        found = []
        for entity, number, asked, twist in zip(drawn, numbers, by_query, twists, strict=True):
            artist = query if asked and entity in trained else base
            level = config.levels[number % len(config.levels)]
            view = view_key(entity, artist, level, int(number))
            found.append((twisted_key(view, int(twist)), twisted_key(f"kb:{entity}", int(twist))))
        return found

    return pairs


def embedded(
    model: Model, grid: Grid, params: Params, patches: Float[Array, "b p c"]
) -> Float[Array, "b e"]:
    """The unit vector of each image; see the module's equation."""
    features = model.encode_images(params, patches, grid)
    levels = jnp.concatenate([features.tokens[None], features.deepstack]).mean(axis=2)
    norms = jnp.sqrt(jnp.sum(levels * levels, axis=2, keepdims=True) + 1e-6)
    levels = levels / norms / len(levels) ** 0.5
    return jnp.moveaxis(levels, 0, 1).reshape(len(patches), -1)


def warm_started(
    model: Model,
    params: Params,
    pairs: Callable[[int, int], list[Pair]],
    patches: Callable[[str], Float[np.ndarray, "p c"]],
    grid: Grid,
    config: WarmStart,
    *,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Params:
    """The parameters with a trained vision tower; the text tower is what it was."""

    def embed(vision: Params, images: Float[Array, "b p c"]) -> Float[Array, "b e"]:
        return embedded(model, grid, {**params, "vision": vision}, images)

    def batch(step: int) -> Pairs:
        views, bases = zip(*pairs(seed, step), strict=True)
        return Pairs(*(np.stack([patches(key) for key in keys]) for keys in (views, bases)))

    run = ContrastiveConfig(
        steps=config.steps, learning_rate=config.learning_rate, weight_decay=0.05
    )
    vision = jax.tree.map(jnp.copy, params["vision"])  # the run gives up what it is handed
    return {**params, "vision": train(embed, vision, batch, run, progress=progress).params}


def levelled(
    model: Model, params: Params, patches: Float[np.ndarray, "b p c"], grid: Grid
) -> Params:
    """The parameters with image features as large as embeddings; `patches` are of sample images.

    The contrastive loss sees directions alone and leaves features ten times as large, beside which
    nothing that a layer of the text tower writes at an image's token is seen.
    """
    features = model.encode_images(params, jnp.asarray(patches), grid)
    table = jnp.asarray(params["text"]["embed"]["table"])
    sizes = {"merger": _size(features.tokens), "deepstack_mergers": _size(features.deepstack)}

    def scaled(name: str, leaf: Array) -> Array:
        owner = name.partition("/")[0]
        if "/mlp/down/" not in name or owner not in sizes:
            return leaf
        factor = _size(table) / sizes[owner]
        return leaf * factor.reshape(factor.shape + (1,) * (leaf.ndim - factor.ndim))

    return params | {"vision": map_named(scaled, params["vision"])}


def _size(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The root mean square of a table, of features `[i n d]`, or of each of `[s i n d]`."""
    return jnp.sqrt(jnp.mean(x * x, axis=tuple(range(max(x.ndim - 3, 0), x.ndim))))


def tower_vectors(
    model: Model,
    params: Params,
    patches: Mapping[str, Float[np.ndarray, "p c"]],
    grid: Grid,
    *,
    batch: int = 64,
) -> dict[str, Float[np.ndarray, " e"]]:
    """Key -> unit vector of each image, for the tower used as a retriever."""
    encode = jax.jit(partial(embedded, model, grid))
    params = params | {"vision": jax.device_put(params["vision"])}  # once for all batches
    keys = list(patches)
    vectors = {}
    for start in range(0, len(keys), batch):
        chunk = keys[start : start + batch]
        values = np.stack([patches[key] for key in chunk])
        values = np.pad(values, ((0, batch - len(chunk)), (0, 0), (0, 0)))
        vectors |= dict(zip(chunk, np.asarray(encode(params, values)), strict=False))
    return vectors
