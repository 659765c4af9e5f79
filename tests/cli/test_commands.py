"""The commands that the README names, run for real on a benchmark of sixteen countries."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxagent.cli import build, cold_start, learning
from jaxagent.cli.cold_start import glances, lessons
from jaxagent.cli.configs import config_flags, read_config, save_config
from jaxagent.cli.errors import UserError
from jaxagent.cli.main import main
from jaxagent.cli.work import WorkFolder
from jaxagent.data.benchmark import benchmark_texts
from jaxagent.data.drawings import Drawings
from jaxagent.data.tiny_policy import PolicySizes, make_policy_folder
from jaxagent.json_lines import write_lines
from jaxagent.models.conv_encoder import ConvEncoderConfig, Model
from jaxagent.processing.policy import load_policy
from jaxagent.retrieval.image_encoder import save_image_encoder
from jaxagent.services.summariser import summarise_by_extraction
from jaxagent.sharding import ShardingError
from jaxagent.training import sft
from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from jaxagent.training.loop import Finished
from jaxagent.training.step import Learner, NonFiniteGradient, Update
from jaxagent.types import silent

EXPERIMENT = "flags_mmagent_r2_grpo"
COUNTRIES = "td,ro,fr,it,de,be,ie,ci,ml,gn,pe,at,lv,pl,id,ng"
SMALL = [
    f"--config.data.flags.countries={COUNTRIES}",
    "--config.data.flags.val_entities=3",
    "--config.data.flags.test_entities=4",
    "--config.data.flags.views=4",
    "--config.retrieval.text_encoder=lexical",
    "--config.retrieval.measured=5",
]
QUICK = [
    "--config.evaluation.questions=4",
    "--config.method.mmagent_r2.max_turns=2",
    "--config.method.mmagent_r2.max_tokens=8",
    "--config.rollout.context=512",
    "--config.rollout.slots=8",
    "--config.rollout.rows=(8,)",
    "--config.rollout.image_rows=(8,)",
    "--config.packing.row_lengths=(512,)",
    "--config.packing.call_tokens=1024",
    "--config.packing.chunk=128",
    "--config.rl.questions=2",
    "--config.rl.samples=2",
]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A work folder with a built base, and beside it an encoder and a policy of random weights."""
    folder = tmp_path_factory.mktemp("work")
    encoder = Model(ConvEncoderConfig())
    card = {"name": "random"}
    save_image_encoder(folder / "encoder", encoder, encoder.init(jax.random.key(0)), card)
    assert main(["kb", "build", "--workdir", str(folder), *base_flags(folder)]) == 0
    sizes = PolicySizes(vocab=640, width=32, layers=3, heads=2, kv_heads=1, head_size=16)
    make_policy_folder(folder / "policy", benchmark_texts(folder / "kb"), sizes=sizes, seed=0)
    return folder


def base_flags(work: Path) -> list[str]:
    return [*SMALL, f"--config.retrieval.image_encoder={work / 'encoder'}"]


def agent_flags(work: Path) -> list[str]:
    places = [f"--config.data.folder={work / 'kb'}", f"--config.model.folder={work / 'policy'}"]
    return ["--config", EXPERIMENT, *places, *base_flags(work), *QUICK]


