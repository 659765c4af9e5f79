"""Sentence encoders: each published family's folder, read as it is laid out, against its authors'
recipe written out with transformers.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertModel, BertTokenizer, PreTrainedTokenizerFast

from jaxagent.models.config import ConfigError
from jaxagent.retrieval import knowledge_base as kb
from jaxagent.retrieval import text_encoder
from jaxagent.retrieval.encoders import Encoders, open_text_encoder
from jaxagent.retrieval.sentence_recipe import RecipeError, fitted
from jaxagent.retrieval.text_encoder import (
    file_digest,
    minilm_folder,
    open_minilm,
    open_sentence_encoder,
)
from jaxagent.types import Passage
from jaxagent.weights.safetensors import WeightsError
from tests.models import bert_twins as twins

needs_minilm = pytest.mark.skipif(minilm_folder() is None, reason="MiniLM is not installed")
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] query : passage represent this sentence for searching"
PIECES += " relevant passages chad is in africa what where the capital of nile ##s ?"
TEXTS = ["Chad is in Africa.", "  where is the NILE? ", "the", "capital " * 40]
BGE = "Represent this sentence for searching relevant passages: "


def wordpieces(folder: Path) -> None:
    words = PIECES.split()
    (folder / "vocab.txt").write_text("\n".join([*words, *map(str, range(60 - len(words)))]))
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)


def sentencepieces(folder: Path) -> None:
    """A tokenizer of XLM-RoBERTa's kind: unigrams, `<s> text </s>`, padding 1."""
    words = PIECES.lower().replace("##", "").split()[5:]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *(f"▁{word}" for word in words), "."]
    scores = [(piece, -float(place)) for place, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=8192,
    ).save_pretrained(folder)


def layout(folder, *, pooling="mean", normalised=True, length=16, prompts=None):
    """What sentence-transformers writes beside a model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalised else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    stated = {f"pooling_mode_{key}": mode == pooling for key, mode in modes.items()}
    stated |= {"word_embedding_dimension": 24}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))


def made(tmp_path, name, **options) -> Path:
    """The folder of a tiny encoder of that name."""
    folder = tmp_path / name
    multilingual = name in ("bge-m3", "multilingual-e5-large")
    twins.saved(twins.xlm_roberta() if multilingual else twins.bert(), folder)
    (sentencepieces if multilingual else wordpieces)(folder)
    layout(folder, **options)
    return folder


def expected(folder, texts, *, pooling, prefix, normalised=True, length=16):
    """The vectors as the models' cards compute them."""
    rows = AutoTokenizer.from_pretrained(folder)(
        [(prefix + text).strip() for text in texts],
        padding=True,
        truncation=True,
        max_length=length,
        return_tensors="pt",
    )
    rows.pop("token_type_ids", None)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        hidden = model(**rows).last_hidden_state
    mask = rows["attention_mask"].unsqueeze(-1).float()
    vectors = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    if normalised:
        vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
    return vectors.numpy()


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    """Every batch has one of two lengths and one size, so that little is compiled."""
    monkeypatch.setattr(text_encoder, "LENGTHS", (8, 16))
    monkeypatch.setattr(text_encoder, "BATCHES", (4,))


@pytest.mark.parametrize(
    ("name", "pooling", "query", "passage"),
    [
        ("e5-base-v2", "mean", "query: ", "passage: "),
        ("e5-large-v2", "mean", "query: ", "passage: "),
        ("multilingual-e5-large", "mean", "query: ", "passage: "),
        ("bge-base-en-v1.5", "cls", BGE, ""),
        ("bge-large-en-v1.5", "cls", BGE, ""),
        ("bge-m3", "cls", "", ""),
        ("all-MiniLM-L6-v2", "mean", "", ""),
    ],
)
def test_a_published_familys_vectors_are_those_of_its_card(tmp_path, name, pooling, query, passage):
    folder = made(tmp_path, name, pooling=pooling)
    encoder = open_sentence_encoder(folder)
    queries, passages = encoder.queries(TEXTS), encoder(TEXTS)
    for ours, prefix in ((queries, query), (passages, passage)):
        theirs = expected(folder, TEXTS, pooling=pooling, prefix=prefix)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(queries - passages).max() > 1e-3 or query == passage == ""
    assert encoder.name == str(folder)
    assert encoder.width == 24


