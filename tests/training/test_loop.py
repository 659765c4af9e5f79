"""Stopping and going on: an interrupted run ends where an uninterrupted one does, bit for bit."""

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxagent.rollout.loop import Rollout
from jaxagent.scoring.rewards import RewardError
from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from jaxagent.training.loop import Run, Stepped, run, updated
from jaxagent.training.rl import RLConfig, train_rl
from jaxagent.training.sft import SFTConfig, TraceError, shuffled, train_sft
from jaxagent.training.step import NonFiniteGradient
from jaxagent.trees import flat
from jaxagent.types import Dialogue, Question, Score, Trajectory
from tests.training.dialogues import PARAMS, SHAPE, batches, frozen, question, samples, update

FEATURES = frozen(PARAMS)
QUESTIONS = [question(f"q{i}") for i in range(5)]
SFT = SFTConfig(batch=3, verdict_weight=1.0, look_steps=0, look_batches=0, seed=0)
CONFIG = RLConfig(questions=3, samples=2, epochs=2, minibatches=2, seed=7)


def trajectory(question: Question, sample: int, seed) -> Trajectory:
    rng = np.random.default_rng(seed)
    (one,) = samples(seed=int(rng.integers(1 << 30)), lengths=(int(rng.integers(9, 24)),))
    return Trajectory(
        dialogue=Dialogue(question=question, done=True, answer="a"),
        sample=sample,
        ids=one.ids,
        written=one.written,
        log_probs=one.log_probs,
        images=one.images,
        num_calls=one.calls,
    )


def sample_groups(params, questions, step):
    """Dialogues that depend on the parameters, as a policy's do, the question and the step."""
    trace = int(np.abs(np.asarray(params["text"]["norm"]["scale"])).sum() * 1e4)
    groups = [
        [trajectory(one, m, (trace, step, int(one.data_id[1:]), m)) for m in range(CONFIG.samples)]
        for one in questions
    ]
    return Rollout(trajectories=groups, metrics={"turns": 2.0})


def reward(trajectory: Trajectory) -> Score:
    value = float(trajectory.ids.sum() % 7)
    return Score(total=value, terms={"outcome": value})


def trained(folder, *, steps, stop_in=None, reward=reward, **fields):
    step = update()

    def watched(number, scored):
        if number == stop_in:
            os.kill(os.getpid(), signal.SIGTERM)

    return train_rl(
        step.learner(PARAMS),
        update=step,
        questions=QUESTIONS,
        sample_groups=sample_groups,
        reward=reward,
        pictures=lambda params: FEATURES,
        ladder=[SHAPE],
        config=CONFIG,
        to=Run(name="rl", folder=folder, steps=steps, save_every=2, **fields),
        watch=watched,
    )


def rows(folder, name="rl") -> list[Mapping]:
    """Scalars of the run, times and counters of the machine left out."""
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in found]


def assert_same(found, wanted):
    found = flat(found._asdict())
    for name, leaf in flat(wanted._asdict()).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def test_a_run_stopped_and_resumed_equals_an_uninterrupted_one(tmp_path):
    whole = trained(tmp_path / "whole", steps=5)
    stopped = trained(tmp_path / "parts", steps=5, stop_in=2)
    assert (stopped.steps, stopped.reason) == (3, "SIGTERM")
    resumed = trained(tmp_path / "parts", steps=5)
    assert (resumed.steps, resumed.reason) == (5, "done")
    assert_same(resumed.learner, whole.learner)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert int(resumed.learner.step) == 5 * CONFIG.epochs * CONFIG.minibatches


def test_a_stop_in_the_last_step_is_one_too(tmp_path):
    stopped = trained(tmp_path, steps=2, stop_in=1)
    assert (stopped.steps, stopped.reason) == (2, "SIGTERM")
    assert trained(tmp_path, steps=2).reason == "done"


def test_a_torn_checkpoint_is_passed_over_and_its_steps_are_done_again(tmp_path, caplog):
    whole = trained(tmp_path, steps=4)
    newest = tmp_path / "checkpoints" / "rl" / "4" / "learner"
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    again = trained(tmp_path, steps=4)
    assert "Checkpoint 4" in caplog.text
    assert "cannot be read" in caplog.text
    assert again.steps == 4
    assert_same(again.learner, whole.learner)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_where_no_checkpoint_can_be_read_nothing_is_trained_over_them(tmp_path):
    trained(tmp_path, steps=2)
    for path in (tmp_path / "checkpoints" / "rl").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    before = rows(tmp_path)
    with pytest.raises(
        CheckpointError, match="No checkpoint in .* can be read .*Delete that folder"
    ):
        trained(tmp_path, steps=2)
    assert rows(tmp_path) == before


