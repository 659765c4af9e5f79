"""MMAgent-R2 with Qwen3-VL-8B-Instruct and GRPO: the paper's recipe.

    jaxagent train --config mmagent_r2_qwen3_vl_8b --workdir gs://bucket/mmagent_r2

The paper reaches 49.0 / 49.2 / 49.1 on InfoSeek (unseen question, unseen entity, all) and names the
right entity in 62.0 % of them where its retriever's R@1 is 53.7; it starts from the instruct
weights with no SFT.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.folder = "Qwen3-VL-8B-Instruct"
    c.model.dtype = "bfloat16"
    c.method.name = "mmagent_r2"
    c.method.mmagent_r2.prompt = "full"
    c.method.mmagent_r2.max_tokens = 1024
    c.algorithm.name = "grpo"
    c.rl.questions = 1024
    c.rl.samples = 8
    c.rollout.context = 16384
    c.rollout.kernel = "batch"
    c.optimizer.learning_rate = 1e-6
    c.rl.steps = 292
    c.packing.row_lengths = (4096, 8192, 16384)
    c.packing.call_tokens = 65536
    c.packing.image_tokens = 32768
    c.packing.chunk = 128
    c.model.remat = True
    c.sharding.fsdp = 16
    return c
