"""A small tokenizer in Qwen's format, trained on given text.

Byte-level BPE behind Qwen's normalisation and pre-tokenisation: words with one leading mark or
space, single digits, runs of punctuation. Qwen's 26 added tokens stand behind the trained
vocabulary in Qwen's order, the first 14 of them special. The files are those of a Hugging Face
folder, with a chat template for system, user and assistant turns and images.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PLAIN_ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_NUM_ADDED = len(SPECIAL_TOKENS) + len(PLAIN_ADDED_TOKENS)

# Qwen2's split. Each alternative: contractions; letters with at most one leading mark; one digit;
# punctuation with a leading space and trailing line ends; line ends; spaces but the last; spaces.
_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def trained_tokenizer(texts: Iterable[str], *, vocab: int, words: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of exactly `vocab` tokens, fewer when the texts hold too few pairs to merge.

    `words` (a method's tags, say) get a token of their own each, as `<think>` has one. Raises
    ValueError when `vocab` has no room for the 256 bytes and the added tokens.
    """
    num_added = _NUM_ADDED + len(words)
    if vocab < 256 + num_added:
        raise ValueError(
            f"vocab={vocab} is too small; the bytes and added tokens need {256 + num_added}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - num_added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([_added(token, special=True) for token in SPECIAL_TOKENS])
    plain = (*PLAIN_ADDED_TOKENS, *words)
    tokenizer.add_tokens([_added(token, special=False) for token in plain])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, max_length: int) -> None:
    """Writes `tokenizer.json`, its vocabulary and merges apart, the config and the template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    fields = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "errors": "replace",
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {
            str(id): {
                "content": token.content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token.special,
            }
            for id, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
    }
    text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)
