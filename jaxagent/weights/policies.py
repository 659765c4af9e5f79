"""The tables of the policies: the text tower's rows for all, the vision tower's by family.

Letters: d width, n query heads, k kv heads, h head size, f MLP width, v vocabulary, o an output
width; a patch is channels c, frames t, rows y, columns x. The keys are those of the present layout,
`model.language_model` and `model.visual`; the renames read the one that Qwen2-VL and Qwen2.5-VL
were published in (`model` and `visual`), and that of a model without a head (`language_model` and
`visual`), as transformers does.
"""

import re
from collections.abc import Sequence

from jaxagent.models.config import TextConfig, VisionConfig
from jaxagent.models.policy import FamilyName, PolicyConfig
from jaxagent.weights.params import Renames
from jaxagent.weights.table import Line, Row, rows

RENAMES: Renames = (
    (r"^visual\.", "model.visual."),
    (r"^language_model\.", "model.language_model."),
    (r"^model\.(?!language_model\.|visual\.)", "model.language_model."),
)

HEAD, TABLE = "lm_head.weight", "model.language_model.embed_tokens.weight"
_TEXT = "model.language_model"
_VISION = "model.visual"

_TEXT_LAYER: Sequence[Line] = (
    ("input_layernorm.weight", "attention_norm/scale", "d -> d"),
    ("self_attn.q_proj.weight", "attention/q/kernel", "(n h) d -> d n h"),
    ("self_attn.k_proj.weight", "attention/k/kernel", "(k h) d -> d k h"),
    ("self_attn.v_proj.weight", "attention/v/kernel", "(k h) d -> d k h"),
    ("self_attn.o_proj.weight", "attention/o/kernel", "d (n h) -> n h d"),
    ("post_attention_layernorm.weight", "mlp_norm/scale", "d -> d"),
    ("mlp.gate_proj.weight", "mlp/gate/kernel", "f d -> d f"),
    ("mlp.up_proj.weight", "mlp/up/kernel", "f d -> d f"),
    ("mlp.down_proj.weight", "mlp/down/kernel", "d f -> f d"),
)
_QK_NORMS: Sequence[Line] = (
    ("self_attn.q_norm.weight", "attention/q_norm/scale", "h -> h"),
    ("self_attn.k_norm.weight", "attention/k_norm/scale", "h -> h"),
)
_QKV_BIASES: Sequence[Line] = (
    ("self_attn.q_proj.bias", "attention/q/bias", "(n h) -> n h"),
    ("self_attn.k_proj.bias", "attention/k/bias", "(k h) -> k h"),
    ("self_attn.v_proj.bias", "attention/v/bias", "(k h) -> k h"),
)
_OUT_BIAS: Sequence[Line] = (("self_attn.o_proj.bias", "attention/o/bias", "d -> d"),)

_PATCH: Line = ("patch_embed.proj.weight", "patch/kernel", "d c t y x -> (c t y x) d")
_VISION_ATTENTION: Sequence[Line] = (
    ("attn.qkv.weight", "attention/qkv/kernel", "(three n h) d -> d three n h"),
    ("attn.qkv.bias", "attention/qkv/bias", "(three n h) -> three n h"),
    ("attn.proj.weight", "attention/o/kernel", "d (n h) -> n h d"),
    ("attn.proj.bias", "attention/o/bias", "d -> d"),
    ("norm1.weight", "attention_norm/scale", "d -> d"),
    ("norm2.weight", "mlp_norm/scale", "d -> d"),
)
_VISION_NORM_BIASES: Sequence[Line] = (
    ("norm1.bias", "attention_norm/bias", "d -> d"),
    ("norm2.bias", "mlp_norm/bias", "d -> d"),
)


def _mlp(up: str, down: str) -> Sequence[Line]:
    return (
        (f"{up}.weight", "mlp/up/kernel", "f d -> d f"),
        (f"{up}.bias", "mlp/up/bias", "f -> f"),
        (f"{down}.weight", "mlp/down/kernel", "o f -> f o"),
        (f"{down}.bias", "mlp/down/bias", "o -> o"),
    )


