"""Every published size of the families: the size-naming fields of its `config.json`, its count.

The fields are those of `Qwen/<name>` on the Hugging Face hub (the instruct models; other fields of
the files name no size). The counts are the hub's: what its safetensors headers hold, or half the
bytes that `model.safetensors.index.json` gives as `total_size`, since all tensors are bfloat16. In
the folders of tied models `lm_head` is not stored, so the embedding table is in them once. The hub
was not reached from here: each count is quoted from someone who read it there, named beside it.
"""

from dataclasses import dataclass
from typing import Any

Fields = dict[str, Any]

_IDS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A published model: its fields, its exact count of parameters and who says so.

    `parameters` is None where nobody was found who gives the exact number. `fsdp` and `tensor` are
    the mesh of its golden table: as many of both as divide its text tower.
    """

    fields: Fields
    parameters: int | None
    source: str
    fsdp: int = 8
    tensor: int


def _qwen2(
    width: int, mlp: int, layers: int, heads: int, kv: int, *, vocab: int, tied: bool
) -> Fields:
    """The text tower of Qwen2-VL and Qwen2.5-VL, at the top of the file."""
    return _IDS | {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
    }


def _qwen2_vl(text: Fields) -> Fields:
    vision = {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": text["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {"model_type": "qwen2_vl", **text, "vision_config": vision}


def _qwen2_5_vl(text: Fields, vision_mlp: int) -> Fields:
    vision = {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": vision_mlp,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    return {"model_type": "qwen2_5_vl", **text, "vision_config": vision}


def _qwen3_vl(
    width: int, mlp: int, layers: int, heads: int, *, tied: bool, small_tower: bool
) -> Fields:
    depth, vision_width, vision_mlp = (24, 1024, 4096) if small_tower else (27, 1152, 4304)
    return _IDS | {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": tied,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": 151936,
            "hidden_size": width,
            "intermediate_size": mlp,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "rope_theta": 5000000,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": depth,
            "hidden_size": vision_width,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": vision_mlp,
            "num_heads": 16,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": width,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17] if small_tower else [8, 16, 24],
        },
    }


_GIMMICK = "safetensors headers on the hub, as the benchmark GIMMICK's table of models quotes them"

SIZES = {
    "Qwen2-VL-2B-Instruct": Size(
        fields=_qwen2_vl(_qwen2(1536, 8960, 28, 12, 2, vocab=151936, tied=True)),
        parameters=2_208_985_600,
        source=_GIMMICK,
        tensor=2,
    ),
    "Qwen2-VL-7B-Instruct": Size(
        fields=_qwen2_vl(_qwen2(3584, 18944, 28, 28, 4, vocab=152064, tied=False)),
        parameters=8_291_375_616,
        source=f"{_GIMMICK}; total_size 16582751232 in PaddleMIX's conversion of the folder",
        tensor=4,
    ),
    "Qwen2-VL-72B-Instruct": Size(
        fields=_qwen2_vl(_qwen2(8192, 29568, 80, 64, 8, vocab=152064, tied=False)),
        parameters=73_405_560_320,
        source=_GIMMICK,
        fsdp=16,
        tensor=8,
    ),
    "Qwen2.5-VL-3B-Instruct": Size(
        fields=_qwen2_5_vl(_qwen2(2048, 11008, 36, 16, 2, vocab=151936, tied=True), 3420),
        parameters=3_754_622_976,
        source="MTEB's metadata of models trained from it, whose parameters are the same ones",
        tensor=2,
    ),
    "Qwen2.5-VL-7B-Instruct": Size(
        fields=_qwen2_5_vl(_qwen2(3584, 18944, 28, 28, 4, vocab=152064, tied=False), 3420),
        parameters=8_292_166_656,
        source="numParameters in the hub's list of models; total_size 16584333312 of its index",
        tensor=4,
    ),
    "Qwen2.5-VL-32B-Instruct": Size(
        fields=_qwen2_5_vl(_qwen2(5120, 27648, 64, 40, 8, vocab=152064, tied=False), 3456),
        parameters=33_452_718_336,
        source="total_size 66905436672 in the index of Lingshu-32B, which is trained from it",
        fsdp=16,
        tensor=8,
    ),
    "Qwen2.5-VL-72B-Instruct": Size(
        fields=_qwen2_5_vl(_qwen2(8192, 29568, 80, 64, 8, vocab=152064, tied=False), 3456),
        parameters=None,
        source="no exact number was found; transformers' own model of these fields decides",
        fsdp=16,
        tensor=8,
    ),
    "Qwen3-VL-2B-Instruct": Size(
        fields=_qwen3_vl(2048, 6144, 28, 16, tied=True, small_tower=True),
        parameters=2_127_532_032,
        source="model.safetensors has 4255140312 bytes: 76248 of header, two a parameter",
        tensor=8,
    ),
    "Qwen3-VL-4B-Instruct": Size(
        fields=_qwen3_vl(2560, 9728, 36, 32, tied=True, small_tower=True),
        parameters=4_437_815_808,
        source="total_size 8875631616 of its index (713 tensors, all bfloat16)",
        tensor=8,
    ),
    "Qwen3-VL-8B-Instruct": Size(
        fields=_qwen3_vl(4096, 12288, 36, 32, tied=False, small_tower=False),
        parameters=8_767_123_696,
        source="safetensors.parameters.BF16 of the hub's API; total_size 17534247392 of its index",
        tensor=8,
    ),
    "Qwen3-VL-32B-Instruct": Size(
        fields=_qwen3_vl(5120, 25600, 64, 64, tied=False, small_tower=False),
        parameters=33_357_390_064,
        source="total_size 66714780128 of its index",
        fsdp=16,
        tensor=8,
    ),
}
