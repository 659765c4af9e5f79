"""The cold start that ships with the package: SFT of a new tiny policy on scripted expert traces.

    jaxagent train --config flags_cold_start --workdir work/flags_cold_start

The command's time on two CPU cores and the accuracy it reached stand in the README.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.folder = "new"
    c.model.vision = "trained"
    c.optimizer.learning_rate = 1e-3
    c.optimizer.schedule = "cosine"
    c.sft.steps = 2000
    c.rl.steps = 0
    return c
