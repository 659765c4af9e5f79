"""A small Qwen3-VL with initial weights, as a Hugging Face folder that transformers loads."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from tokenizers import Tokenizer

from jaxagent.bounds import POSITIVE, check_numbers
from jaxagent.data.induction import with_induction
from jaxagent.data.tokenizer import trained_tokenizer, write_tokenizer
from jaxagent.models.policy import Model, PolicyConfig
from jaxagent.weights.folder import write_policy


@dataclass(frozen=True, kw_only=True)
class PolicySizes:
    """Sizes of a small policy; the defaults are those of the one that ships with the package."""

    vocab: int = 2048
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    mlp_width: int = 384
    tied: bool = True
    vision_width: int = 128
    vision_layers: int = 3
    vision_heads: int = 4
    vision_mlp_width: int = 384
    patch: int = 16
    positions: int = 16
    deepstack: tuple[int, ...] = (0, 1)
    image_pixels: int = 64 * 64  # every image is resized to about this area
    context: int = 4096
    rope_theta: float = 5e6

    def __post_init__(self):
        if not 1 <= len(self.deepstack) < self.layers:
            raise ValueError(
                f"model.sizes has {self.layers} layers and {len(self.deepstack)} of deepstack; it "
                "needs a deepstack layer, and a layer behind the last of them."
            )
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(
                f"model.sizes has {self.heads} heads and {self.kv_heads} key heads; the heads must "
                "be a multiple of the key heads."
            )
        check_numbers(self, "model.sizes", POSITIVE, "rope_theta")


def make_policy_folder(
    folder: str | Path,
    texts: Iterable[str],
    *,
    sizes: PolicySizes,
    seed: int,
    words: Sequence[str] = (),
) -> None:
    """Writes config, weights, tokenizer and preprocessing of a policy with random weights.

    The tokenizer is trained on `texts` and gives each of `words` a token of its own; the same
    arguments write the same bytes.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained_tokenizer(texts, vocab=sizes.vocab, words=words)
    write_tokenizer(folder, tokenizer, max_length=sizes.context)
    fields = hf_config(sizes, tokenizer)
    _write_json(folder / "config.json", fields)
    _write_json(folder / "generation_config.json", _generation(tokenizer))
    _write_json(folder / "preprocessor_config.json", _preprocessing(sizes))
    config = PolicyConfig.from_hf(fields)
    params = Model(config).init(jax.random.key(seed))
    params = params | {"text": with_induction(params["text"], config.text, seed=seed)}
    write_policy(folder, config, params, template=folder)


def hf_config(sizes: PolicySizes, tokenizer: Tokenizer) -> dict:
    """The fields of `config.json`."""
    h = sizes.head_size // 2
    height = width = 5 * h // 16
    ids = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "float32",
        "tie_word_embeddings": sizes.tied,
        **{field: tokenizer.token_to_id(token) for field, token in ids.items()},
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": sizes.vocab,
            "hidden_size": sizes.width,
            "intermediate_size": sizes.mlp_width,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_size,
            "hidden_act": "silu",
            "max_position_embeddings": sizes.context,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "tie_word_embeddings": sizes.tied,
            "bos_token_id": None,
            "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": sizes.rope_theta,
                "mrope_section": [h - height - width, height, width],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": sizes.vision_layers,
            "hidden_size": sizes.vision_width,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": sizes.vision_mlp_width,
            "num_heads": sizes.vision_heads,
            "in_channels": 3,
            "patch_size": sizes.patch,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": sizes.width,
            "num_position_embeddings": sizes.positions,
            "deepstack_visual_indexes": list(sizes.deepstack),
        },
    }


def _generation(tokenizer: Tokenizer) -> dict:
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    return {"do_sample": True, "temperature": 1.0, "eos_token_id": [end, pad], "pad_token_id": pad}


def _preprocessing(sizes: PolicySizes) -> dict:
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": sizes.image_pixels, "longest_edge": sizes.image_pixels},
        "patch_size": sizes.patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def _write_json(path: Path, fields: dict) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")
