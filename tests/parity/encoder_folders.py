"""Whole folders of tiny encoders: weights, tokenizers, what they say of their vectors."""

import atexit
import json
import tempfile
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from jaxagent.parity.encoders import TEXTS
from tests.models import bert_twins, eva_clip_twin

_TOKENS = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>"),
}
_MODEL = '''"""The twin of the tests as a model that transformers loads by name."""

import torch
from transformers import PretrainedConfig, PreTrainedModel

from tests.models.eva_clip_twin import HfTwin, Sizes


class Config(PretrainedConfig):
    model_type = "clip"


class EvaCLIPModel(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        twin = HfTwin(Sizes(**config.sizes))
        for name, child in list(twin.named_children()):
            setattr(self, name, child)
        self.logit_scale = twin.logit_scale
        self.sizes = twin.sizes
        self.post_init()

    def _init_weights(self, module):
        pass

    encode_image, encode_text = HfTwin.encode_image, HfTwin.encode_text
'''


@cache
def sentence_encoder(family: str) -> Path:
    """The folder of a twin of the BERT family; XLM-RoBERTa's vectors are those of first tokens."""
    temporary = tempfile.TemporaryDirectory(prefix="jaxagent-encoder-")
    atexit.register(temporary.cleanup)
    folder = bert_twins.saved(bert_twins.TWINS[family](), Path(temporary.name))
    pooling = "cls" if family == "xlm-roberta" else "mean"
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    fields = {f"pooling_mode_{pooling}_token" + "s" * (pooling == "mean"): True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    _write_tokenizer(folder, family)
    return folder


def _write_tokenizer(folder: Path, family: str) -> None:
    special = _TOKENS[family]
    words = dict.fromkeys(
        piece
        for text in ("query: passage:", *TEXTS)
        for piece, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    )
    vocab = {word: id for id, word in enumerate([*special, *words][: bert_twins.VOCAB])}
    unknown = "[UNK]" if family == "bert" else "<unk>"
    start, end = ("[CLS]", "[SEP]") if family == "bert" else ("<s>", "</s>")
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, vocab[start]), (end, vocab[end])]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": unknown}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def eva_clip(folder: Path) -> Path:
    """The folder of an EVA-CLIP with Python code, as BAAI's."""
    sizes = eva_clip_twin.Sizes()
    twin = eva_clip_twin.randomize(eva_clip_twin.HfTwin(sizes))
    fields = eva_clip_twin.hf_fields(sizes) | {
        "sizes": sizes._asdict(),
        "auto_map": {
            "AutoConfig": "modeling_twin.Config",
            "AutoModel": "modeling_twin.EvaCLIPModel",
        },
    }
    eva_clip_twin.save(twin, folder, fields)
    (folder / "modeling_twin.py").write_text(_MODEL)
    return folder