def test_a_finished_run_is_not_run_again(tmp_path):
    first = trained(tmp_path, steps=2)
    again = trained(tmp_path, steps=2)
    assert_same(again.learner, first.learner)
    assert len(rows(tmp_path)) == 2


def test_what_begins_a_run_counts_in_no_step_and_is_left_out_when_none_is_left(tmp_path):
    begun = []

    def begin(first):
        time.sleep(0.5)
        begun.append(first)

    def step(learner, number):
        return Stepped(learner, {})

    for steps in (1, 1, 2):
        learner = update().learner(PARAMS)
        run(learner, step, Run(name="rl", folder=tmp_path, steps=steps), begin=begin)
    assert begun == [0, 1]
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["time/rl"] < 0.5 for line in lines] == [True, True]


def test_the_time_limit_ends_a_run_and_is_kept_over_resumes(tmp_path):
    first = trained(tmp_path, steps=50, seconds=1e-6)
    assert (first.steps, first.reason) == (1, "time limit of 0 s")
    assert trained(tmp_path, steps=50, seconds=1e-6).steps == 1


def test_checkpoints_beside_other_frozen_parameters_are_refused(tmp_path):
    learner = update().learner(PARAMS)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, learner, {"steps": 1})
    checkpoints.close()
    other = learner._replace(frozen=jax.tree.map(lambda leaf: leaf + 1, learner.frozen))
    with pytest.raises(CheckpointError, match="other frozen parameters"):
        Checkpoints(tmp_path).restore(other)


def test_a_reward_that_raises_names_the_sample(tmp_path):
    def raising(trajectory):
        if trajectory.sample == 1:
            raise KeyError("no answer")
        return reward(trajectory)

    with pytest.raises(RewardError, match=r"question q\d, sample 1"):
        trained(tmp_path, steps=1, reward=raising)


def test_a_gradient_that_is_not_finite_leaves_its_batch(tmp_path):
    step = update()
    bad = [replace(one, advantage=float("nan")) for one in samples()]
    with pytest.raises(NonFiniteGradient) as error:
        updated(step, step.learner(PARAMS), batches(step, bad, FEATURES), tmp_path)
    saved = np.load(tmp_path / "not_finite_0" / "batch_0.npz")
    assert np.isnan(saved["rows.targets.advantages"]).any()
    report = json.loads((tmp_path / "not_finite_0" / "step.json").read_text())
    assert report["step"] == 0
    assert "text/norm/scale" in report["parameters"]
    assert str(tmp_path / "not_finite_0") in error.value.__notes__[0]


def test_traces_are_learnt_and_a_pass_shows_each_once(tmp_path):
    traces = [trajectory(QUESTIONS[0], i, i) for i in range(7)]
    config = replace(SFT, verdict_weight=0.0, seed=1)
    source = shuffled(traces, config)
    shown = [trace.sample for step in (0, 1) for trace in source(step)]
    assert len(set(shown)) == 6
    assert [one.sample for one in source(2)] != [one.sample for one in source(0)]
    step = update("sft", verdict_ids=(11, 12))
    step = replace(step, optimizer=step.optimizer._replace(rate=lambda number: 10 + number))
    finished = train_sft(
        step.learner(PARAMS),
        update=step,
        traces=lambda number: traces[:6],
        pictures=lambda params: FEATURES,
        ladder=[SHAPE],
        config=config,
        to=Run(name="sft", folder=tmp_path, steps=4),
    )
    losses = [row["sft/loss"] for row in rows(tmp_path)]
    assert finished.steps == 4
    assert losses == sorted(losses, reverse=True)
    assert [row["sft/learning_rate"] for row in rows(tmp_path)] == [10, 11, 12, 13]


def test_the_first_updates_look_at_further_traces(tmp_path):
    traces = [trajectory(QUESTIONS[0], i, i) for i in range(2)]
    asked = {"traces": [], "looks": []}

    def source(name):
        return lambda number: asked[name].append(number) or traces

    step = update("sft", verdict_ids=(11, 12))
    train_sft(
        step.learner(PARAMS),
        update=step,
        traces=source("traces"),
        looks=source("looks"),
        pictures=lambda params: FEATURES,
        ladder=[SHAPE],
        config=replace(SFT, batch=2, look_steps=2, look_batches=2),
        to=Run(name="sft", folder=tmp_path, steps=4),
    )
    # The first ones before the clock of the steps starts.
    assert asked == {"traces": [0, 0, 1, 2, 3], "looks": [0, 1, 0, 1, 2, 3]}
    targets = [row["sft/targets"] for row in rows(tmp_path)]
    assert targets == [3 * targets[3]] * 2 + [targets[3]] * 2


def test_too_few_traces_for_a_batch_are_refused():
    with pytest.raises(TraceError, match="2 traces do not fill one batch of 3"):
        shuffled([trajectory(QUESTIONS[0], 0, i) for i in range(2)], SFT)
