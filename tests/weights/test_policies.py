"""The tables of the policies, both ways and in every layout of keys that transformers reads."""

import json
import re
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForImageTextToText

from jaxagent.weights import policies
from jaxagent.weights.folder import read_policy, write_policy
from jaxagent.weights.safetensors import WeightsError
from tests.models import families

every_case = pytest.mark.parametrize("name", families.CASES)
every_family = pytest.mark.parametrize("name", families.ONE_OF_EACH.values())


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def with_keys(folder, target, rename):
    """A copy of a folder whose tensors have other names."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(key): tensor for key, tensor in tensors.items()}
    save_file(renamed, target / "model.safetensors", metadata={"format": "pt"})
    return target


@every_case
def test_what_we_write_transformers_reads_bit_for_bit(name, tmp_path):
    folder = families.folder(name)
    config, params = read_policy(folder)
    write_policy(tmp_path, config, params, template=folder, max_bytes=100_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    original, again = (
        AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).state_dict()
        for path in (folder, tmp_path)
    )
    assert set(original) == set(again)
    for key, tensor in original.items():
        assert torch.equal(tensor, again[key]), key


@every_case
def test_the_table_names_every_parameter_of_transformers_once(name):
    case = families.CASES[name]
    model = families.with_random_parameters(case.family, families.hf_fields(case))
    config, _ = read_policy(families.folder(name))
    keys = [key for row in policies.table(config) for key in row.hf_keys()]
    assert len(keys) == len(set(keys))
    assert set(keys) == {key for key, _ in model.named_parameters()}


@every_family
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_of_several_parts_are_read(name, dtype, tmp_path):
    theirs = AutoModelForImageTextToText.from_pretrained(
        families.folder(name), dtype=torch.float32
    ).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    read = read_policy(tmp_path, dtype=dtype).params
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    rounded = jax.tree.map(
        lambda leaf: np.asarray(leaf, kind), read_policy(families.folder(name)).params
    )
    equal(read, rounded)


def present(key):
    """The present name of a tensor, which transformers saves under its published one."""
    key = re.sub(r"^visual\.", "model.visual.", key)
    return re.sub(r"^model\.(?!visual\.)", "model.language_model.", key)


LAYOUTS = {
    "published": lambda key: key,
    "present": present,
    "without a head": lambda key: present(key).removeprefix("model."),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_every_layout_of_keys_that_transformers_reads_is_read(family, layout, tmp_path):
    name = next(
        name for name, case in families.CASES.items() if case.family == family and case.tied
    )
    folder = families.folder(name)
    assert "visual.merger.mlp.0.weight" in load_file(folder / "model.safetensors")
    other = with_keys(folder, tmp_path / "other", LAYOUTS[layout])
    equal(read_policy(other).params, read_policy(folder).params)
    if layout != "without a head":  # so transformers says too
        theirs = AutoModelForImageTextToText.from_pretrained(other, dtype=torch.float32)
        ours = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        for key, tensor in ours.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[key]), key


def test_an_older_and_a_newer_name_of_one_tensor_are_refused(tmp_path):
    name = families.ONE_OF_EACH["qwen2_vl"]
    older = shutil.copytree(families.folder(name), tmp_path / "older")
    tensors = load_file(older / "model.safetensors")
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"]
    save_file(tensors, older / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"model\.language_model\.norm\.weight"):
        read_policy(older)


def test_published_fields_at_the_top_are_read_as_nested_ones(tmp_path):
    name = families.ONE_OF_EACH["qwen2_5_vl"]
    folder = families.folder(name)
    fields = json.loads((folder / "config.json").read_text())
    text = fields.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "model_type": fields["model_type"]}
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    shutil.copytree(folder, tmp_path / "flat")
    (tmp_path / "flat" / "config.json").write_text(json.dumps(text | fields))
    flat, nested = read_policy(tmp_path / "flat"), read_policy(folder)
    assert flat.config == nested.config
    equal(flat.params, nested.params)


def test_a_head_that_is_not_the_table_of_a_tied_folder_is_refused(tmp_path):
    name = next(name for name, case in families.CASES.items() if case.tied)
    folder = shutil.copytree(families.folder(name), tmp_path / "policy")
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    for head, fine in ((table, True), (table + 1e-6, False), (table[1:], False)):
        both = tensors | {"lm_head.weight": head}
        save_file(both, folder / "model.safetensors", metadata={"format": "pt"})
        if fine:
            equal(read_policy(folder).params, read_policy(families.folder(name)).params)
        else:
            with pytest.raises(WeightsError, match=r"its lm_head\.weight is not its embedding"):
                read_policy(folder)


@every_family
def test_transformers_loads_what_we_write_in_the_dtype_that_it_has(name, tmp_path):
    template = shutil.copytree(families.folder(name), tmp_path / "template")
    fields = json.loads((template / "config.json").read_text())
    fields |= {"dtype": "bfloat16"}
    fields["text_config"] |= {"dtype": "bfloat16"}
    (template / "config.json").write_text(json.dumps(fields))
    config, params = read_policy(template)
    for dtype in ("float32", "float16"):
        write_policy(tmp_path / dtype, config, params, template=template, dtype=dtype)
        model = AutoModelForImageTextToText.from_pretrained(tmp_path / dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    write_policy(template, config, params, template=template, dtype="float32")
    assert json.loads((template / "config.json").read_text())["dtype"] == "float32"
