"""ProMSA with Qwen3-VL-8B-Instruct: SFT cold start, then TN-GSPO; the paper's recipe.

    jaxagent train --config promsa_qwen3_vl_8b --workdir gs://bucket/promsa

The paper reaches 53.6 / 53.3 / 53.4 on InfoSeek (unseen question, unseen entity, all) and 52.2 /
52.6 on E-VQA (single-hop, all).
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.folder = "Qwen3-VL-8B-Instruct"
    c.model.dtype = "bfloat16"
    c.method.name = "promsa"
    c.method.promsa.prompt = "full"
    c.method.promsa.max_tokens = 4096
    c.algorithm.name = "tn_gspo"
    c.rl.questions = 128
    c.rl.samples = 8
    c.rollout.context = 32768
    c.rollout.kernel = "batch"
    c.optimizer.learning_rate = 1e-6
    c.rl.steps = 351
    c.packing.row_lengths = (8192, 16384, 32768)
    c.packing.call_tokens = 65536
    c.packing.image_tokens = 32768
    c.packing.chunk = 128
    c.model.remat = True
    c.sharding.fsdp = 16
    return c


def sweep():
    """The paper's comparison of optimisers: 43.7, 49.6 and 53.4 on InfoSeek, all."""
    yield {"name": "grpo", "algorithm.name": "grpo"}
    yield {"name": "gspo", "algorithm.name": "gspo", "algorithm.clip": (0.2, 0.28)}
    yield {"name": "tn_gspo"}
