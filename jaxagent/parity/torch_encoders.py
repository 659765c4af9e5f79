"""Encoders in transformers: hidden states of texts, embeddings of images and texts.

This module needs PyTorch; import it where it is used.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from jaxagent.parity.torch_side import DTYPES


class Twice(NamedTuple):
    """What a model makes, and what it makes in float32 where that is not what it is in."""

    made: Float[np.ndarray, "*b d"]
    wide: Float[np.ndarray, "*b d"] | None


class Embeddings(NamedTuple):
    """Both towers' embeddings."""

    images: Twice
    texts: Twice


def token_ids(folder: Path, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """The ids of texts by the tokenizer that transformers reads from the folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]


def hidden_states(
    folder: Path,
    ids: Int[np.ndarray, "b t"],
    real: Bool[np.ndarray, "b t"],
    *,
    dtype: str,
    device: str,
) -> Twice:
    """The last hidden states of a BERT or XLM-RoBERTa."""
    given = {
        "input_ids": torch.tensor(ids, dtype=torch.long, device=device),
        "attention_mask": torch.tensor(real, dtype=torch.long, device=device),
    }
    with _model(folder, dtype, device, trusted=False) as model:
        return _twice(model, lambda: model(**given).last_hidden_state)


def embeddings(
    folder: Path,
    pixels: Float[np.ndarray, "b c y x"],
    ids: Int[np.ndarray, "n t"],
    *,
    dtype: str,
    device: str,
) -> Embeddings:
    """The embeddings of an EVA-CLIP, by the Python code that lies in its folder."""
    given = torch.tensor(ids, dtype=torch.long, device=device)
    values = torch.tensor(pixels, device=device)
    with _model(folder, dtype, device, trusted=True) as model:
        texts = _twice(model, lambda: model.encode_text(given))
    with _model(folder, dtype, device, trusted=True) as model:
        # in the model's dtype, which is another one the second time
        images = _twice(model, lambda: model.encode_image(values.to(model.dtype)))
    return Embeddings(images, texts)


@contextmanager
def _model(folder: Path, dtype: str, device: str, *, trusted: bool) -> Iterator[nn.Module]:
    torch.backends.cudnn.allow_tf32 = False
    transformers.utils.logging.disable_progress_bar()
    model = AutoModel.from_pretrained(
        folder, dtype=DTYPES[dtype], local_files_only=True, trust_remote_code=trusted
    )
    yield model.to(device).eval()
    del model
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def _twice(model: nn.Module, call: Callable[[], Tensor]) -> Twice:
    """What the call gives, and again with the weights made wide, where they are not."""
    with torch.no_grad():
        made, wide = call().float().cpu().numpy(), None
        if model.dtype != torch.float32:
            model.float()
            wide = call().float().cpu().numpy()
    return Twice(made, wide)
