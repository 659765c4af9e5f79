"""Trains the retriever's image encoder on views of the base's own drawings, and measures it.

A pair is a seeded view of an entity's base drawing and the base image itself, both by the base's
artist. The query artist's drawings are read only afterwards, to measure recall: every query shows a
drawing that the encoder never saw. That it saw the base's images is what adapting an encoder to its
index means; its card says so.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8

from jaxagent.bounds import POSITIVE, at_least, check_numbers
from jaxagent.data.benchmark import Benchmark
from jaxagent.data.config import check_levels
from jaxagent.data.views import LEVELS, FlagImages, view_key
from jaxagent.models.conv_encoder import ConvEncoderConfig, Model
from jaxagent.retrieval.encoders import ImageEncoder
from jaxagent.retrieval.image_encoder import read_image_encoder, save_image_encoder
from jaxagent.retrieval.index import Index, IndexConfig, build_index
from jaxagent.retrieval.search import TOPS
from jaxagent.training.contrastive import ContrastiveConfig, Embed, Pairs, train
from jaxagent.trees import Params, num_parameters
from jaxagent.types import Progress, silent

MEASURED_FROM = 1_000_000
"""Seed of the first view that recall is measured on; training takes seeds from 0."""
Keys = Sequence[Sequence[str]]
"""One row an entity, one key a view."""


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig:
    """A run. `views` of each drawing are rendered once, by `processes`, their `levels` in turn."""

    steps: int = 0
    batch: int = 96
    views: int = 24
    levels: tuple[str, ...] = ("L1", "L2")
    learning_rate: float = 2e-3
    temperature: float = 0.07
    widths: tuple[int, ...] = (16, 32, 48)
    out_width: int = 64
    measured_views: int = 4
    processes: int = 2

    def __post_init__(self):
        check_levels(self.levels, "image_encoder.levels")
        sizes = ("batch", "views", "out_width", "measured_views", "processes")
        check_numbers(self, "image_encoder", at_least(1), *sizes)
        check_numbers(self, "image_encoder", at_least(0), "learning_rate")
        check_numbers(self, "image_encoder", POSITIVE, "temperature")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(
                f"image_encoder.widths is {self.widths}; it must hold sizes of at least 1."
            )


class TrainedEncoder(NamedTuple):
    """What a run leaves, and how many entities it saw."""

    model: Model
    params: Params
    losses: list[float]
    num_entities: int


def training_keys(entities: Sequence[str], artist: str, config: ImageEncoderConfig) -> Keys:
    """The views that are trained on, all by one artist."""
    return [
        [
            view_key(entity, artist, config.levels[number % len(config.levels)], number)
            for number in range(config.views)
        ]
        for entity in entities
    ]


def trained_encoder(
    benchmark: Benchmark, config: ImageEncoderConfig, *, seed: int, progress: Progress = silent
) -> TrainedEncoder:
    """An encoder trained on the base's artist alone.

    Raises ValueError when the base has fewer entities than a batch takes.
    """
    entities = [entity.id for entity in benchmark.entities if entity.split]
    if config.batch > len(entities):
        raise ValueError(
            f"A batch of {config.batch} shows as many entities; the base has {len(entities)}. "
            "Lower image_encoder.batch."
        )
    images = FlagImages(benchmark.folder)
    bases = np.stack([images(f"kb:{entity}") for entity in entities])
    keys = training_keys(entities, benchmark.config.base, config)
    pool = rendered(benchmark.folder, keys, processes=config.processes, progress=progress)
    model = Model(
        ConvEncoderConfig(size=images.size, widths=config.widths, out_width=config.out_width)
    )

    def pairs(step: int) -> Pairs:
        rng = np.random.default_rng((seed, step))
        rows = rng.permutation(len(entities))[: config.batch]
        views = rng.integers(0, config.views, config.batch)
        return Pairs(jnp.asarray(pool[rows, views]), jnp.asarray(bases[rows]))

    trained = train(
        _embed(model),
        model.init(jax.random.key(seed)),
        pairs,
        ContrastiveConfig(
            steps=config.steps,
            learning_rate=config.learning_rate,
            temperature=config.temperature,
        ),
        progress=lambda step, loss: progress("contrastive steps", step + 1, config.steps),
    )
    return TrainedEncoder(model, trained.params, trained.losses, len(entities))


@cache
def _embed(model: Model) -> Embed:
    """The same function for equal models, so that a second run compiles nothing."""
    return model.encode


def train_image_encoder(
    benchmark: Benchmark,
    folder: Path,
    config: ImageEncoderConfig,
    *,
    seed: int,
    command: str,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The card of the encoder that was trained and written to `folder`.

    Args:
        command: what the user typed, for the card.
    """
    begun, cpu_begun = time.monotonic(), _cpu_seconds()
    trained = trained_encoder(benchmark, config, seed=seed, progress=progress)
    base, query = benchmark.config.base, benchmark.config.query
    card = {
        "command": command,
        "seed": seed,
        "trained_on": f"{trained.num_entities} drawings by {base}, {config.views} views each at "
        f"{' and '.join(config.levels)}; no drawing by {query}",
        "steps": config.steps,
        "batch": config.batch,
        "num_parameters": num_parameters(trained.params),
        "final_loss": round(float(np.mean(trained.losses[-20:])), 4),
        "seconds": round(time.monotonic() - begun),
        "cpu_seconds": round(_cpu_seconds() - cpu_begun),
    }
    save_image_encoder(folder, trained.model, trained.params, card)
    encoder = read_image_encoder(folder.name, folder)
    card["recall"] = recall_table(benchmark, encoder, config.measured_views, progress=progress)
    save_image_encoder(folder, trained.model, trained.params, card)
    return card


