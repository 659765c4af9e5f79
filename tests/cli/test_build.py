"""What a config makes of a benchmark: the questions that are trained on."""

from functools import partial
from types import SimpleNamespace

import pytest

from jaxagent.cli import build
from jaxagent.cli.agent import Agent
from jaxagent.cli.configs import read_config
from jaxagent.cli.errors import UserError
from tests.retrieval.test_search import base, question  # noqa: F401 (`base` is a fixture)

ASKED = [
    question(("q:14",), ("ash",)),
    question(("q:14",), ("elm",)),
    question(("q:14", "q:85"), ("ash", "fir")),
    question(("q:85", "q:14"), ("yew", "yew")),
]


def test_what_ships_is_taken_and_what_does_not_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "shipped_folder", tmp_path.joinpath)
    (tmp_path / "mmagent_r2").mkdir()
    for name, method in (("shipped", "promsa"), ("shipped/promsa", "mmagent_r2")):
        with pytest.raises(UserError, match="one does for mmagent_r2.*flags_promsa_cold_start"):
            build.policy_folder(name, method)
    (tmp_path / "promsa").mkdir()
    assert build.policy_folder("shipped", "promsa") == tmp_path / "promsa"
    assert build.shipped_methods() == ["mmagent_r2", "promsa"]


class Asked(build.World):
    """A world of a base and questions alone."""

    def __init__(self, searched, asked):
        object.__setattr__(self, "base", searched)
        object.__setattr__(self, "asked", list(asked))

    def questions(self, split, *, families):
        return self.asked


@pytest.fixture
def world(base):  # noqa: F811
    return Asked(base, ASKED)


def config(method: str, changes: dict | None = None, **pool: int):
    sizes = {f"method.mmagent_r2.{name}": value for name, value in pool.items()}
    return read_config("flags_mmagent_r2_grpo", {"method.name": method, **sizes, **(changes or {})})


@pytest.mark.parametrize(("batch_size", "rej_max", "kept"), [(2, 0, 2), (1, 2, 3), (4, 0, 4)])
def test_mmagent_trains_on_what_its_searches_can_bring(world, batch_size, rej_max, kept):
    found = build.training_questions(
        config("mmagent_r2", batch_size=batch_size, rej_max=rej_max), world
    )
    assert found == ASKED[:kept]


def test_the_search_for_what_can_be_brought_is_watched(world):
    heard = []
    build.training_questions(
        config("mmagent_r2", batch_size=4), world, lambda *words: heard.append(words)
    )
    assert heard == [("Questions within reach", len(ASKED), len(ASKED))]


def test_an_evaluation_asks_the_training_questions_that_are_trained_on(world):
    settings = config("mmagent_r2", batch_size=1, rej_max=2)
    trained = partial(build.training_questions, settings, world)
    agent = SimpleNamespace(config=settings, world=world, training_questions=trained)
    assert Agent.questions_of(agent, "train") == ASKED[:3]
    assert Agent.questions_of(agent, "unseen_entity") == ASKED


def test_runs_of_other_seeds_train_on_the_same_questions(world):
    def drawn(seed: int, of_benchmark: int):
        benchmark = SimpleNamespace(config=SimpleNamespace(seed=of_benchmark))
        object.__setattr__(world, "benchmark", benchmark)
        return build.training_questions(
            config("promsa", {"seed": seed, "data.questions": 2}), world
        )

    assert len(drawn(0, 0)) == 2
    assert drawn(0, 0) == drawn(1, 0)
    assert any(drawn(0, 0) != drawn(0, other) for other in range(1, 9))


def test_promsa_trains_on_all(world):
    assert build.training_questions(config("promsa"), world) == ASKED


def test_a_method_that_can_reach_no_question_is_refused(world):
    with pytest.raises(UserError, match="none of 1 training questions"):
        build.training_questions(
            config("mmagent_r2", batch_size=1, rej_max=0), Asked(world.base, ASKED[3:])
        )