def run(capsys, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def refused(capsys, *words: str) -> str:
    """The message, when the command ends with exactly one and status 2."""
    status, _, err = run(capsys, *words)
    assert status == 2
    (message,) = err.split("jaxagent: ")[1:]
    return message


def test_kb_tells_what_it_holds_and_how_hard_it_is(capsys, work):
    status, out, _ = run(capsys, "kb", "info", "--workdir", str(work))
    assert status == 0
    assert "entities" in out
    assert "unseen_entity: the image search finds the entity in" in out
    assert run(capsys, "kb", "build", "--workdir", str(work), *base_flags(work))[1] == out


def test_kb_info_of_nothing_says_how_to_build(capsys, tmp_path):
    assert "kb build" in refused(capsys, "kb", "info", "--workdir", str(tmp_path))


def test_kb_info_of_a_torn_record_of_recall_says_how_to_write_it_again(capsys, work, tmp_path):
    shutil.copytree(work / "kb", tmp_path / "kb")
    (tmp_path / "kb" / "recall.json").write_text('{"unseen_ent')
    message = refused(capsys, "kb", "info", "--workdir", str(tmp_path))
    assert "recall.json is broken" in message
    assert "`jaxagent kb build` writes it again" in message


def test_a_base_of_another_config_is_refused(capsys, work):
    flags = [*base_flags(work), "--config.data.flags.views=5"]
    assert "views" in refused(capsys, "kb", "build", "--workdir", str(work), *flags)


def test_a_folder_with_foreign_files_is_left_alone(capsys, work, tmp_path):
    (tmp_path / "kb" / "base").mkdir(parents=True)
    (tmp_path / "kb" / "base" / "letter.txt").write_text("mine")
    refused(capsys, "kb", "build", "--workdir", str(tmp_path), *base_flags(work))
    assert (tmp_path / "kb" / "base" / "letter.txt").read_text() == "mine"


def test_an_unreadable_drawing_is_listed_and_not_replaced(capsys, work, tmp_path):
    shutil.copytree(work / "kb", tmp_path / "kb")
    shutil.rmtree(tmp_path / "kb" / "base")
    (drawing,) = (tmp_path / "kb" / "drawings" / "openmoji").glob("td*")
    drawing.write_bytes(b"no picture")
    status, out, _ = run(capsys, "kb", "build", "--workdir", str(tmp_path), *base_flags(work))
    assert status == 0
    assert "Unreadable images of the base, not replaced: kb:td" in out
    assert drawing.read_bytes() == b"no picture"


def test_a_missing_policy_folder_is_refused(capsys, work, tmp_path):
    flags = [*agent_flags(work), "--config.model.folder=/no/such/policy"]
    message = refused(capsys, "evaluate", "--workdir", str(tmp_path / "w"), *flags)
    assert "no policy folder /no/such/policy" in message


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model.vision=forzen", "Did you mean 'frozen'?"),
        ("model.saved_dtype=float16", "config.model.saved_dtype is 'float16'. Did you mean"),
        ("model.folder=shipped/prosma", "Did you mean 'promsa'?"),
        ("evaluation.when=befor", "Did you mean 'before'?"),
        ("evaluation.splits=unseen_entities", "Did you mean 'unseen_entity'?"),
        ("evaluation.samples=0", "config.evaluation.samples is 0; it must be at least 1"),
        ("evaluation.temperature=-1", "temperature is -1.0"),
        ("method.name=prosma", "config.method.name is 'prosma'. Did you mean 'promsa'?"),
        ("algorithm.name=grop", "Did you mean 'grpo'?"),
        ("algorithm.name=sft", "config.algorithm.name is 'sft', which learns from no reward"),
        ("algorithm.old=tariner", "Did you mean 'trainer'?"),
        ("algorithm.clip=low,high", "config.algorithm.clip is ('low', 'high')"),
        ("algorithm.clip=(0.1,)", "it is (low, high) or ()"),
        ("data.families=singel", "Did you mean 'single'?"),
        ("sft.batch=0", "config.sft.batch is 0; it must be at least 1"),
        ("seed=-1", "config.seed is -1; it must be at least 0"),
        ("checkpoint.every=0", "config.checkpoint.every is 0"),
        ("packing.chunk=0", "config.packing.chunk is 0"),
        ("packing.row_lengths=(320,)", "ends at 320 tokens, but a dialogue may hold 768"),
        ("packing.image_tokens=64", "is 64 tokens, but a dialogue may hold 768"),
        ("data.flags.query=tweemoji", "data.flags.query is 'tweemoji', no artist of flags. Did"),
        ("data.flags.base=twemoji", "data.flags.base and query are both 'twemoji'"),
        ("retrieval.text_encoder=minilmm", "text_encoder is 'minilmm'. Did you mean 'minilm'?"),
        ("retrieval.text_encoder=bm25", "Allowed: lexical, minilm."),
        ("warm_start.levels=L9", "warm_start.levels holds 'L9'. Allowed: L0, L1, L2, L3"),
        ("warm_start.views=0", "warm_start.views is 0; it must be 1 to 1000"),
        ("image_encoder.measured_views=0", "image_encoder.measured_views is 0"),
        ("rl.minutes=-1", "config.rl.minutes is -1.0; it must be at least 0"),
        ("rollout.sampling.top_k=5", "the update scores whole distributions"),
        ("model.sizes.width=0", "config.model.sizes.width is 0; it must be at least 1"),
        ("model.sizes.heads=3", "model.sizes has 3 heads and 2 key heads"),
        ("model.sizes.rope_theta=0", "model.sizes.rope_theta is 0.0; it must be above 0"),
        ("data.flags.seed=-1", "data.flags.seed is -1"),
        ("retrieval.image_index.leaves=-3", "leaves is -3; it must be at least 0"),
        ("retrieval.text_index.reorder=-1", "reorder is -1; it must be at least 0"),
        ("retrieval.text_index.training_threads=0", "is 0; it must be at least 1"),
        ("rollout.tool_retries=-1", "rollout.tool_retries is -1; it must be at least 0"),
        ("rollout.tool_seconds=0", "rollout.tool_seconds is 0.0; it must be above 0"),
        ("rollout.max_failure_rate=1.5", "rollout.max_failure_rate is 1.5; it must be from 0"),
        ("rollout.feature_bytes=-1", "rollout.feature_bytes is -1"),
        ("algorithm.clip=(-1.0,-3.0)", "algorithm.clip is (-1.0, -3.0); both must be at least 0"),
        ("optimizer.beta1=1", "optimizer.beta1 is 1.0; it must be from 0 up to below 1"),
        ("optimizer.beta2=-0.1", "optimizer.beta2 is -0.1"),
        ("optimizer.epsilon=0", "optimizer.epsilon is 0.0; it must be above 0"),
        ("optimizer.clip_norm=0", "optimizer.clip_norm is 0.0; it must be above 0"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1.0; it must be at least 0"),
        ("image_encoder.learning_rate=-1", "image_encoder.learning_rate is -1.0"),
        ("image_encoder.temperature=0", "image_encoder.temperature is 0.0; it must be above 0"),
        ("packing.call_tokens=0", "packing.call_tokens is 0; it must be at least 1"),
        ("packing.row_lengths=(1,)", "packing.row_lengths is (1,); it must hold ascending"),
        ("warm_start.learning_rate=-1", "warm_start.learning_rate is -1.0"),
        ("warm_start.query_share=1.5", "warm_start.query_share is 1.5; it must be from 0 to 1"),
        ("warm_start.twisted=-0.5", "warm_start.twisted is -0.5"),
        ("sft.fiction=1.5", "sft.fiction is 1.5; it must be from 0 to 1"),
        ("sft.reworded=-1", "sft.reworded is -1.0"),
        ("sft.single=2", "sft.single is 2.0"),
        ("sft.max_tokens=0", "config.sft.max_tokens is 0; it must be at least 1"),
        ("sft.verdict_weight=-1", "config.sft.verdict_weight is -1.0; it must be at least 0"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_built_or_written(capsys, tmp_path, flag, said):
    words = ["train", "--config", EXPERIMENT, "--workdir", str(tmp_path), f"--config.{flag}"]
    assert said in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_that_does_not_fit_is_refused_before_anything_runs(capsys, work, tmp_path):
    flags = [*agent_flags(work), "--config.sharding.fsdp=3"]
    message = refused(capsys, "train", "--workdir", str(tmp_path / "w"), *flags)
    assert "fsdp=3" in message


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("model.sizes.vocab=100", "vocab=100 is too small"),
        ("model.sizes.head_size=15", "head_dim=15 is odd"),
        ("model.sizes.vision_heads=3", "not a multiple of 4 x num_heads=3"),
        ("model.sizes.positions=15", "num_position_embeddings=15 is not a square"),
        ("warm_start.batch=200", "warm_start.batch is 200, but the base has"),
    ],
)
def test_a_new_policy_that_cannot_be_made_is_the_users_to_mend(capsys, work, tmp_path, flag, said):
    flags = [*agent_flags(work), "--config.model.folder=new", "--config.warm_start.steps=1"]
    flags += ["--config.model.sizes.vocab=640", f"--config.{flag}"]
    assert said in refused(capsys, "train", "--workdir", str(tmp_path), *flags)


def test_a_warm_start_leaves_out_what_the_base_could_not_read(work, tmp_path, monkeypatch):
    """A drawing that was spoilt after the benchmark was made, and before the base was."""
    shutil.copytree(work / "kb", tmp_path / "kb")
    shutil.rmtree(tmp_path / "kb" / "base")
    (tmp_path / "kb" / "drawings" / "openmoji" / "td.png").write_bytes(b"no picture")

    def pairs(names, *rest):
        raise ValueError(f"drawn from {' '.join(names)}")

    monkeypatch.setattr(cold_start, "warm_start_pairs", pairs)
    flags = ["model.folder=new", "warm_start.steps=1", "model.sizes.vocab=640"]
    flags = [*base_flags(work), *(f"--config.{one}" for one in flags)]
    config, folder = read_config(EXPERIMENT, config_flags(flags)), WorkFolder(tmp_path)
    world = build.open_world(config, folder, silent)
    with pytest.raises(UserError) as caught:
        cold_start.new_policy(config, world, folder, silent)
    there = {one["id"] for one in entities(work) if one["split"]}
    assert set(str(caught.value).split()[2:]) == there - {"td"}


@pytest.mark.parametrize(
    "words", [["evaluate"], ["train", "--config.evaluation.when=()"], ["kb", "build"]]
)
def test_a_drawing_that_was_spoilt_since_the_build_is_named(capsys, work, tmp_path, words):
    shutil.copytree(work / "kb", tmp_path / "kb")
    drawings = {str(one) for one in (tmp_path / "kb" / "drawings" / "twemoji").glob("*.png")}
    for drawing in map(Path, drawings):
        drawing.write_bytes(drawing.read_bytes()[:100])  # of which Pillow's error names no file
    command = [word for word in words if not word.startswith("--")]
    flags = [*agent_flags(work), *words[len(command) :]]
    flags += [f"--config.data.folder={tmp_path / 'kb'}"]
    message = refused(capsys, *command, "--workdir", str(tmp_path / "w"), *flags)
    assert message.removeprefix("The drawing ").partition(" cannot be read")[0] in drawings
    assert f"Delete {tmp_path / 'kb'}; the same command builds it again" in message


@pytest.mark.parametrize(
    "words", [["evaluate"], ["train"], ["train", "--config.evaluation.when=()"]]
)
def test_a_prompt_that_does_not_fit_is_the_users_to_mend(capsys, work, tmp_path, words):
    command, *more = words
    flags = [*agent_flags(work), "--config.rollout.context=64", *more]
    message = refused(capsys, command, "--workdir", str(tmp_path), *flags)
    assert "leaves no room in rollout.context = 64. Raise it" in message


def test_a_torn_evaluation_before_training_is_named(capsys, work, tmp_path):
    config = read_config(EXPERIMENT, config_flags(agent_flags(work)[2:]))
    save_config(config, tmp_path / "config.json")
    torn = tmp_path / "evaluation" / "before.jsonl"
    torn.parent.mkdir()
    torn.write_text('{"id": "q0#0", "da')
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work))
    assert f"The last line of {torn} is torn. Delete the file" in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (Update, "learner", ShardingError("The rule table does not fit the parameters.")),
        (Checkpoints, "restore", CheckpointError("It was saved beside other frozen parameters.")),
        (Checkpoints, "restore", NonFiniteGradient(Learner(np.int32(3), {}, {}, ()), ["table"])),
    ],
)
def test_what_does_not_fit_a_training_is_the_users_to_mend(
    capsys, work, tmp_path, monkeypatch, kind, name, error, changes
):
    def fails(self, given):
        error.add_note("Its micro-batches are kept.")
        raise error

    monkeypatch.setattr(kind, name, fails)
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work), *flags)
    assert f"{error} Its micro-batches are kept." in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
