"""EVA-CLIP's folders to parameters and back, in both of their forms."""

import json
import re

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.torch import load_file, save_file

from jaxagent.models import eva_clip_config
from jaxagent.models.config import ConfigError
from jaxagent.models.eva_clip import Model
from jaxagent.trees import flat, map_named
from jaxagent.weights.eva_clip import read_config, read_eva_clip, table, write_eva_clip
from jaxagent.weights.safetensors import WeightsError
from tests.models import eva_clip_twin as twins
from tests.models.eva_clip_twin import HfTwin, OpenClipTwin, Sizes

SIZES = {
    "8B": Sizes(rms=True, biases=""),
    "EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=4),
    "open_clip EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=16),
    "open_clip EVA02 E": Sizes(norm_after=True, biases="qv", fused=True),
}


def tiny(monkeypatch, name):
    """A random twin of this name, and the fields of its config."""
    sizes = SIZES[name]
    if "open_clip" not in name:
        return twins.randomize(HfTwin(sizes)), twins.hf_fields(sizes)
    row = (sizes.width, sizes.layers, sizes.heads, sizes.mlp_width)
    image = (
        eva_clip_config._plain(*row, norm_after=True)
        if sizes.norm_after
        else eva_clip_config._eva02(*row, sizes.patch)
    )
    image = eva_clip_config.replace(image, image=sizes.image, patch=sizes.patch)
    monkeypatch.setitem(eva_clip_config._TIMM, "tiny", image)
    return twins.randomize(OpenClipTwin(sizes)), twins.open_clip_fields(sizes, "tiny")


@pytest.fixture
def twin(request, tmp_path, monkeypatch):
    """A twin whose folder is `tmp_path / "twin"`."""
    model, fields = tiny(monkeypatch, request.param)
    twins.save(model, tmp_path / "twin", fields)
    return model


every = pytest.mark.parametrize("twin", SIZES, indirect=True)