def _cpu_seconds() -> float:
    """Seconds on all cores, of finished child processes too."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def recall_table(
    benchmark: Benchmark, encoder: ImageEncoder, num_views: int, *, progress: Progress = silent
) -> list[dict[str, Any]]:
    """R@k in percent by artist and level, over all entities and over those of the test."""
    entities = [entity for entity in benchmark.entities if entity.split]
    images = FlagImages(benchmark.folder)
    vectors = encoder([images(entity.image) for entity in entities])
    index = build_index(vectors, IndexConfig(kind="exact"))
    tested = np.array([entity.split == "unseen_entity" for entity in entities])
    cells = [(artist, level) for artist in images.drawings.artists for level in LEVELS]
    table = []
    for done, (artist, level) in enumerate(cells, 1):
        ranks = np.stack(
            [
                own_ranks(index, encoder([images(view) for view in views]))
                for views in _measured_keys(
                    [entity.id for entity in entities], artist, level, num_views
                )
            ]
        )
        row: dict[str, Any] = {"artist": artist, "level": level}
        for name, of in (("all", ranks), ("unseen_entity", ranks[:, tested])):
            row[name] = {f"R@{top}": _percent((of > 0) & (of <= top)) for top in TOPS}
        table.append(row)
        progress("recall", done, len(cells))
    return table


def _measured_keys(entities: Sequence[str], artist: str, level: str, num_views: int) -> Keys:
    """One row a view, one key an entity."""
    return [
        [view_key(entity, artist, level, MEASURED_FROM + number) for entity in entities]
        for number in range(num_views)
    ]


def own_ranks(index: Index, vectors: np.ndarray) -> Int[np.ndarray, " rows"]:
    """The rank (from 1) that row i has for query i; 0 when it is not among the last of TOPS."""
    own = index.search(vectors, TOPS[-1]).ids == np.arange(len(vectors))[:, None]
    return np.where(own.any(axis=1), own.argmax(axis=1) + 1, 0)


def _percent(hits: np.ndarray) -> float:
    return round(100 * float(hits.mean()), 1) if hits.size else 0.0


def rendered(
    folder: Path, keys: Keys, *, processes: int, progress: Progress = silent
) -> UInt8[np.ndarray, "entities views y x 3"]:
    """All views, rendered by several processes; the same for any number of them."""
    tasks = [(folder, tuple(row)) for row in keys]

    def watched(rows):
        for done, row in enumerate(rows, 1):
            progress("views", done, len(tasks))
            yield row

    if processes == 1:
        return np.stack(list(watched(map(_rendered_row, tasks))))
    # Spawned, because a forked child would inherit JAX's threads in an unknown state.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as workers:
        return np.stack(list(watched(workers.map(_rendered_row, tasks, chunksize=4))))


def _rendered_row(task: tuple[Path, tuple[str, ...]]) -> UInt8[np.ndarray, "views y x 3"]:
    folder, keys = task
    images = _images_of_process(folder)
    return np.stack([images(key) for key in keys])


@lru_cache(maxsize=1)
def _images_of_process(folder: Path) -> FlagImages:
    """Each process opens its own; a view is rendered once, so none is kept."""
    return FlagImages(folder, cached=1)
