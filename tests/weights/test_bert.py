"""BERT's folders: read under every name of their keys, written so that transformers loads them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, BertForMaskedLM, XLMRobertaForSequenceClassification

from jaxagent.models.bert import Model
from jaxagent.models.config import ConfigError
from jaxagent.trees import flat
from jaxagent.weights.bem import read_bem
from jaxagent.weights.bert import read_bert, read_bert_config, write_bert
from jaxagent.weights.safetensors import WeightsError
from tests.models import bert_twins as twins

families = pytest.mark.parametrize("family", twins.TWINS)


def equal(params, others):
    named, expected = flat(params), flat(others)
    assert named.keys() == expected.keys()
    return all(np.array_equal(named[name], expected[name]) for name in named)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@families
def test_transformers_loads_what_was_written_bit_for_bit(tmp_path, family, dtype):
    twin = twins.TWINS[family]().to(getattr(torch, dtype))
    source = twins.saved(twin, tmp_path / "source")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    config, params = read_bert(source, dtype=dtype)
    target = tmp_path / "target"
    write_bert(target, config, params, template=source, dtype=dtype)
    loaded = AutoModel.from_pretrained(target)
    assert loaded.dtype == getattr(torch, dtype)
    for key, tensor in twin.state_dict().items():
        if not key.startswith("pooler"):
            assert torch.equal(loaded.state_dict()[key], tensor), key
    assert (target / "1_Pooling" / "config.json").read_text() == "{}"
    assert equal(read_bert(target, dtype=dtype).params, params)


def test_a_rounded_export_is_loaded_in_its_own_dtype(tmp_path):
    source = twins.saved(twins.bert(), tmp_path / "source")
    config, params = read_bert(source)
    write_bert(tmp_path / "half", config, params, template=source, dtype="bfloat16")
    assert AutoModel.from_pretrained(tmp_path / "half").dtype == torch.bfloat16
    write_bert(source, config, params, template=source, dtype="bfloat16")  # in place
    assert equal(read_bert(source).params, read_bert(tmp_path / "half").params)


@pytest.mark.parametrize(
    ("make", "head", "prefix"),
    [
        (twins.bert, BertForMaskedLM, "bert."),
        (twins.xlm_roberta, XLMRobertaForSequenceClassification, "roberta."),
    ],
)
def test_keys_behind_the_name_of_the_family_are_read(tmp_path, make, head, prefix):
    plain = read_bert(twins.saved(make(), tmp_path / "plain"))
    whole = head(make().config)
    whole.base_model.load_state_dict(make().state_dict(), strict=False)
    twins.saved(whole, tmp_path / "headed")
    keys = load_file(tmp_path / "headed" / "model.safetensors")
    assert any(key.startswith(prefix) for key in keys)
    assert equal(read_bert(tmp_path / "headed").params, plain.params)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_older_names_of_norms_and_the_buffer_of_places_are_read(tmp_path, prefix):
    folder = twins.saved(twins.bert(), tmp_path)
    expected = read_bert(folder).params
    path = folder / "model.safetensors"
    older = {
        prefix
        + key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for key, tensor in load_file(path).items()
    }
    older[f"{prefix}embeddings.position_ids"] = np.arange(20)[None]
    assert any(key.endswith("gamma") for key in older)
    save_file(older, path, metadata={"format": "pt"})
    assert equal(read_bert(folder).params, expected)


def test_parameters_are_placed_by_shardings_and_given_the_dtype(tmp_path):
    folder = twins.saved(twins.bert(), tmp_path)
    config = read_bert_config(folder)
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))

    def placed(leaf):  # the last axis that two devices can share
        axes = [axis for axis, length in enumerate(leaf.shape) if length % 2 == 0]
        names = [None] * len(leaf.shape)
        names[axes[-1]] = "tensor"
        return NamedSharding(mesh, PartitionSpec(*names))

    shardings = jax.tree.map(placed, Model(config).shapes())
    params = read_bert(folder, dtype=jnp.bfloat16, shardings=shardings).params
    whole = read_bert(folder).params
    for name, leaf in flat(params).items():
        assert leaf.dtype == jnp.bfloat16
        assert leaf.sharding == flat(shardings)[name]
        np.testing.assert_array_equal(leaf, flat(whole)[name].astype(jnp.bfloat16))


def test_what_does_not_fit_comes_in_one_message(tmp_path):
    folder = twins.saved(twins.bert(), tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("embeddings.LayerNorm.bias")
    tensors["embeddings.extra.weight"] = np.zeros(3, np.float32)
    tensors["encoder.layer.1.output.dense.bias"] = np.zeros(3, np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="3 problems") as error:
        read_bert(folder)
    for part in ("embeddings.LayerNorm.bias", "embeddings.extra", "layer.1.output.dense.bias"):
        assert part in str(error.value)


def test_a_folder_without_its_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config.json cannot be read .* Point at a folder"):
        read_bert(tmp_path / "nowhere")
    folder = twins.saved(twins.bert(), tmp_path / "here")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError):
        read_bert(folder)
    path.unlink()
    with pytest.raises(WeightsError, match=r"holds no model.safetensors"):
        read_bert(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (None, "config.json cannot be read"),
    ],
)
@pytest.mark.parametrize("read", [read_bert, read_bert_config, read_bem])
def test_a_config_that_is_no_object_is_refused(tmp_path, read, text, message):
    path = tmp_path / "config.json"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file.config.json cannot be read"):
        read(tmp_path / "file")


def test_a_template_of_other_sizes_is_refused(tmp_path):
    config, params = read_bert(twins.saved(twins.bert(), tmp_path / "one"))
    other = twins.saved(twins.bert(vocab_size=61), tmp_path / "other")
    with pytest.raises(ConfigError, match="an encoder of other sizes"):
        write_bert(tmp_path / "new", config, params, template=other)
    assert not (tmp_path / "new").exists()


def test_the_config_is_written_last(tmp_path):
    source = twins.saved(twins.bert(), tmp_path / "source")
    config, params = read_bert(source)
    params["norm"]["bias"] = np.full(24, 1e9, np.float32)  # too large for float16
    with pytest.raises(WeightsError):
        write_bert(tmp_path / "new", config, params, template=source, dtype="float16")
    assert not (tmp_path / "new" / "config.json").exists()
    assert json.loads((source / "config.json").read_text())["dtype"] == "float32"
