"""ProMSA with TN-GSPO, its own optimiser, on the flags benchmark, from the shipped cold start.

    jaxagent train --config flags_promsa_tn_gspo --workdir work/flags_promsa_tn_gspo

Training ends with its first step after six minutes.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "promsa"
    c.algorithm.name = "tn_gspo"
    c.rl.steps = 40
    c.rl.minutes = 6.0
    c.evaluation.splits = ("train", "unseen_question", "unseen_entity")
    c.evaluation.questions = 600
    c.evaluation.train_temperature = 1.0
    return c


def sweep():
    """Three seeds."""
    for seed in range(3):
        yield {"name": f"promsa-tn_gspo-{seed}", "seed": seed}
