"""MMAgent-R2 with GRPO on the flags benchmark, from the shipped cold start.

    jaxagent train --config flags_mmagent_r2_grpo --workdir work/flags_mmagent_r2_grpo
    jaxagent sweep --config flags_mmagent_r2_grpo --workdir work/sweep --results results.jsonl

A run ends with its first step after six minutes of training, the two evaluations apart. The figures
stand in the README's results table.
"""

from configs import base

MINUTES = 6.0


def get_config():
    c = base.get_config()
    c.method.name = "mmagent_r2"
    c.algorithm.name = "grpo"
    c.rl.steps = 28
    c.rl.minutes = MINUTES
    c.data.questions = 600
    c.evaluation.splits = ("train", "unseen_question", "unseen_entity")
    c.evaluation.questions = 1800
    c.evaluation.train_temperature = 1.0
    return c


def sweep():
    """Three seeds; the same with shuffled advantages; the same minutes of further SFT."""
    for seed in range(3):
        yield {"name": f"grpo-{seed}", "seed": seed}
    for seed in range(3):
        yield {"name": f"shuffled-{seed}", "seed": seed, "rl.shuffle": "advantages"}
    for seed in range(3):
        yield {
            "name": f"sft-{seed}",
            "seed": seed,
            "rl.steps": 0,
            "sft.steps": 1_000_000,
            "sft.minutes": MINUTES,
            "optimizer.learning_rate": 3e-4,  # constant; the cold start's fell from 2e-3 to 0
            "optimizer.warmup": 0.0,
        }
