"""The table of dense Qwen3-VL.

Letters: d width, n query heads, k kv heads, h head size, f MLP width, v vocabulary, o an output
width; a patch is channels c, frames t, rows y, columns x.
"""

from collections.abc import Iterable, Mapping

from jaxagent.models.config import Qwen3VLConfig, TextConfig, VisionConfig
from jaxagent.weights.table import Row

_TEXT = "model.language_model"
_VISION = "model.visual"

_TEXT_LAYER = (
    ("input_layernorm.weight", "attention_norm/scale", "d -> d"),
    ("self_attn.q_proj.weight", "attention/q/kernel", "(n h) d -> d n h"),
    ("self_attn.k_proj.weight", "attention/k/kernel", "(k h) d -> d k h"),
    ("self_attn.v_proj.weight", "attention/v/kernel", "(k h) d -> d k h"),
    ("self_attn.o_proj.weight", "attention/o/kernel", "d (n h) -> n h d"),
    ("self_attn.q_norm.weight", "attention/q_norm/scale", "h -> h"),
    ("self_attn.k_norm.weight", "attention/k_norm/scale", "h -> h"),
    ("post_attention_layernorm.weight", "mlp_norm/scale", "d -> d"),
    ("mlp.gate_proj.weight", "mlp/gate/kernel", "f d -> d f"),
    ("mlp.up_proj.weight", "mlp/up/kernel", "f d -> d f"),
    ("mlp.down_proj.weight", "mlp/down/kernel", "d f -> f d"),
)
_QKV_BIASES = (
    ("self_attn.q_proj.bias", "attention/q/bias", "(n h) -> n h"),
    ("self_attn.k_proj.bias", "attention/k/bias", "(k h) -> k h"),
    ("self_attn.v_proj.bias", "attention/v/bias", "(k h) -> k h"),
)
_OUT_BIAS = (("self_attn.o_proj.bias", "attention/o/bias", "d -> d"),)

_VISION_BLOCK = (
    ("norm1.weight", "attention_norm/scale", "d -> d"),
    ("norm1.bias", "attention_norm/bias", "d -> d"),
    ("attn.qkv.weight", "attention/qkv/kernel", "(three n h) d -> d three n h"),
    ("attn.qkv.bias", "attention/qkv/bias", "(three n h) -> three n h"),
    ("attn.proj.weight", "attention/o/kernel", "d (n h) -> n h d"),
    ("attn.proj.bias", "attention/o/bias", "d -> d"),
    ("norm2.weight", "mlp_norm/scale", "d -> d"),
    ("norm2.bias", "mlp_norm/bias", "d -> d"),
    ("mlp.linear_fc1.weight", "mlp/up/kernel", "f d -> d f"),
    ("mlp.linear_fc1.bias", "mlp/up/bias", "f -> f"),
    ("mlp.linear_fc2.weight", "mlp/down/kernel", "d f -> f d"),
    ("mlp.linear_fc2.bias", "mlp/down/bias", "d -> d"),
)
_MERGER = (
    ("norm.weight", "norm/scale", "d -> d"),
    ("norm.bias", "norm/bias", "d -> d"),
    ("linear_fc1.weight", "mlp/up/kernel", "f d -> d f"),
    ("linear_fc1.bias", "mlp/up/bias", "f -> f"),
    ("linear_fc2.weight", "mlp/down/kernel", "o f -> f o"),
    ("linear_fc2.bias", "mlp/down/bias", "o -> o"),
)

UNUSED_WHEN_TIED = (r"lm_head\.weight",)
"""Keys that some folders with a tied head hold as a copy of the embedding table."""


def table(config: Qwen3VLConfig) -> list[Row]:
    """Every row of this config, each Hugging Face key in exactly one."""
    return _text_rows(config.text) + _vision_rows(config.vision)


def _text_rows(text: TextConfig) -> list[Row]:
    sizes = {"n": text.heads, "k": text.kv_heads, "h": text.head_size}
    ends = [
        (f"{_TEXT}.embed_tokens.weight", "embed/table", "v d -> v d"),
        (f"{_TEXT}.norm.weight", "norm/scale", "d -> d"),
    ]
    if not text.tied:
        ends.append(("lm_head.weight", "untied_head/kernel", "v d -> d v"))
    layer = _TEXT_LAYER
    layer += _QKV_BIASES if text.qkv_bias else ()
    layer += _OUT_BIAS if text.out_bias else ()
    stacks = {
        "deepstack_layers": range(text.deepstack),
        "layers": range(text.deepstack, text.layers),
    }
    rows = _rows(ends, "", "text/", sizes)
    for stack, layers in stacks.items():
        rows += _rows(layer, f"{_TEXT}.layers.{{i}}.", f"text/{stack}/", sizes, layers)
    return rows


def _vision_rows(vision: VisionConfig) -> list[Row]:
    sizes = {
        "three": 3,
        "n": vision.heads,
        "h": vision.head_size,
        "c": vision.channels,
        "t": vision.temporal_patch,
        "y": vision.patch,
        "x": vision.patch,
    }
    start = [
        ("patch_embed.proj.weight", "patch/kernel", "d c t y x -> (c t y x) d"),
        ("patch_embed.proj.bias", "patch/bias", "d -> d"),
        ("pos_embed.weight", "position/table", "p d -> p d"),
    ]
    stacks = {
        "blocks": (f"{_VISION}.blocks.{{i}}.", _VISION_BLOCK, vision.layers),
        "deepstack_mergers": (
            f"{_VISION}.deepstack_merger_list.{{i}}.",
            _MERGER,
            len(vision.deepstack),
        ),
    }
    rows = _rows(start, f"{_VISION}.", "vision/", sizes)
    rows += _rows(_MERGER, f"{_VISION}.merger.", "vision/merger/", sizes)
    for stack, (prefix, lines, num) in stacks.items():
        rows += _rows(lines, prefix, f"vision/{stack}/", sizes, range(num))
    return rows


def _rows(
    lines: Iterable[tuple[str, str, str]],
    key_prefix: str,
    name_prefix: str,
    sizes: Mapping[str, int],
    layers: range | None = None,
) -> list[Row]:
    if layers is not None and not layers:
        return []
    return [
        Row(
            key=key_prefix + key,
            name=name_prefix + name,
            pattern=pattern,
            sizes=sizes,
            layers=layers,
        )
        for key, name, pattern in lines
    ]
