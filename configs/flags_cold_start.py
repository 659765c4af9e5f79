"""The cold start that ships with the package: SFT of a new tiny policy on scripted expert traces.

    jaxagent train --config flags_cold_start --workdir work/flags_cold_start

The command's time on two CPU cores and the accuracy it reached stand in the README.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.folder = "new"
    c.model.saved_dtype = "bfloat16"
    c.optimizer.learning_rate = 2e-3
    c.optimizer.schedule = "cosine"
    c.optimizer.weight_decay = 0.01
    c.warm_start.steps = 900
    c.sft.steps = 960
    c.sft.look_steps = 600
    c.sft.traces = 12_000
    c.packing.chunk = 32
    c.rl.steps = 0
    c.checkpoint.every = 100
    c.evaluation.splits = ("val_unseen_question", "val_unseen_entity")
    c.evaluation.questions = 400
    c.evaluation.when = ("after",)
    return c
