"""Whole folders of the tiny policies: weights, tokenizer, preprocessing."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from jaxagent.data.tokenizer import trained_tokenizer, write_tokenizer
from jaxagent.parity.cases import CONTINUATION, SYSTEM
from tests.models import families

_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


@cache
def folder(name: str) -> Path:
    """The folder of a case of `families`, with what a published one has beside the weights."""
    temporary = tempfile.TemporaryDirectory(prefix="jaxagent-parity-")
    atexit.register(temporary.cleanup)
    made = Path(temporary.name)
    shutil.copytree(families.folder(name), made, dirs_exist_ok=True)
    tokenizer = trained_tokenizer([SYSTEM, CONTINUATION], vocab=families.VOCAB)
    write_tokenizer(made, tokenizer, max_length=4096)
    fields = json.loads((made / "config.json").read_text())
    fields |= {field: tokenizer.token_to_id(token) for field, token in _IDS.items()}
    (made / "config.json").write_text(json.dumps(fields))
    preprocessing = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 24 * 24, "longest_edge": 24 * 24},
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.4, 0.6],
        "image_std": [0.3, 0.4, 0.2],
    }
    (made / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return made