def spoil(folder, change):
    """Rewrites the folder's tensors after `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@every
@pytest.mark.parametrize("max_bytes", [2**30, 20_000])
def test_the_twin_reads_what_we_write_bit_for_bit(twin, tmp_path, max_bytes):
    config, params = read_eva_clip(tmp_path / "twin")
    made = tmp_path / "made"
    write_eva_clip(made, config, params, template=tmp_path / "twin", max_bytes=max_bytes)
    assert (made / "model.safetensors.index.json").exists() == (max_bytes < 2**30)
    tensors = {}
    for path in made.glob("*.safetensors"):
        tensors |= load_file(path)
    buffers = {name for name, _ in twin.named_buffers()}
    again = type(twin)(twin.sizes)
    again.load_state_dict(tensors | {name: twin.state_dict()[name] for name in buffers})
    for key, tensor in again.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[key]), key
    assert read_config(made) == config


@every
def test_each_tensor_has_one_row_and_each_parameter_too(twin, tmp_path):
    config = read_config(tmp_path / "twin")
    rows = table(config)
    keys = [key for row in rows for key in row.hf_keys()]
    assert sorted(keys) == sorted(name for name, _ in twin.named_parameters())
    assert sorted(row.name for row in rows) == sorted(flat(Model(config).shapes()))


@every
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_files_give_the_rounded_weights(twin, tmp_path, dtype):
    folder = tmp_path / "twin"
    whole = read_eva_clip(folder).params
    twin.to(getattr(torch, dtype))
    twins.save(twin, folder, json.loads(next(folder.glob("*config.json")).read_text()))
    as_they_are = read_eva_clip(folder, dtype=dtype).params
    for name, leaf in flat(as_they_are).items():
        assert leaf.dtype == dtype
        np.testing.assert_array_equal(leaf, np.asarray(flat(whole)[name]).astype(dtype), name)
    widened = read_eva_clip(folder).params
    jax.tree.map(
        lambda half, wide: np.testing.assert_array_equal(half.astype("float32"), wide),
        as_they_are,
        widened,
    )


@every
def test_sharded_parameters_are_the_whole_ones(twin, tmp_path):
    folder = tmp_path / "twin"
    config, whole = read_eva_clip(folder)
    mesh = Mesh(np.asarray(jax.devices()).reshape(8), ("fsdp",))

    def sharding(name, leaf):
        axes = [i for i, length in enumerate(leaf.shape) if length % 8 == 0]
        spec = [None] * len(leaf.shape)
        if axes:
            spec[axes[-1]] = "fsdp"
        return NamedSharding(mesh, PartitionSpec(*spec))

    shardings = map_named(sharding, Model(config).shapes())
    params = read_eva_clip(folder, shardings=shardings).params
    cut = [leaf for leaf in jax.tree.leaves(params) if not leaf.is_fully_replicated]
    assert len(cut) > 10
    jax.tree.map(np.testing.assert_array_equal, params, whole)


@pytest.mark.parametrize("twin", ["8B"], indirect=True)
def test_every_misfit_is_named_in_one_error(twin, tmp_path):
    def change(tensors):
        del tensors["visual_projection.bias"]
        tensors["vision_model.pre_layernorm.weight"] = torch.zeros(3)
        tensors["text_projection.weight"] = torch.zeros(2, 3)

    spoil(tmp_path / "twin", change)
    with pytest.raises(WeightsError) as found:
        read_eva_clip(tmp_path / "twin")
    for part in ("visual_projection.bias", "pre_layernorm", r"text_projection.*\(16, 24\)"):
        assert re.search(part, str(found.value))


@pytest.mark.parametrize("twin", ["EVA02 L"], indirect=True)
def test_buffers_of_older_files_are_passed_over(twin, tmp_path):
    def change(tensors):
        assert "vision_model.embeddings.position_ids" in tensors
        prefix = "vision_model.encoder.layers.0.self_attn.rope"
        tensors |= {f"{prefix}.freqs_cos": torch.zeros(2), f"{prefix}.freqs_sin": torch.zeros(2)}

    before = read_eva_clip(tmp_path / "twin").params
    spoil(tmp_path / "twin", change)
    jax.tree.map(np.testing.assert_array_equal, read_eva_clip(tmp_path / "twin").params, before)


@pytest.mark.parametrize("twin", ["8B"], indirect=True)
def test_a_folder_that_is_none_is_refused(twin, tmp_path):
    folder = tmp_path / "twin"
    with pytest.raises(ConfigError, match="holds neither"):
        read_config(tmp_path / "nowhere")
    config, params = read_eva_clip(folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"projection_dim": 8}))
    with pytest.raises(ConfigError, match="other sizes"):
        write_eva_clip(tmp_path / "made", config, params, template=folder)


@pytest.mark.parametrize("twin", ["open_clip EVA02 L"], indirect=True)
def test_the_name_that_open_clip_gives_its_file_is_read(twin, tmp_path):
    folder = tmp_path / "twin"
    before = read_eva_clip(folder).params
    (folder / "model.safetensors").rename(folder / "open_clip_model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, read_eva_clip(folder).params, before)


@pytest.mark.parametrize("name", ["config.json", "open_clip_config.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (None, "config.json cannot be read .* Point at a folder"),
    ],
)
def test_a_config_that_is_no_object_is_refused(tmp_path, name, text, message):
    path = tmp_path / name
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file holds neither .* Point at a folder"):
        read_config(tmp_path / "file")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("twin", ["8B"], indirect=True)
def test_the_config_names_the_dtype_of_the_files(twin, tmp_path, dtype, in_place):
    template = tmp_path / "twin"
    config, params = read_eva_clip(template)
    fields = json.loads((template / "config.json").read_text()) | {"torch_dtype": "float16"}
    fields["vision_config"] |= {"dtype": "float16"}
    (template / "config.json").write_text(json.dumps(fields))
    (template / "preprocessor_config.json").write_text('{"dtype": "float16"}')
    folder = template if in_place else tmp_path / "made"
    write_eva_clip(folder, config, params, template=template, dtype=dtype)
    fields["torch_dtype"] = fields["vision_config"]["dtype"] = dtype
    assert json.loads((folder / "config.json").read_text()) == fields
    assert (folder / "preprocessor_config.json").read_text() == '{"dtype": "float16"}'


@pytest.mark.parametrize("twin", ["open_clip EVA02 L"], indirect=True)
def test_a_config_of_open_clip_is_copied_as_it_is(twin, tmp_path):
    template = tmp_path / "twin"
    config, params = read_eva_clip(template)
    write_eva_clip(tmp_path / "made", config, params, template=template, dtype="bfloat16")
    name = "open_clip_config.json"
    assert (tmp_path / "made" / name).read_bytes() == (template / name).read_bytes()
    assert not (tmp_path / "made" / "config.json").exists()


@pytest.mark.parametrize("twin", ["8B"], indirect=True)
def test_the_config_is_written_last(twin, tmp_path):
    config, params = read_eva_clip(tmp_path / "twin")
    made = tmp_path / "made"
    write_eva_clip(made, config, params, template=tmp_path / "twin")
    params["log_scale"] = np.full_like(params["log_scale"], 1e9)  # too large for float16
    with pytest.raises(WeightsError):
        write_eva_clip(made, config, params, template=tmp_path / "twin", dtype="float16")
    assert not (made / "config.json").exists()
