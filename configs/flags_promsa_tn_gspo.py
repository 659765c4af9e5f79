"""ProMSA with TN-GSPO, its own optimiser, on the flags benchmark, from its shipped cold start.

    jaxagent train --config flags_promsa_tn_gspo --workdir work/flags_promsa_tn_gspo

At most six minutes a run on two CPU cores. The figures stand in the README's results table.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "promsa"
    c.algorithm.name = "tn_gspo"
    c.rl.minutes = 6.0
    return c


def sweep():
    """Three seeds."""
    for seed in range(3):
        yield {"name": f"promsa-tn_gspo-{seed}", "seed": seed}