def test_a_training_on_no_question_is_refused(capsys, work, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(build.World, "questions", lambda *_, **__: [])
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    message = refused(capsys, "train", "--workdir", str(tmp_path), *agent_flags(work), *flags)
    assert "no training question of config.data.families ('single'" in message


@pytest.mark.parametrize("changes", [["rl.steps=0", "sft.steps=1"], ["rl.steps=1"]])
def test_a_fault_of_the_program_in_a_training_keeps_its_traceback(
    work, tmp_path, monkeypatch, changes
):
    def fails(self, given):
        raise ValueError("zip() argument 2 is shorter than argument 1")

    monkeypatch.setattr(Checkpoints, "restore", fails)
    flags = [f"--config.{one}" for one in ("evaluation.when=()", *changes)]
    with pytest.raises(ValueError, match="zip"):
        main(["train", "--workdir", str(tmp_path), *agent_flags(work), *flags])


def test_glances_are_as_many_as_asked_for_and_end_after_the_first_choice(work, tmp_path):
    room = ["max_turns=8", "max_tokens=64"]
    flags = [*agent_flags(work)[2:], *(f"--config.method.mmagent_r2.{one}" for one in room)]
    flags += [
        "--config.sft.traces=24",
        "--config.sft.reworded=0",  # words that mean nothing are many tokens to so small a policy
        "--config.sft.max_tokens=768",
        "--config.rollout.context=768",
    ]
    config = read_config(EXPERIMENT, config_flags(flags))
    world = build.open_world(config, WorkFolder(tmp_path), silent)
    policy = build.policy(config).policy
    seen = list(glances(config, world, policy, silent, count=21))
    assert len(seen) == 21
    assert all(len(trace.dialogue.turns[1].found) == 5 for trace in seen)
    assert {len(trace.dialogue.turns) for trace in seen} == {5}
    whole = {trace.question.data_id for trace in lessons(config, world, policy, silent)}
    assert whole
    assert not whole & {trace.question.data_id for trace in seen}


def test_supervised_training_makes_traces_when_it_asks_for_them(
    capsys, work, tmp_path, monkeypatch
):
    """One that has finished asks for none: see `test_loop`."""
    asked, made = [], []

    def train_sft(learner, *, traces, to, **_):
        write_lines(to.folder / "logs" / "metrics.jsonl", [])
        for step in asked:
            traces(step)
        return Finished(learner, 1, "done")

    monkeypatch.setattr(learning, "train_sft", train_sft)
    monkeypatch.setattr(learning, "lessons", lambda *_: made.append("once") or [])
    flags = ["sft.steps=1", "rl.steps=0", "evaluation.when=()"]
    words = ["train", *agent_flags(work), *(f"--config.{one}" for one in flags), "--workdir"]
    assert run(capsys, *words, str(tmp_path / "finished"))[0] == 0
    assert made == []
    asked.append(0)
    assert "0 traces do not fill" in refused(capsys, *words, str(tmp_path / "begun"))
    assert made == ["once"]


@pytest.mark.slow
def test_no_training_sees_the_query_drawing_of_an_entity_it_is_not_asked_about(
    capsys, work, tmp_path, monkeypatch
):
    """Warm start, traces, SFT and RL of a new policy, by the drawings that are read for them."""
    seen = set()
    read = Drawings.read
    monkeypatch.setattr(
        Drawings,
        "read",
        lambda self, artist, entity: seen.add((artist, entity)) or read(self, artist, entity),
    )
    flags = [flag for flag in agent_flags(work) if "model.folder" not in flag]
    new = ["model.folder=new", "evaluation.when=()", "rl.steps=2", "sft.steps=2", "sft.batch=2"]
    new += [
        "sft.traces=40",
        "sft.single=0.5",
        "sft.reworded=0",
        "sft.look_steps=1",
        "sft.look_batches=1",
        "warm_start.steps=3",
        "warm_start.batch=8",
    ]
    new += ["method.mmagent_r2.max_turns=8", "method.mmagent_r2.max_tokens=64"]  # of the expert
    words = ["train", "--workdir", str(tmp_path), *flags, *(f"--config.{one}" for one in new)]
    status, _, err = run(capsys, *words)
    assert status == 0, err
    split = {one["id"]: one["split"] for one in entities(work)}
    assert {split[entity] for artist, entity in seen if artist == "twemoji"} == {"train"}
    assert {split[entity] for artist, entity in seen if artist == "openmoji"} > {"train"}


def entities(work: Path) -> list[dict]:
    return json.loads((work / "kb" / "benchmark.json").read_text())["entities"]


@pytest.mark.slow
def test_train_resumes_and_leaves_a_page_and_a_policy(capsys, work, tmp_path):
    words = ["train", "--workdir", str(tmp_path), *agent_flags(work)]
    words += ["--config.model.saved_dtype=bfloat16"]
    stopped = [*words, "--config.rl.steps=2", "--config.checkpoint.every=1"]
    status, out, _ = run(capsys, *stopped)
    assert status == 0
    assert out.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    steps = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").open()]
    assert [step["step"] for step in steps] == [1, 2]
    assert load_policy(tmp_path / "trained").params
    assert (tmp_path / "report.html").stat().st_size > 10_000
    again = run(capsys, *stopped)[1]
    assert again == out

    message = refused(capsys, *words, "--config.rl.steps=3")
    assert "rl.steps was 2" in message

    status, out, _ = run(capsys, "evaluate", "--workdir", str(tmp_path), "--name", "more")
    assert status == 0
    assert "unseen entity" in out
    rows = (tmp_path / "evaluation" / "more.jsonl").read_text()
    assert rows == (tmp_path / "evaluation" / "after.jsonl").read_text()
    page = tmp_path / "again.html"
    status, *_ = run(capsys, "report", "--workdir", str(tmp_path), "--output", str(page))
    assert status == 0
    assert page.read_text() == (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_from_its_last_checkpoint(work, tmp_path):
    words = [sys.executable, "-m", "jaxagent.cli.main", "train", "--workdir", str(tmp_path)]
    words += [*agent_flags(work), "--config.evaluation.when=()"]
    words += ["--config.rl.steps=12", "--config.checkpoint.every=1"]
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "checkpoints" / "rl" / "1").exists():
        assert killed.poll() is None, "the training ended by itself"
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "trained").exists()
    again = subprocess.run(words, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 13))
    assert load_policy(tmp_path / "trained").params


