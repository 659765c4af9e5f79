"""MMAgent-R2 with TN-GSPO on the flags benchmark, from the shipped cold start.

    jaxagent train --config flags_mmagent_r2_tn_gspo --workdir work/flags_mmagent_r2_tn_gspo
    jaxagent sweep --config flags_mmagent_r2_tn_gspo --workdir work/sweep --results results.jsonl

A run ends with its first step after six minutes of training, the two evaluations apart. The figures
stand in the README's results table.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "mmagent_r2"
    c.algorithm.name = "tn_gspo"
    c.rl.steps = 28
    c.rl.minutes = 6.0
    c.data.questions = 600
    c.evaluation.splits = ("train", "unseen_question", "unseen_entity")
    c.evaluation.questions = 1800
    c.evaluation.train_temperature = 1.0
    return c


def sweep():
    """Three seeds."""
    for seed in range(3):
        yield {"name": f"tn_gspo-{seed}", "seed": seed}
