"""The cold start of ProMSA: the one of MMAgent-R2, taught ProMSA's wire form by further SFT.

    jaxagent train --config flags_promsa_cold_start --workdir work/flags_promsa_cold_start

The command's time on two CPU cores and the accuracy it reached stand in the README.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.method.name = "promsa"
    c.model.folder = "shipped/mmagent_r2"
    c.model.saved_dtype = "bfloat16"
    c.optimizer.learning_rate = 1e-3
    c.optimizer.schedule = "cosine"
    c.optimizer.weight_decay = 0.01
    c.sft.steps = 400
    c.sft.traces = 5000
    c.packing.chunk = 32
    c.rl.steps = 0
    c.checkpoint.every = 100
    c.evaluation.splits = ("val_unseen_question", "val_unseen_entity")
    c.evaluation.questions = 400
    c.evaluation.when = ("after",)
    return c
