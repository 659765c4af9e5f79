"""ProMSA with GRPO on the flags benchmark, from the shipped cold start.

    jaxagent train --config flags_promsa_grpo --workdir work/flags_promsa_grpo

Training ends with its first step after six minutes.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "promsa"
    c.algorithm.name = "grpo"
    c.rl.steps = 40
    c.rl.minutes = 6.0
    c.evaluation.splits = ("train", "unseen_question", "unseen_entity")
    c.evaluation.questions = 600
    c.evaluation.train_temperature = 1.0
    return c


def sweep():
    """Three seeds."""
    for seed in range(3):
        yield {"name": f"promsa-grpo-{seed}", "seed": seed}
