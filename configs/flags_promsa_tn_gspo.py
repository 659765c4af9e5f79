"""ProMSA with TN-GSPO, its own optimiser, on the flags benchmark.

    jaxagent train --config flags_promsa_cold_start --workdir work/flags_promsa_cold_start
    jaxagent train --config flags_promsa_tn_gspo --workdir work/flags_promsa_tn_gspo \\
        --config.model.folder=work/flags_promsa_cold_start/trained

The first command makes a policy that knows ProMSA's wire form; the shipped one knows MMAgent-R2's.
At most six minutes of training on two CPU cores.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "promsa"
    c.model.folder = "shipped/mmagent_r2"
    c.algorithm.name = "tn_gspo"
    c.rl.minutes = 6.0
    c.evaluation.splits = ("train", "unseen_question", "unseen_entity")
    c.evaluation.questions = 600
    return c


def sweep():
    """Three seeds."""
    for seed in range(3):
        yield {"name": f"promsa-tn_gspo-{seed}", "seed": seed}
