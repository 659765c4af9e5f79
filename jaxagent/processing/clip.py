"""CLIP's preprocessing: images to pixels and texts to ids, as EVA-CLIP takes them.

An image's shorter side is resized to the tower's side (bicubic), the middle is cropped, and bytes
are scaled to [0, 1] and normalised by CLIP's mean and standard deviation: what the processor of
openai/clip-vit-large-patch14 does, which EVA-CLIP's folders name and do not hold. transformers' PIL
processor does the work (no torch). Texts are split by the folder's byte-pair merges, begin and end
with their own tokens and are cut to the tower's positions, the end token last; shorter ones are
filled up with end tokens, which the text tower does not see. The names of these two tokens within a
text are plain text. Left out: what open_clip's tokenizer does before (ftfy, HTML entities).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, Shaped
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from jaxagent.processing.images import ImageError
from jaxagent.processing.texts import encodable

START, END = "<|startoftext|>", "<|endoftext|>"
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
"""The pieces that merges stay within: CLIP's own pattern (Radford et al., 2021)."""


class TextError(ValueError):
    """A folder without a CLIP tokenizer; the message says what is missing."""


@dataclass(frozen=True)
class ClipImages:
    """Images to the pixels of a tower of this side."""

    side: int

    def pixels(self, images: Sequence[Shaped[np.ndarray, "..."]]) -> Float[np.ndarray, "b c y x"]:
        """The pixels of RGB bytes, each `[y x 3]` uint8; ImageError for any other array."""
        for rgb in images:
            if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or not rgb.size:
                raise ImageError(
                    f"An image of shape {rgb.shape} and dtype {rgb.dtype} cannot be read; "
                    "convert it to RGB bytes, [height, width, 3] uint8."
                )
            if max(rgb.shape[:2]) > 200 * min(rgb.shape[:2]):
                # Resized to a shorter side of 224, it would take gigabytes before it is cropped.
                raise ImageError(
                    f"An image of {rgb.shape[0]} x {rgb.shape[1]} pixels is too long and thin; the "
                    "longer side may be at most 200 times the shorter."
                )
        if not images:
            return np.zeros((0, 3, self.side, self.side), np.float32)
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": self.side},
            crop_size={"height": self.side, "width": self.side},
        )
        made = processor(
            images=list(images), input_data_format="channels_last", return_tensors="np"
        )
        return np.asarray(made["pixel_values"], np.float32)


@dataclass(frozen=True, eq=False)
class ClipTexts:
    """Texts to ids of at most `length` tokens."""

    tokenizer: Tokenizer
    length: int

    @classmethod
    def read(cls, folder: str | Path, length: int) -> "ClipTexts":
        """From `vocab.json` and `merges.txt`; TextError when one is missing or no CLIP tokenizer's.

        A `tokenizer.json` beside them says the same and is not read.
        """
        folder = Path(folder)
        vocab, merges = folder / "vocab.json", folder / "merges.txt"
        if missing := [path.name for path in (vocab, merges) if not path.exists()]:
            raise TextError(
                f"{folder} lacks {' and '.join(missing)}. Copy them from the model's source."
            )
        try:
            model = models.BPE.from_file(str(vocab), str(merges), end_of_word_suffix="</w>")
        except Exception as error:  # tokenizers raises nothing narrower
            raise TextError(f"{vocab} and {merges} are no tokenizer's ({error}).") from None
        tokenizer = Tokenizer(model)
        tokens = [tokenizer.token_to_id(token) for token in (START, END)]
        if None in tokens or tokens[1] != max(tokenizer.get_vocab().values()):
            raise TextError(
                f"{vocab} has {START}={tokens[0]} and {END}={tokens[1]}. Both must be there and "
                "the latter be the largest id: the text tower ends at the largest."
            )
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{START} $A {END}",
            special_tokens=[(START, tokens[0]), (END, tokens[1])],
        )
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(pad_id=tokens[1], pad_token=END, length=length)
        return cls(tokenizer, length)

    def ids(self, texts: Sequence[str]) -> Int[np.ndarray, "b t"]:
        """One row of `length` ids for each text."""
        rows = self.tokenizer.encode_batch([encodable(text) for text in texts])
        return np.asarray([row.ids for row in rows], np.int32).reshape(-1, self.length)
