"""How long one update takes: `python tests/benchmarks/update.py [--rows 16 --tokens 512 ...]`.

Random dialogues (lengths spread around `--mean`), one query image and five candidates each, 35 %
of the tokens written. Prints one JSON line: seconds an update, tokens a second, padding, and the
rate of the model's own arithmetic (6 x parameters x tokens, recomputation not counted).
"""

import argparse
import json
import time
from functools import partial

import jax
import numpy as np

from jaxagent.algorithms.aggregations import counts
from jaxagent.algorithms.table import ALGORITHMS
from jaxagent.models.config import TextConfig
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.models.qwen3_vl import Qwen3VisionConfig
from jaxagent.rollout.features import Features
from jaxagent.sharding import MeshSizes, make_mesh, policy_rules
from jaxagent.training.batch import Shape, fitting_shape, micro_batch, packed
from jaxagent.training.optimizer import OptimizerConfig, make_optimizer
from jaxagent.training.pictures import feature_pictures
from jaxagent.training.samples import Sample
from jaxagent.training.step import StepConfig, Update
from jaxagent.trees import num_parameters
from jaxagent.types import ImageSpan

GRID, TOKENS_PER_IMAGE = (1, 4, 4), 4


def config(layers: int = 4) -> PolicyConfig:
    text = TextConfig(
        vocab=2048,
        width=128,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_size=32,
        mlp_width=384,
        norm_epsilon=1e-6,
        rope_theta=1e6,
        rope_sections=(8, 4, 4),
        rope_interleaved=True,
        qk_norm=True,
        qkv_bias=False,
        out_bias=False,
        tied=True,
        deepstack=2,
    )
    vision = Qwen3VisionConfig(
        width=128,
        layers=3,
        heads=4,
        mlp_width=512,
        out_width=128,
        channels=3,
        patch=16,
        temporal_patch=2,
        merge=2,
        positions=64,
        deepstack=(0, 1),
    )
    return PolicyConfig(family="qwen3_vl", text=text, vision=vision, image_token=2040)


def dialogues(num: int, mean: int, rng: np.random.Generator) -> list[Sample]:
    """Random samples in groups of 8."""
    samples = []
    for i in range(num):
        length = int(np.clip(rng.normal(mean, mean / 4), 80, 2 * mean))
        keys = [f"q{i // 8}", *(f"c{i // 8}:{j}" for j in range(5))]
        starts = [8, *(50 + 6 * j for j in range(5))]
        written = rng.random(length) < 0.35
        written[:80] = False
        samples.append(
            Sample(
                ids=rng.integers(0, 2000, length).astype(np.int32),
                written=written,
                log_probs=np.full(length, -7.6, np.float32),
                images=tuple(
                    ImageSpan(key=key, start=start, grid=GRID)
                    for key, start in zip(keys, starts, strict=True)
                ),
                calls=2,
                group=i // 8,
                advantage=float(rng.normal()),
            )
        )
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in dict(
        dialogues=128, mean=250, rows=16, tokens=512, targets=256, repeats=3, remat=0, layers=4
    ).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    flags = parser.parse_args()
    model = Model(config(flags.layers), remat=bool(flags.remat))
    update = Update(
        model=model,
        algorithm=ALGORITHMS["grpo"],
        optimizer=make_optimizer(OptimizerConfig(), 100),
        mesh=make_mesh(MeshSizes(), jax.devices()[:1]),
        rules=policy_rules(tied=True, qkv_bias=False),
        config=StepConfig(),
    )
    learner = update.learner(model.init(jax.random.key(0)))
    samples = dialogues(flags.dialogues, flags.mean, np.random.default_rng(0))
    ladder = [
        Shape(
            rows=flags.rows, tokens=flags.tokens, targets=flags.targets, samples=8, image_tokens=256
        )
    ]
    rng = np.random.default_rng(1)

    def features(keys):
        return {
            key: Features(
                rng.normal(size=(4, 128)).astype(np.float32),
                rng.normal(size=(2, 4, 128)).astype(np.float32),
            )
            for key in keys
        }

    source = partial(feature_pictures, model, features)
    weights = ALGORITHMS["grpo"].aggregation(
        counts(np.array([s.num_targets for s in samples]), np.array([s.group for s in samples]))
    )

    def batches():
        shape = fitting_shape(ladder, samples, merge=2)
        return [
            micro_batch(
                samples, rows, shape, weights=weights, verdict_weight=0.0, pictures=source, merge=2
            )
            for rows in packed(samples, shape, merge=2)
        ]

    start = time.perf_counter()
    made = batches()
    first_batch = time.perf_counter() - start
    start = time.perf_counter()
    made = batches()
    pack = time.perf_counter() - start
    start = time.perf_counter()
    learner, metrics = update.run(learner, made)
    compiling = time.perf_counter() - start
    seconds, cpu = [], []
    for _ in range(flags.repeats):
        start, busy = time.perf_counter(), time.process_time()
        learner, metrics = update.run(learner, made)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    best, trained = min(seconds), num_parameters(learner.params)
    print(
        json.dumps(
            {
                "update_seconds": [round(s, 3) for s in seconds],
                "cpu_seconds": [round(s, 3) for s in cpu],
                "tokens_per_second": round(metrics["tokens"] / best),
                "padding": round(metrics["padding"], 3),
                "gflops": round(6 * trained * metrics["tokens"] / best / 1e9, 1),
                "micro_batches": len(made),
                "first_update_seconds": round(compiling, 1),
                "packing_seconds": [round(first_batch, 3), round(pack, 3)],
                "loss": metrics["loss"],
            }
        )
    )


if __name__ == "__main__":
    main()
