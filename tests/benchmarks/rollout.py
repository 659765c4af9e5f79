"""How long a rollout takes: `python tests/benchmarks/rollout.py [--dialogues 128 --replicas 2]`.

A policy of the shipped sizes with random weights talks for five turns of 14 to 46 tokens (about 150
in all) over five candidate images, a confirmation, passages and a second look-up, eight samples a
question; its tools answer after `--latency` seconds. Prints one JSON line a repeat, the first with
compilation: seconds of wall and of CPU, tokens a second, the engine's own counts, and with
`--profile 1` the CPU seconds of each device call.
"""

import argparse
import json
import tempfile
import time
import zlib
from collections import Counter

import jax
import numpy as np

from jaxagent.agents.protocol import (
    Begin,
    Call,
    Found,
    Generate,
    ImageQuery,
    Method,
    Returned,
    Said,
    finished,
    with_turn,
)
from jaxagent.data.tiny_policy import PolicySizes, make_policy_folder
from jaxagent.processing.policy import load_policy
from jaxagent.rollout import features, slots
from jaxagent.rollout.config import RolloutConfig
from jaxagent.rollout.engine import Engine
from jaxagent.types import ImageRef, Question, Turn

TURNS = 5
PASSAGE = "Romania. Capital: Bucharest. The country lies in the south-east of Europe. "
CANDIDATES = tuple(
    part for at in range(5) for part in (f"{at + 1} ", ImageRef(f"kb:{at}"), " Chad ")
)
OBSERVATIONS = (CANDIDATES, ("Image 1 is Romania.",), (PASSAGE * 3,), CANDIDATES)


def advance(dialogue, event):
    """Turns whose lengths differ by dialogue and turn, as stop strings would make them."""
    num = sum(turn.author == "policy" for turn in dialogue.turns)
    match event:
        case Begin(question):
            parts = (ImageRef(question.images[0]), question.text)
        case Said(text=text):
            dialogue = with_turn(dialogue, Turn(author="policy", text=text))
            if num + 1 == TURNS:
                return finished(dialogue, text)
            query = ImageQuery(image=dialogue.question.images[0], top=5)
            return dialogue, (Call(tool="search", arguments=query),)
        case Returned():
            parts = OBSERVATIONS[num - 1]
    written = "".join(turn.text for turn in dialogue.turns)
    length = 14 + zlib.crc32(f"{dialogue.question.data_id} {written}".encode()) % 33
    return dialogue, (Generate(parts=parts, stops=("</answer>",), max_tokens=length),)


def images(key: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(key.encode())).integers(0, 256, (64, 64, 3), np.uint8)


def question(at: int) -> Question:
    return Question(
        data_id=f"q{at}",
        images=(f"view:{at}",),
        text="What is the capital of the country whose flag this is?",
        kind="String",
        family="single",
        answers=("Bucharest",),
        entities=("ro",),
        relation="capital",
    )


def timed(module, name: str, seconds: Counter) -> None:
    """Makes `module.name` wait for its result and add its time to `seconds`."""
    inner = getattr(module, name)

    def waiting(*args, **fields):
        started = time.process_time()
        out = jax.block_until_ready(inner(*args, **fields))
        seconds[name] += time.process_time() - started
        return out

    setattr(module, name, waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in dict(
        dialogues=128, slots=128, replicas=1, steps=8, repeats=3, profile=0, latency=0.0
    ).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    flags = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", flags.replicas)

    def search(calls):
        time.sleep(flags.latency)
        return [Found() for _ in calls]

    method = Method(
        name="five turns",
        system="Search, verify, answer.",
        advance=advance,
        tools=frozenset({"search"}),
        num_calls=lambda dialogue: TURNS - 1,
    )
    config = RolloutConfig(slots=flags.slots, replicas=flags.replicas, decode_steps=(flags.steps,))
    seconds: Counter = Counter()
    if flags.profile:
        for name in ("appended", "copied", "decoded"):
            timed(slots, name, seconds)
        timed(features, "encoded", seconds)
    with tempfile.TemporaryDirectory() as folder:
        make_policy_folder(folder, [PASSAGE, question(0).text], sizes=PolicySizes(), seed=0)
        policy, params = load_policy(folder)
        engine = Engine(policy, method, {"search": search}, images, config)
        questions = [question(at) for at in range(flags.dialogues // 8)]
        for step in range(flags.repeats):
            seconds.clear()
            started = time.process_time()
            rollout = engine.run(params, questions, samples=8, seed=0, step=step, version=0)
            row = rollout.metrics | {"cpu_seconds": time.process_time() - started} | seconds
            print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
