"""Tiny policies of every family, made by transformers in the real format, that hide nothing.

Weights have a standard deviation of 1.5 / sqrt(fan-in), every bias is random and every norm's scale
differs from 1, so that leaving any part out shows in the logits, whose standard deviation is above
1. (With default-initialised weights a dropped bias of the keys changes Qwen2.5-VL's logits by 0.)
"""

import atexit
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from jaxagent.models.policy import FamilyName

CLASSES = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
}
IMAGE_TOKEN, VOCAB = 310, 320


@dataclass(frozen=True, kw_only=True)
class Case:
    """A member of a family: its heads, its tie, and whatever else of its config is its own."""

    family: FamilyName
    heads: int
    kv_heads: int
    tied: bool
    vision: tuple[tuple[str, object], ...] = ()


CASES = {
    "qwen2_vl, tied, 2 heads a group": Case(family="qwen2_vl", heads=4, kv_heads=2, tied=True),
    "qwen2_vl, untied, 7 heads a group": Case(family="qwen2_vl", heads=7, kv_heads=1, tied=False),
    "qwen2_5_vl, untied, 7 heads a group": Case(
        family="qwen2_5_vl", heads=7, kv_heads=1, tied=False
    ),
    "qwen2_5_vl, tied, 1 head a group, uneven groups of blocks": Case(
        family="qwen2_5_vl",
        heads=4,
        kv_heads=4,
        tied=True,
        vision=(("fullatt_block_indexes", [0, 2, 3]),),
    ),
    "qwen3_vl, tied, 2 heads a group": Case(family="qwen3_vl", heads=4, kv_heads=2, tied=True),
    "qwen3_vl, untied, 7 heads a group": Case(family="qwen3_vl", heads=7, kv_heads=1, tied=False),
}
ONE_OF_EACH = {case.family: name for name, case in reversed(CASES.items())}
"""Family -> a case of it."""


@cache
def folder(name: str) -> Path:
    """The folder of a case: `config.json` and weights, without tokenizer and preprocessing."""
    temporary = tempfile.TemporaryDirectory(prefix="jaxagent-family-")
    atexit.register(temporary.cleanup)
    case = CASES[name]
    model = with_random_parameters(case.family, hf_fields(case))
    model.save_pretrained(temporary.name)
    return Path(temporary.name)


def with_random_parameters(family: FamilyName, fields: dict, *, seed: int = 0) -> torch.nn.Module:
    """The policy of a `config.json` in transformers, with random parameters."""
    config_class, model_class = CLASSES[family]
    model = model_class(config_class(**fields))
    numbers = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            drawn = numbers.standard_normal(shape, dtype=np.float32)
            if len(shape) > 1:
                # an embedding is a row a token, everything else a row an output
                drawn *= 1.5 / np.sqrt(shape[-1] if "embed" in name else np.prod(shape[1:]))
            else:
                drawn = 0.3 * drawn + (0 if name.endswith("bias") else 1)
            parameter.copy_(torch.tensor(drawn))
    return model.eval()


def hf_fields(case: Case) -> dict:
    """The fields of a `config.json`, as transformers 5 nests them."""
    h = 16
    text = {
        "vocab_size": VOCAB,
        "hidden_size": case.heads * h,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "bos_token_id": None,
        "eos_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,  # so that every frequency turns within a short context
            "mrope_section": [4, 2, 2],
        },
    }
    vision = {
        "depth": 5,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    own_text, own_vision = {
        "qwen2_vl": (
            {},
            {
                "embed_dim": 32,
                "hidden_size": text["hidden_size"],
                "mlp_ratio": 2,
                "hidden_act": "quick_gelu",
            },
        ),
        "qwen2_5_vl": (
            {},
            {
                "hidden_size": 32,
                "out_hidden_size": text["hidden_size"],
                "intermediate_size": 44,
                "hidden_act": "silu",
                "window_size": 16,  # 2 x 2 image tokens
                "fullatt_block_indexes": [1, 3],
            },
        ),
        "qwen3_vl": (
            {"head_dim": h},
            {
                "hidden_size": 32,
                "out_hidden_size": text["hidden_size"],
                "intermediate_size": 44,
                "hidden_act": "gelu_pytorch_tanh",
                "num_position_embeddings": 36,
                "deepstack_visual_indexes": [0, 2],
            },
        ),
    }[case.family]
    if case.family == "qwen3_vl":
        text["rope_parameters"]["mrope_interleaved"] = True
    return {
        "text_config": text | own_text,
        "vision_config": vision | own_vision | dict(case.vision),
        "tie_word_embeddings": case.tied,
        "image_token_id": IMAGE_TOKEN,
        "video_token_id": IMAGE_TOKEN + 1,
        "vision_start_token_id": IMAGE_TOKEN + 2,
        "vision_end_token_id": IMAGE_TOKEN + 3,
    }
