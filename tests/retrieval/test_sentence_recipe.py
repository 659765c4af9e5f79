"""What a folder says of its vectors, and the folders that leave it open."""

import json
import re

import pytest

from jaxagent.retrieval.sentence_recipe import MINILM, Recipe, RecipeError, read_recipe
from tests.retrieval.test_text_encoder import BGE, layout


def recipe(**fields):
    chosen = {"pooling": "mean", "normalised": True, "max_tokens": 16}
    return Recipe(**chosen | {"query_prefix": "", "passage_prefix": ""} | fields)


def test_the_folders_own_prompts_come_before_the_familys(tmp_path):
    layout(tmp_path, prompts={"query": "ask: ", "document": "say: "})
    assert read_recipe(tmp_path) == recipe(query_prefix="ask: ", passage_prefix="say: ")
    layout(tmp_path, prompts={"query": "ask: "})
    assert read_recipe(tmp_path, known=MINILM) == recipe(query_prefix="ask: ")
    layout(tmp_path, prompts={"passage": "p: ", "corpus": "c: "})
    assert read_recipe(tmp_path) == recipe(passage_prefix="p: ")
    prompts = {"prompts": {"sts": "q: "}, "default_prompt_name": "sts"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert read_recipe(tmp_path) == recipe(query_prefix="q: ", passage_prefix="q: ")


def test_empty_prompts_are_the_familys_where_it_is_known_and_else_none(tmp_path):
    known = tmp_path / "e5-large-v2"
    other = tmp_path / "mine"
    for folder in (known, other):
        folder.mkdir()
        layout(folder, prompts={"query": "", "document": ""})
    assert read_recipe(known) == recipe(query_prefix="query: ", passage_prefix="passage: ")
    assert read_recipe(other) == recipe()


def test_a_folder_of_the_hubs_cache_is_known_by_its_repository(tmp_path):
    folder = tmp_path / "models--BAAI--bge-large-en-v1.5" / "snapshots" / "d4aa6901d3a41ba"
    folder.mkdir(parents=True)
    assert read_recipe(folder) == recipe(pooling="cls", max_tokens=512, query_prefix=BGE)


def test_the_newer_word_for_a_pooling_is_read(tmp_path):
    layout(tmp_path, prompts={"query": "", "document": ""})
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert read_recipe(tmp_path).pooling == "cls"


def test_texts_are_lower_cased_where_the_folder_says_so(tmp_path):
    layout(tmp_path, prompts={"query": "Q: ", "document": ""})
    assert read_recipe(tmp_path).text(" Chad ", "query") == "Q:  Chad"
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert read_recipe(tmp_path).text("Chad", "query") == "q: chad"


def test_the_longest_text_is_the_folders_the_familys_or_the_tokenizers(tmp_path):
    folder = tmp_path / "bge-m3"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 77}')
    assert read_recipe(folder).max_tokens == 8192
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    assert read_recipe(folder).max_tokens == 40
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    other = folder.rename(tmp_path / "mine")
    layout(other, prompts={"query": "", "document": ""}, length=None)
    assert read_recipe(other).max_tokens == 77
    (other / "tokenizer_config.json").write_text('{"model_max_length": true}')
    with pytest.raises(RecipeError, match="tokenizer_config.json has model_max_length=True"):
        read_recipe(other)
    (other / "tokenizer_config.json").unlink()
    assert read_recipe(other).max_tokens == 2**31


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modules.json": None}, "has no modules.json and its name is none of a known family"),
        ({"config_sentence_transformers.json": {}}, "does not say what stands before a query"),
        ({"config_sentence_transformers.json": {"prompts": {"query": ""}}}, "does not say what"),
        ({"config_sentence_transformers.json": {"prompts": {"query": 3}}}, "that are no texts"),
        ({"config_sentence_transformers.json": []}, "is no JSON object"),
        ({"1_Pooling/config.json": None}, "1_Pooling.config.json is missing"),
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "pools by max; one of"),
        (
            {
                "1_Pooling/config.json": {
                    "pooling_mode_max_tokens": True,
                    "pooling_mode_cls_token": True,
                }
            },
            "pools by max and cls",
        ),
        ({"1_Pooling/config.json": {}}, "pools by nothing"),
        (
            {"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False}},
            "leaves the prefix out",
        ),
        (
            {"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": 0}},
            "include_prompt=0; it must be true or false",
        ),
        (
            {"sentence_bert_config.json": {"do_lower_case": "yes"}},
            "do_lower_case='yes'; it must be true or false",
        ),
        *(
            (
                {"sentence_bert_config.json": {"max_seq_length": length}},
                f"sentence_bert_config.json has max_seq_length={re.escape(repr(length))}; it must "
                "be an integer of at least 3",
            )
            for length in (True, 0, 1, 2, -1, 8.0, "8", [8])
        ),
        ({"modules.json": {}}, "is no list of modules"),
        ({"modules.json": [{"type": "a.Transformer"}]}, "lists Transformer; Transformer, Pooling"),
        (
            {
                "modules.json": [
                    {"type": "a.Transformer"},
                    {"type": "a.Pooling"},
                    {"type": "a.Dense"},
                ]
            },
            "lists Transformer, Pooling, Dense",
        ),
        (
            {"modules.json": [{"type": "T.Transformer", "path": "0_T"}, {"type": "P.Pooling"}]},
            "keeps the Transformer in '0_T'",
        ),
    ],
)
def test_a_folder_that_leaves_its_recipe_open_is_refused(tmp_path, change, message):
    layout(tmp_path, prompts={"query": "", "document": ""})
    read_recipe(tmp_path)
    for name, content in change.items():
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(RecipeError, match=message):
        read_recipe(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff", None])
@pytest.mark.parametrize(
    "name",
    [
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
        *("tokenizer_config.json", "config_sentence_transformers.json"),
    ],
)
def test_a_file_of_the_recipe_that_is_not_json_is_refused(tmp_path, name, text):
    layout(tmp_path, prompts={"query": "", "document": ""}, length=None)
    read_recipe(tmp_path)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecipeError, match=f"{name} cannot be read .* Download it again"):
        read_recipe(tmp_path)