def test_vectors_that_the_folder_does_not_normalise_are_left_as_they_are(tmp_path):
    folder = made(tmp_path, "e5-base-v2", normalised=False)
    ours = open_sentence_encoder(folder)(TEXTS)
    theirs = expected(folder, TEXTS, pooling="mean", prefix="passage: ", normalised=False)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(np.linalg.norm(ours, axis=1) - 1).min() > 0.1
    with pytest.raises(RecipeError, match="does not bring its vectors to length 1"):
        open_text_encoder(str(folder))


def test_a_padding_mark_among_the_words_has_no_place(tmp_path):
    folder = made(tmp_path, "bge-m3", pooling="cls")
    texts = ["chad <pad> is in africa"]
    encoder = open_sentence_encoder(folder)
    assert 1 in encoder.tokens(texts, "passage")[0]
    rows = AutoTokenizer.from_pretrained(folder)(texts, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**rows).last_hidden_state[:, 0]
    theirs = torch.nn.functional.normalize(hidden, dim=1).numpy()
    np.testing.assert_allclose(encoder(texts), theirs, atol=1e-5)


def test_long_texts_come_in_smaller_batches_with_the_same_vectors(tmp_path, monkeypatch):
    encoder = open_sentence_encoder(made(tmp_path, "e5-base-v2"))
    whole = encoder(TEXTS)
    sizes = []
    compiled = encoder._encode

    def counted(params, ids, real):
        sizes.append(ids.shape)
        return compiled(params, ids, real)

    monkeypatch.setattr(encoder, "_encode", counted)
    monkeypatch.setattr(text_encoder, "BATCHES", (2, 4))
    monkeypatch.setattr(text_encoder, "MAX_PAIRS", 2 * 16**2)
    np.testing.assert_allclose(encoder(TEXTS), whole, atol=1e-6)
    assert sizes == [(2, 16), (2, 16)]
    monkeypatch.setattr(text_encoder, "MAX_PAIRS", 4 * 16**2)
    encoder(TEXTS)
    assert sizes[2:] == [(4, 16)]


def test_a_text_of_three_tokens_keeps_one_of_its_own(tmp_path):
    encoder = open_sentence_encoder(made(tmp_path, "all-MiniLM-L6-v2", length=3))
    assert [len(row) for row in encoder.tokens(TEXTS, "passage")] == [3] * len(TEXTS)
    with pytest.raises(RecipeError, match="has places for 2 tokens; a text needs 3"):
        fitted(encoder.recipe, 2)


def test_torn_files_are_refused(tmp_path):
    folder = made(tmp_path, "e5-base-v2")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(RecipeError, match="tokenizer.json cannot be read"):
        open_sentence_encoder(folder)
    (folder / "model.safetensors").write_bytes(b"1")
    with pytest.raises(WeightsError):
        open_sentence_encoder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="config.json cannot be read"):
        open_sentence_encoder(folder)
    (folder / "modules.json").write_text("[")
    with pytest.raises(RecipeError, match="modules.json cannot be read"):
        open_sentence_encoder(folder)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    for name, error in (("mine", RecipeError), ("e5-base-v2", ConfigError)):
        (tmp_path / name).touch()
        with pytest.raises(error, match=name):
            open_sentence_encoder(tmp_path / name)


def retokenised(folder, change):
    """The folder with its tokenizer's fields changed in place."""
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    return folder


def test_a_tokenizer_with_ids_beyond_the_table_is_refused(tmp_path):
    folder = made(tmp_path, "e5-base-v2")

    def moved(fields):
        (last,) = (word for word, place in fields["model"]["vocab"].items() if place == 59)
        fields["model"]["vocab"][last] = 60

    with pytest.raises(RecipeError, match=r"tokenizer.json has ids up to 60, .* has 60 rows"):
        open_sentence_encoder(retokenised(folder, moved))


@pytest.mark.parametrize(
    ("name", "ends"), [("e5-base-v2", r"\[CLS\] and \[SEP\]"), ("bge-m3", "<s> and </s>")]
)
@pytest.mark.parametrize("case", ["none", "first", "last", "swapped"])
def test_a_tokenizer_without_special_tokens_at_both_ends_is_refused(tmp_path, name, ends, case):
    folder = made(tmp_path, name)
    open_sentence_encoder(folder)
    first, last = ("[CLS]", "[SEP]") if name[0] == "e" else ("<s>", "</s>")
    kept = {"first": f"{first} $A", "last": f"$A {last}", "swapped": f"{last} $A {first}"}

    def changed(fields):
        places = {token["content"]: token["id"] for token in fields["added_tokens"]}
        template = processors.TemplateProcessing(
            single=kept[case], special_tokens=[(one, places[one]) for one in (first, last)]
        )
        tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.post_processor = template
        fields["post_processor"] = json.loads(tokenizer.to_str())["post_processor"]

    change = changed if case in kept else lambda fields: fields.update(post_processor=None)
    with pytest.raises(RecipeError, match=f"of an empty text; the model needs {ends} at the ends"):
        open_sentence_encoder(retokenised(folder, change))