@pytest.mark.slow
def test_promsa_learns_from_traces_and_from_rewards(capsys, work, tmp_path, monkeypatch):
    """All that its expert is shown are summaries; a policy of random weights calls no tool."""
    summaries, traces = [], []

    def summarise(queries):
        found = summarise_by_extraction(queries)
        summaries.extend(found)
        return found

    def shuffled(found, config):
        traces.extend(found)
        return sft.shuffled(found, config)

    monkeypatch.setitem(build.SUMMARISERS, "extractive", summarise)
    monkeypatch.setattr(learning, "shuffled", shuffled)
    flags = ["method.name=promsa", "method.promsa.max_tokens=128", "rollout.context=768"]
    flags += ["packing.row_lengths=(768,)", "packing.call_tokens=1536", "rl.steps=1"]
    flags += ["sft.steps=1", "sft.batch=2", "sft.traces=16", "sft.max_tokens=768"]
    flags += ["sft.fiction=0", "sft.single=1", "method.promsa.max_turns=4", "evaluation.when=()"]
    words = ["--workdir", str(tmp_path), *agent_flags(work), *(f"--config.{one}" for one in flags)]
    status, _, err = run(capsys, "train", *words)
    assert status == 0, err
    turns = [turn for trace in traces for turn in trace.dialogue.turns if turn.found]
    assert turns
    assert {part for turn in turns for part in turn.parts} <= set(summaries)
    steps = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").open()]
    assert [{"sft/loss", "reward/cost"} & step.keys() for step in steps] == [
        {"sft/loss"},
        {"reward/cost"},
    ]
    assert load_policy(tmp_path / "trained").params
    status, *_ = run(capsys, "evaluate", "--workdir", str(tmp_path), "--name", "more")
    assert status == 0
    rows = [json.loads(line) for line in (tmp_path / "evaluation" / "more.jsonl").open()]
    assert [row["terms"].keys() for row in rows] == [{"outcome", "format", "cost"}] * 4


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_page_twice(capsys, work, tmp_path):
    """Rollouts, losses, evaluations, parameters and the report, all but the times."""
    folders = [tmp_path / place / "run" for place in ("one", "two")]
    for folder in folders:
        words = ["train", "--workdir", str(folder), *agent_flags(work), "--config.rl.steps=2"]
        assert run(capsys, *words)[0] == 0
    one, two = ({name: read(folder) for name, read in KEPT.items()} for folder in folders)
    assert [name for name in KEPT if one[name] != two[name]] == []
    words = ["train", "--workdir", str(tmp_path / "other"), *agent_flags(work), "--config.seed=1"]
    assert run(capsys, *words, "--config.rl.steps=2")[0] == 0
    assert losses(tmp_path / "other") != one["losses"]


