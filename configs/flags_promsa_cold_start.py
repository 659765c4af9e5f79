"""The cold start of ProMSA: the one of MMAgent-R2, taught ProMSA's wire form by further SFT.

    jaxagent train --config flags_promsa_cold_start --workdir work/flags_promsa_cold_start

The command's time on two CPU cores and the accuracy it reached stand in the README.
"""

from configs import flags_cold_start


def get_config():
    c = flags_cold_start.get_config()
    c.method.name = "promsa"
    c.model.folder = "shipped/mmagent_r2"
    c.warm_start.steps = 0
    c.optimizer.learning_rate = 1e-3
    c.sft.steps = 400
    c.sft.look_steps = 0
    c.sft.traces = 5000
    return c
