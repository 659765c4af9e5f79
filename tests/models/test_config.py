"""Sizes read from a `config.json`, and what is refused."""

import json

import jax
import numpy as np
import pytest
from transformers import Qwen3VLConfig as HFConfig

from jaxagent.models.config import ConfigError
from jaxagent.models.policy import PolicyConfig
from tests import tiny
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