def losses(folder: Path) -> list[dict]:
    """The scalars of every step, but for those of the clock and of what was compiled before."""
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").open()]
    varying = re.compile("^time/|second|compilations")
    return [{k: v for k, v in row.items() if not varying.search(k)} for row in rows]


KEPT = {
    "losses": losses,
    "before": lambda folder: (folder / "evaluation" / "before.jsonl").read_text(),
    "after": lambda folder: (folder / "evaluation" / "after.jsonl").read_text(),
    "policy": lambda folder: (folder / "trained" / "model.safetensors").read_bytes(),
    "report": lambda folder: (folder / "report.html").read_text(),
}


@pytest.mark.slow
def test_a_sweep_adds_one_line_a_run_and_skips_those_it_has(capsys, work, tmp_path):
    results = tmp_path / "results.jsonl"
    words = ["sweep", "--workdir", str(tmp_path), "--results", str(results), "--only", "grpo-0"]
    words += [*agent_flags(work), "--config.rl.steps=1"]
    assert run(capsys, *words)[0] == 0
    (line,) = [json.loads(line) for line in results.open()]
    assert (line["name"], line["seed"], line["steps"]) == ("grpo-0", 0, 1)
    assert "already" in run(capsys, *words)[1]
    assert len(results.read_text().splitlines()) == 1

    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    run(capsys, "report", "--results", str(results), "--readme", str(readme))
    assert "| grpo | 1 |" in readme.read_text()


def test_a_sweep_without_such_a_row_lists_the_rows(capsys, tmp_path):
    words = ["--workdir", str(tmp_path), "--results", str(tmp_path / "r"), "--only", "grop"]
    message = refused(capsys, "sweep", "--config", EXPERIMENT, *words)
    assert "grpo-0" in message