_BLOCKS: dict[FamilyName, Sequence[Line]] = {
    "qwen2_vl": (*_VISION_ATTENTION, *_VISION_NORM_BIASES, *_mlp("mlp.fc1", "mlp.fc2")),
    "qwen2_5_vl": (
        *_VISION_ATTENTION,
        *_mlp("mlp.up_proj", "mlp.down_proj"),
        ("mlp.gate_proj.weight", "mlp/gate/kernel", "f d -> d f"),
        ("mlp.gate_proj.bias", "mlp/gate/bias", "f -> f"),
    ),
    "qwen3_vl": (
        *_VISION_ATTENTION,
        *_VISION_NORM_BIASES,
        *_mlp("mlp.linear_fc1", "mlp.linear_fc2"),
    ),
}
_QWEN3_MERGER: Sequence[Line] = (
    ("norm.weight", "norm/scale", "d -> d"),
    ("norm.bias", "norm/bias", "d -> d"),
    *_mlp("linear_fc1", "linear_fc2"),
)
_MERGER: dict[FamilyName, Sequence[Line]] = {
    "qwen2_vl": (
        ("ln_q.weight", "norm/scale", "d -> d"),
        ("ln_q.bias", "norm/bias", "d -> d"),
        *_mlp("mlp.0", "mlp.2"),
    ),
    "qwen2_5_vl": (("ln_q.weight", "norm/scale", "d -> d"), *_mlp("mlp.0", "mlp.2")),
    "qwen3_vl": _QWEN3_MERGER,
}
_START: dict[FamilyName, Sequence[Line]] = {
    "qwen2_vl": (_PATCH,),
    "qwen2_5_vl": (_PATCH,),
    "qwen3_vl": (
        _PATCH,
        ("patch_embed.proj.bias", "patch/bias", "d -> d"),
        ("pos_embed.weight", "position/table", "p d -> p d"),
    ),
}


def table(config: PolicyConfig) -> list[Row]:
    """Every row of this config, each Hugging Face key in exactly one."""
    return _text_rows(config.text) + _vision_rows(config.vision, config.family)


def unused(config: PolicyConfig) -> Sequence[str]:
    """Keys that nobody reads: the copy of the embedding table that some tied folders hold."""
    return (re.escape(HEAD),) if config.text.tied else ()


def _text_rows(text: TextConfig) -> list[Row]:
    sizes = {"n": text.heads, "k": text.kv_heads, "h": text.head_size}
    ends: list[Line] = [
        (TABLE, "embed/table", "v d -> v d"),
        (f"{_TEXT}.norm.weight", "norm/scale", "d -> d"),
    ]
    if not text.tied:
        ends.append((HEAD, "untied_head/kernel", "v d -> d v"))
    layer = (
        *_TEXT_LAYER,
        *(_QK_NORMS if text.qk_norm else ()),
        *(_QKV_BIASES if text.qkv_bias else ()),
        *(_OUT_BIAS if text.out_bias else ()),
    )
    stacks = {
        "deepstack_layers": range(text.deepstack),
        "layers": range(text.deepstack, text.layers),
    }
    made = rows(ends, "", "text/", sizes)
    for stack, layers in stacks.items():
        made += rows(layer, f"{_TEXT}.layers.{{i}}.", f"text/{stack}/", sizes, layers)
    return made


def _vision_rows(vision: VisionConfig, family: FamilyName) -> list[Row]:
    sizes = {
        "three": 3,
        "n": vision.heads,
        "h": vision.head_size,
        "c": vision.channels,
        "t": vision.temporal_patch,
        "y": vision.patch,
        "x": vision.patch,
    }
    blocks, mergers = range(vision.layers), range(len(vision.deepstack))
    return [
        *rows(_START[family], f"{_VISION}.", "vision/", sizes),
        *rows(_MERGER[family], f"{_VISION}.merger.", "vision/merger/", sizes),
        *rows(_BLOCKS[family], f"{_VISION}.blocks.{{i}}.", "vision/blocks/", sizes, blocks),
        *rows(
            _QWEN3_MERGER,
            f"{_VISION}.deepstack_merger_list.{{i}}.",
            "vision/deepstack_mergers/",
            sizes,
            mergers,
        ),
    ]
