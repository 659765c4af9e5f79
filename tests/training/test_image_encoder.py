"""Training of the retriever's image encoder: what it reads, and the card that it leaves."""

import json
import shutil

import numpy as np
import pytest

from jaxagent.data.benchmark import Benchmark, Entity
from jaxagent.data.config import FlagsConfig
from jaxagent.data.drawings import render_drawings
from jaxagent.data.views import FlagImages
from jaxagent.retrieval.encoders import open_image_encoder
from jaxagent.training.image_encoder import (
    ImageEncoderConfig,
    rendered,
    train_image_encoder,
    trained_encoder,
    training_keys,
)

COUNTRIES = ("td", "jp", "fr", "it", "np", "ch")
TINY = ImageEncoderConfig(
    steps=20,
    batch=6,
    views=4,
    levels=("L1", "L2"),
    widths=(8, 12),
    out_width=8,
    measured_views=1,
    processes=1,
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flags")
    config = FlagsConfig()
    render_drawings(folder, COUNTRIES, base=config.base, query=config.query)
    return Benchmark(
        folder=folder,
        config=config,
        entities=tuple(
            Entity(
                id=country,
                name=country,
                image=f"kb:{country}",
                split="unseen_entity" if country == "np" else "train",
            )
            for country in COUNTRIES
        ),
        passages=(),
        same_flag={},
        undrawn=(),
        unreadable=(),
        counts={},
    )


def test_training_reads_no_drawing_by_the_query_artist(drawn, tmp_path):
    copy = shutil.copytree(drawn.folder, tmp_path / "flags")
    shutil.rmtree(copy / "drawings" / drawn.config.query)
    blind = Benchmark(**{**vars(drawn), "folder": copy})
    with pytest.raises(FileNotFoundError):
        FlagImages(copy)(f"view:jp:{drawn.config.query}:L1:0")
    trained = trained_encoder(blind, TINY, seed=0)
    assert trained.num_entities == 6
    assert np.mean(trained.losses[-5:]) < np.mean(trained.losses[:5])
    keys = training_keys(["jp", "td"], drawn.config.base, TINY)
    assert keys[0] == [
        "view:jp:openmoji:L1:0",
        "view:jp:openmoji:L2:1",
        "view:jp:openmoji:L1:2",
        "view:jp:openmoji:L2:3",
    ]


def test_the_written_encoder_opens_and_its_card_says_what_made_it(drawn, tmp_path):
    card = train_image_encoder(drawn, tmp_path, TINY, seed=3, command="jaxagent train")
    assert json.loads((tmp_path / "card.json").read_text()) == {
        "sizes": {"size": 64, "patch": 4, "widths": [8, 12], "out_width": 8},
        **card,
    }
    assert (card["command"], card["seed"], card["steps"]) == ("jaxagent train", 3, 20)
    assert "6 drawings by openmoji" in card["trained_on"]
    cells = [(row["artist"], row["level"]) for row in card["recall"]]
    assert cells == [(a, f"L{n}") for a in ("openmoji", "twemoji") for n in range(4)]
    for row in card["recall"]:
        assert 0 <= row["all"]["R@1"] <= row["all"]["R@5"] <= row["all"]["R@15"] == 100
    assert card["recall"][0]["all"]["R@1"] == 100
    encoder = open_image_encoder(str(tmp_path))
    assert encoder([FlagImages(drawn.folder)("kb:jp")]).shape == (1, 8)


def test_the_same_seed_trains_the_same_encoder(drawn):
    first, second = (trained_encoder(drawn, TINY, seed=1) for _ in range(2))
    assert first.losses == second.losses
    assert first.losses != trained_encoder(drawn, TINY, seed=2).losses


def test_a_batch_larger_than_the_base_is_refused(drawn):
    with pytest.raises(ValueError, match="batch of 96 shows as many entities; the base has 6"):
        trained_encoder(drawn, ImageEncoderConfig(), seed=0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"levels": ("L9",)}, "image_encoder.levels holds 'L9'. Allowed: L0, L1, L2, L3"),
        ({"levels": ()}, r"image_encoder.levels is \(\); give at least one of L0"),
        ({"views": 0}, "image_encoder.views is 0; it must be at least 1"),
        ({"measured_views": 0}, "image_encoder.measured_views is 0; it must be at least 1"),
        ({"widths": ()}, r"image_encoder.widths is \(\)"),
    ],
)
def test_a_run_that_cannot_be_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        ImageEncoderConfig(**fields)


@pytest.mark.slow
def test_views_are_the_same_for_any_number_of_processes(drawn):
    keys = training_keys(COUNTRIES, drawn.config.base, TINY)
    one, two = (rendered(drawn.folder, keys, processes=number) for number in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == (6, 4, 64, 64, 3)