def test_padding_and_truncation_of_the_tokenizers_file_do_not_count(tmp_path):
    folder = made(tmp_path, "e5-base-v2")
    before = open_sentence_encoder(folder).tokens(TEXTS, "passage")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=12)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert open_sentence_encoder(folder).tokens(TEXTS, "passage") == before


@pytest.mark.parametrize("name", ["e5-base-v2", "bge-m3"])
def test_a_lone_surrogate_in_a_text_is_a_question_mark(tmp_path, name):
    encoder = open_sentence_encoder(made(tmp_path, name))
    for role in ("query", "passage"):
        odd = encoder.tokens(["chad \ud800", "\udfff", "the nile"], role)
        assert odd == encoder.tokens(["chad ?", "?", "the nile"], role)
    np.testing.assert_array_equal(encoder(["\ud800"]), encoder(["?"]))


def test_the_digest_is_of_all_that_makes_the_vectors(tmp_path):
    folder = made(tmp_path, "e5-base-v2")
    found = {open_sentence_encoder(folder).digest}
    layout(folder, prompts={"query": "ask: ", "document": "passage: "})
    found.add(open_sentence_encoder(folder).digest)
    layout(folder, pooling="cls", prompts={"query": "ask: ", "document": "passage: "})
    found.add(open_sentence_encoder(folder).digest)
    twins.saved(twins.randomised(twins.bert(), seed=1), folder)
    found.add(open_sentence_encoder(folder).digest)
    assert len(found) == 4
    assert {open_sentence_encoder(folder, name="other").digest} < found


def test_a_folder_is_a_text_encoder_of_the_config(tmp_path):
    folder = made(tmp_path, "e5-base-v2")
    encoder = open_text_encoder(str(folder))
    np.testing.assert_array_equal(encoder(TEXTS), open_sentence_encoder(folder)(TEXTS))


@needs_minilm
def test_minilm_equals_transformers_and_keeps_the_digest_of_older_bases(monkeypatch):
    monkeypatch.setattr(text_encoder, "LENGTHS", (16, 24, 32, 48, 64, 128, 256))
    texts = ["Chad. Capital: N'Djamena", "Côte d'Ivoire lies on the Gulf. " * 40, "<|im_end|> 日本"]
    folder = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = BertModel.from_pretrained(folder).eval()(**rows).last_hidden_state
        mask = rows["attention_mask"][:, :, None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        theirs = torch.nn.functional.normalize(mean, dim=-1).numpy()
    encoder = open_minilm(folder)
    np.testing.assert_allclose(encoder(texts), theirs, atol=1e-5)
    np.testing.assert_array_equal(encoder.queries(texts), encoder(texts))
    assert encoder.digest == file_digest(folder / "model.safetensors")
    assert encoder.name == "minilm"


class White:
    """An image encoder that sees nothing."""

    name, digest = "white", "1"

    def __call__(self, images):
        return np.ones((len(images), 1), np.float32)


class Sides:
    """Vectors that tell passages from queries."""

    name, digest = "sides", "1"

    def __call__(self, texts):
        return np.array([["bee" not in text, "bee" in text] for text in texts], np.float32)

    def queries(self, texts):
        return np.array([[0, 1] for _ in texts], np.float32)


def test_a_base_encodes_its_passages_as_such_and_its_queries_as_such(tmp_path):
    passages = [Passage(id=name, title=name, text=name) for name in ("ant", "bee", "fly")]
    base = kb.build(
        tmp_path,
        [kb.Entity(id="a", name="a", images=("a",))],
        passages,
        images=lambda key: np.zeros((2, 2, 3), np.uint8),
        encoders=Encoders(White(), Sides()),
    )
    hits = base.text_index.search(["anything"], 1)
    assert hits.ids.tolist() == [[1]]
    assert hits.scores.tolist() == [[1.0]]
