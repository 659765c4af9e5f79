"""Sizes read from a `config.json`, and what is refused."""

import json

import jax
import numpy as np
import pytest
from transformers import Qwen3VLConfig as HFConfig

from jaxagent.models.config import ConfigError
from jaxagent.models.policy import PolicyConfig
from tests import tiny
from tests.models import families
from tests.models.sizes import SIZES

EIGHT_B = SIZES["Qwen3-VL-8B-Instruct"].fields


def changed(part, **fields):
    return EIGHT_B | {part: EIGHT_B[part] | fields}


def test_the_published_config_is_read():
    config = PolicyConfig.from_hf(EIGHT_B)
    assert config.text.rope_theta == 5e6
    assert config.text.rope_sections == (24, 20, 20)
    assert config.text.deepstack == 3
    assert config.vision.side == 48


def test_what_transformers_writes_is_read_alike(tmp_path):
    HFConfig(**EIGHT_B).save_pretrained(tmp_path)
    rewritten = json.loads((tmp_path / "config.json").read_text())
    assert PolicyConfig.from_hf(rewritten) == PolicyConfig.from_hf(EIGHT_B)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "qwen3_vl_moe"}, "holds a 'qwen3_vl_moe' model"),
        ({}, "holds a None model"),
        ([], r"config\.json is \[\]; it must be an object"),
        (None, r"config\.json is None"),
        (EIGHT_B | {"text_config": None}, "text_config is None; it must be an object"),
        (EIGHT_B | {"vision_config": [1]}, r"vision_config is \[1\]"),
        (changed("text_config", rope_scaling=[1]), r"rope_scaling is \[1\]"),
        ({"model_type": "qwen3_vl"}, "lacks the field 'vision_config'"),
        (changed("text_config", num_key_value_heads=5), "not a multiple"),
        (changed("text_config", hidden_act="gelu"), "hidden_act='gelu'"),
        (changed("text_config", head_dim=64), r"sums to 64; head_dim=64 needs 32"),
        (changed("text_config", rope_scaling={"rope_type": "yarn"}), "rope_type='yarn'"),
        (changed("text_config", head_dim=63), "head_dim=63 is odd"),
        (changed("vision_config", num_heads=7), "hidden_size=1152 is not a multiple of 4 x"),
        (changed("vision_config", num_position_embeddings=10), "not a square"),
        (changed("vision_config", deepstack_visual_indexes=[3, 40]), "must rise within"),
        (changed("vision_config", deepstack_visual_indexes=None), "indexes=None is no list"),
        (changed("vision_config", patch_size="16"), "vision patch_size='16' is no integer"),
        (changed("vision_config", out_hidden_size=64), "features have 64 numbers"),
        (changed("text_config", hidden_size=None), "text hidden_size=None is no integer"),
        (changed("text_config", num_hidden_layers="3"), "num_hidden_layers='3' is no integer"),
        (changed("text_config", vocab_size=0), "vocab_size=0 is no integer of at least 1"),
        (changed("text_config", rms_norm_eps="1e-6"), "rms_norm_eps='1e-6' is no number"),
        (EIGHT_B | {"image_token_id": None}, "image_token_id=None is no integer"),
        (EIGHT_B | {"image_token_id": 151936}, "image_token_id=151936 is no token of a vocab_size"),
        (EIGHT_B | {"tie_word_embeddings": "false"}, "tie_word_embeddings='false' is neither true"),
        (changed("text_config", attention_bias="false"), "attention_bias='false' is neither true"),
        (
            changed("text_config", rope_parameters={"rope_theta": float("inf")}),
            "rope_theta=inf is no",
        ),
        (
            changed("text_config", rope_scaling={"mrope_section": [80, -36, 20]}),
            r"mrope_section=\[80, -36, 20\] is no list of three sizes",
        ),
        (
            changed("text_config", rope_scaling={"mrope_section": [32, 32]}),
            r"mrope_section=\[32, 32\] is no list of three sizes",
        ),
        ({"model_type": ["qwen3_vl"]}, r"holds a \['qwen3_vl'\] model"),
    ],
)
def test_what_cannot_run_is_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=message):
        PolicyConfig.from_hf(fields)


def test_models_of_the_same_sizes_are_one_static_argument():
    assert tiny.model() == tiny.model()
    assert hash(tiny.model()) == hash(tiny.model())
    assert tiny.model() != tiny.model(layers=4)


def test_initial_parameters_depend_on_the_key_alone():
    first, again, other = (tiny.model().init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    table = np.asarray(first["text"]["embed"]["table"])
    assert (table != np.asarray(other["text"]["embed"]["table"])).all()


@pytest.mark.parametrize(
    ("top", "text"), [(True, False), (False, True), (None, True), (True, None)]
)
@pytest.mark.parametrize("family", families.ONE_OF_EACH)
def test_the_tie_is_that_of_transformers_where_two_fields_speak_of_it(family, top, text):
    fields = families.hf_fields(families.CASES[families.ONE_OF_EACH[family]])
    for part, value in ((fields, top), (fields["text_config"], text)):
        part.pop("tie_word_embeddings", None)
        part |= {} if value is None else {"tie_word_embeddings": value}
    model = families.with_random_parameters(family, fields)
    shared = model.lm_head.weight is model.model.language_model.embed_tokens.weight
    assert PolicyConfig.from_hf(fields | {"model_type": family}).text.tied == shared


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_what_transformers_does_not_read_of_a_family_is_not_read(family):
    case = families.CASES[families.ONE_OF_EACH[family]]
    fields = families.hf_fields(case) | {"model_type": family}
    plain = PolicyConfig.from_hf(fields)
    fields["text_config"] |= {"attention_bias": True, "head_dim": 8}
    assert PolicyConfig.from_hf(fields) == plain


def test_heads_of_qwen3_have_128_numbers_where_the_config_says_nothing():
    fields = changed("text_config", num_attention_heads=16)
    for absent in ({}, {"head_dim": None}):
        text = {k: v for k, v in fields["text_config"].items() if k != "head_dim"} | absent
        assert PolicyConfig.from_hf(fields | {"text_config": text}).text.head_size == 128
