"""What an agent asks in an evaluation, and how."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from jaxagent.cli import agent
from jaxagent.cli.agent import Agent
from jaxagent.cli.configs import read_config
from jaxagent.cli.errors import UserError
from jaxagent.rollout.loop import PromptError
from jaxagent.rollout.slots import NonFiniteLogits
from jaxagent.rollout.tools import ToolFailure
from jaxagent.types import silent
from tests.training.dialogues import question


@pytest.mark.parametrize(
    ("train_temperature", "rows"),
    [
        (1.0, [{"train": 1.0}, {"unseen_entity": 0.0}]),
        (0.0, [{"unseen_entity": 0.0}, {"train": 0.0}]),
    ],
)
def test_training_questions_are_asked_at_their_own_temperature(
    monkeypatch, train_temperature, rows
):
    def evaluated(questions, *, sample, **rest):
        return [{one.split: sample} for one in questions]

    monkeypatch.setattr(agent, "evaluated", evaluated)
    config = read_config(
        "flags_mmagent_r2_grpo", {"evaluation.train_temperature": train_temperature}
    )
    asked = [replace(question(split), split=split) for split in ("unseen_entity", "train")]
    one = SimpleNamespace(
        config=config,
        world=SimpleNamespace(base=None),
        reward=None,
        questions_asked=lambda: asked,
        temperature=lambda question: Agent.temperature(one, question),
        sampler=lambda params, temperature: temperature,
    )
    assert Agent.evaluate(one, {}, progress=silent) == rows


@pytest.mark.parametrize("kind", [PromptError, ToolFailure, NonFiniteLogits])
def test_what_a_rollout_cannot_go_on_with_is_the_users_to_mend(kind):
    def run(params, questions, **rest):
        raise kind("Mend it.")

    one = SimpleNamespace(
        config=read_config("flags_mmagent_r2_grpo", {}),
        world=SimpleNamespace(benchmark=SimpleNamespace(config=SimpleNamespace(seed=0))),
        engine=lambda sampling: SimpleNamespace(run=run, placed=lambda params: params),
    )
    with pytest.raises(UserError, match="Mend it"):
        Agent.sampler(one, {}, 0.0)([question("train")])
