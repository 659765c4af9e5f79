"""MMAgent-R2 with Qwen3-VL-8B-Instruct and GRPO: the paper's settings on the flags benchmark.

    jaxagent train --config mmagent_r2_qwen3_vl_8b --workdir work/mmagent_r2_qwen3_vl_8b \\
        --config.model.folder=/data/Qwen3-VL-8B-Instruct

The paper's are the instruct weights without SFT, the budgets, 1,024 questions of 8 dialogues a
step, the learning rate, and the steps of two passes over its 149K questions. Those questions, of
InfoSeek, E-VQA and MMhops, are not there: no data set but flags can be read yet. Not run so far.
For comparison, the paper reaches 49.0 / 49.2 / 49.1 on InfoSeek (unseen question, unseen entity,
all) and names the right entity in 62.0 % where its retriever's R@1 is 53.7.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.folder, c.model.dtype = "Qwen3-VL-8B-Instruct", "bfloat16"
    c.data.image_side = 448
    c.method.name = "mmagent_r2"
    c.method.mmagent_r2.prompt = "full"
    c.method.mmagent_r2.choice = "name"
    c.method.mmagent_r2.max_tokens = 1024
    c.algorithm.name = "grpo"
    c.rl.questions = 1024
    c.rollout.context = 16384
    # GiB on each of four devices: 25 of parameters and AdamW's moments, 5 of its parts of the
    # parameters in bfloat16, 16 of the whole, which sample, and 2.25 a slot (36 layers, 2 x 8
    # heads, 128 numbers a token): 55 with four slots. Evaluations sample in float32, before and
    # after training: 33, and 4.5 a slot. A v5p chip has 95, a GPU 80.
    c.rollout.replicas, c.rollout.slots, c.rollout.rows = 4, 16, (4,)
    c.rollout.kernel = "batch"
    c.optimizer.learning_rate = 1e-6
    c.rl.steps = 292
    c.packing.row_lengths = (4096, 8192, 16384)
    c.packing.call_tokens = 65536
    c.packing.image_tokens = 32768
    c.packing.chunk = 128
    c.model.remat = True
    c.sharding.data, c.sharding.fsdp = 1, -1  # every device holds a part of the text tower
    c.checkpoint.every = 1  # a step is 8,192 dialogues
    return c
