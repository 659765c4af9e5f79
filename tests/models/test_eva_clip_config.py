"""EVA-CLIP's published sizes, and the configs that are refused."""

import pytest

from jaxagent.models.config import ConfigError
from jaxagent.models.eva_clip import Model
from jaxagent.models.eva_clip_config import EvaClipConfig
from jaxagent.trees import num_parameters
from tests.models import eva_clip_twin as twins
from tests.models.eva_clip_twin import Sizes


def published(width: int, layers: int, heads: int, embedding: int, image: int = 224):
    """The config of one of BAAI's folders; its texts are those of EVA02 E plus."""
    sizes = Sizes(
        width=width,
        heads=heads,
        mlp_width=5 * width,
        layers=layers,
        image=image,
        patch=14,
        rms=True,
        biases="",
        text_width=1280,
        text_heads=20,
        text_mlp_width=5120,
        text_layers=32,
        vocab=49_408,
        positions=77,
        embedding=embedding,
    )
    return EvaClipConfig.from_hf(twins.hf_fields(sizes))


# The model cards round their counts (8.1B, 18.1B in all; 7.5B, 17.5B for images). The sizes of the
# published files tell them to three or four digits: in float32, four shards of 9.97, 9.93, 9.80 and
# 3.18 GB of BAAI/EVA-CLIP-8B and 30.64 GiB of EVA_CLIP_8B_psz14_plus_s0.6B.pt; in float16, 36.7 GB
# of EVA_CLIP_18B_psz14_s6B.fp16.pt. The text tower is that of EVA02 E plus below but for its
# projection.
@pytest.mark.parametrize(
    ("config", "count", "file_size", "rounding"),
    [
        (published(4096, 32, 32, 1280), 8_220_749_825, 32.88e9, 0.02e9),
        (published(4096, 32, 32, 1280, 448), 8_223_895_553, 30.64 * 2**30, 0.005 * 2**30),
        (published(5120, 48, 40, 1536), 18_325_483_777, 36.7e9, 0.05e9),
    ],
)
def test_published_sizes_have_the_published_count(config, count, file_size, rounding):
    shapes = Model(config).shapes()
    assert num_parameters(shapes) == count
    item_size = 2 if count > 10e9 else 4
    assert abs(item_size * count - file_size) < rounding


# Whole counts: open_clip 3.3.0 with timm 1.0.31, its models built on the meta device. In millions
# with two digits they stand in open_clip's docs/model_profile.csv.
@pytest.mark.parametrize(
    ("name", "embedding", "size", "text", "image_count", "count"),
    [
        ("eva02_base_patch16_clip_224", 512, 224, (512, 8, 12), "86.26", 149_691_137),
        ("eva02_large_patch14_clip_224", 768, 224, (768, 12, 12), "304.11", 427_755_457),
        ("eva02_large_patch14_clip_336", 768, 336, (768, 12, 12), "304.43", 428_083_137),
        ("eva_giant_patch14_clip_224", 1024, 224, (768, 12, 12), "1012.59", 1_136_435_841),
        ("eva_giant_patch14_224", 1024, 224, (1024, 16, 24), "1012.59", 1_366_621_569),
        ("eva02_enormous_patch14_clip_224", 1024, 224, (1024, 16, 24), "4350.56", 4_704_589_569),
        ("eva02_enormous_patch14_clip_224", 1024, 224, (1280, 20, 32), "4350.56", 5_044_889_089),
    ],
)
def test_smaller_relatives_have_the_published_count(
    name, embedding, size, text, image_count, count
):
    width, heads, layers = text
    sizes = Sizes(
        image=size,
        embedding=embedding,
        text_width=width,
        text_heads=heads,
        text_layers=layers,
        vocab=49_408,
        positions=77,
    )
    shapes = Model(EvaClipConfig.from_open_clip(twins.open_clip_fields(sizes, name))).shapes()
    assert num_parameters(shapes) == count
    assert f"{num_parameters(shapes['image']) / 1e6:.2f}" == image_count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["CLIPModel"]}, "CLIPModel"),
        ({"projection_dim": None}, "lacks the field 'projection_dim'"),
        ({"vision_config": {"hidden_act": "quick_gelu"}}, "quick_gelu"),
        ({"vision_config": {"use_sub_ln": True}}, "without use_swiglu_mlp"),
        ({"vision_config": {"num_attention_heads": 5}}, "not a multiple"),
        ({"vision_config": {"patch_size": 9}}, "not a multiple"),
        ({"text_config": {"use_rope": True}}, "text_config.use_rope"),
        ({"text_config": {"hidden_act": "relu"}}, "relu"),
    ],
)
def test_a_config_of_another_family_is_refused(changes, message):
    fields = twins.hf_fields(Sizes())
    for name, change in changes.items():
        if change is None:
            del fields[name]
        else:
            fields[name] = fields[name] | change if isinstance(change, dict) else change
    with pytest.raises(ConfigError, match=message):
        EvaClipConfig.from_hf(fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_cfg": {"timm_model_name": "vit_base_patch16_224"}}, "vit_base_patch16_224"),
        ({"vision_cfg": {"timm_pool": "avg"}}, "timm_pool='avg'"),
        ({"text_cfg": {"hf_model_name": "roberta"}}, "hf_model_name='roberta'"),
        ({"quick_gelu": True}, "quick_gelu=True"),
    ],
)
def test_an_open_clip_config_of_another_family_is_refused(changes, message):
    fields = twins.open_clip_fields(Sizes(), "eva02_base_patch16_clip_224")
    model = fields["model_cfg"]
    for name, change in changes.items():
        model[name] = model[name] | change if isinstance(change, dict) else change
    with pytest.raises(ConfigError, match=message):
        EvaClipConfig.from_open_clip(fields)


def put(fields, path, value):
    """The fields with another value at `a.b.c`."""
    first, _, rest = path.partition(".")
    return fields | {first: put(fields[first], rest, value) if rest else value}


LAYER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
HF_SIZES = (
    "projection_dim",
    *(f"{tower}_config.{name}" for tower in ("vision", "text") for name in LAYER_SIZES),
    *("vision_config.image_size", "vision_config.patch_size", "vision_config.num_channels"),
    *("vision_config.pretrained_seq_len", "text_config.vocab_size"),
    "text_config.max_position_embeddings",
)
HF_TRUTHS = (
    *(f"{tower}_config.{it}_bias" for tower in ("vision", "text") for it in "qkv"),
    *(f"{tower}_config.use_rms_norm" for tower in ("vision", "text")),
    *(f"{tower}_config.post_layernorm" for tower in ("vision", "text")),
    *(f"{tower}_config.use_swiglu_mlp" for tower in ("vision", "text")),
    *(f"{tower}_config.use_sub_ln" for tower in ("vision", "text")),
    *(f"{tower}_config.use_rope" for tower in ("vision", "text")),
)
OPEN_CLIP_SIZES = (
    *("model_cfg.embed_dim", "model_cfg.vision_cfg.image_size"),
    *(f"model_cfg.text_cfg.{name}" for name in ("width", "heads", "layers")),
    *("model_cfg.text_cfg.vocab_size", "model_cfg.text_cfg.context_length"),
)
NO_SIZES = (0, -1, "28", 2.5, None, True, [4])


def refused(read, fields, path, value, message):
    """Checks that the fields are read, and refused with this value of one of them."""
    read(fields)
    with pytest.raises(ConfigError) as error:
        read(put(fields, path, value))
    assert f"{path}={value!r} {message}" in str(error.value)


@pytest.mark.parametrize("value", NO_SIZES)
@pytest.mark.parametrize("path", HF_SIZES)
def test_a_size_that_is_none_is_refused(path, value):
    fields = twins.hf_fields(Sizes(rope_side=4))
    refused(EvaClipConfig.from_hf, fields, path, value, "is no integer of at least 1.")


@pytest.mark.parametrize("value", ["no", 1, []])
@pytest.mark.parametrize("path", HF_TRUTHS)
def test_a_flag_that_is_neither_true_nor_false_is_refused(path, value):
    fields = twins.hf_fields(Sizes())
    refused(EvaClipConfig.from_hf, fields, path, value, "is neither true nor false.")


@pytest.mark.parametrize("value", ["x", None, 0, True])
@pytest.mark.parametrize("name", ["layer_norm_eps", "rope_theta"])
def test_a_number_that_is_none_is_refused(name, value):
    fields, path = twins.hf_fields(Sizes(rope_side=4)), f"vision_config.{name}"
    refused(EvaClipConfig.from_hf, fields, path, value, "is no number above 0.")


@pytest.mark.parametrize("value", NO_SIZES)
@pytest.mark.parametrize("path", OPEN_CLIP_SIZES)
def test_a_size_of_open_clip_that_is_none_is_refused(path, value):
    fields = twins.open_clip_fields(Sizes(), "eva02_large_patch14_clip_224")
    refused(EvaClipConfig.from_open_clip, fields, path, value, "is no integer of at least 1.")


@pytest.mark.parametrize("value", [[], None, "x", 3])
@pytest.mark.parametrize(
    "path",
    [
        "vision_config",
        "text_config",
        *(f"model_cfg{part}" for part in ("", ".vision_cfg", ".text_cfg")),
    ],
)
def test_a_part_that_is_no_object_is_refused(path, value):
    open_clip = twins.open_clip_fields(Sizes(), "eva02_large_patch14_clip_224")
    ours = path.startswith("model")
    fields = put(open_clip if ours else twins.hf_fields(Sizes()), path, value)
    read = EvaClipConfig.from_open_clip if ours else EvaClipConfig.from_hf
    with pytest.raises(ConfigError) as error:
        read(fields)
    assert f"{path} is {value!r}; it must be an object" in str(error.value)


@pytest.mark.parametrize("name", [["eva02_large_patch14_clip_224"], None, 3, {}])
def test_a_name_of_an_image_tower_that_is_no_word_is_refused(name):
    fields = twins.open_clip_fields(Sizes(), name)
    with pytest.raises(ConfigError, match=r"timm_model_name=.* is not an EVA-CLIP tower; one of"):
        EvaClipConfig.from_open_clip(fields)


@pytest.mark.parametrize("part", ["", ".vision_cfg", ".text_cfg"])
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("ls_init_value", 0.1, None), ("custom_text", 1, True), ("proj_bias", 0, False)],
)
def test_no_part_hides_a_flag_of_another(part, field, value, expected):
    fields = twins.open_clip_fields(Sizes(), "eva02_large_patch14_clip_224")
    for other in ("", ".vision_cfg", ".text_cfg"):
        fields = put(fields, f"model_cfg{other}.{field}", expected)
    path, message = f"model_cfg{part}.{field}", f"is not supported; only {expected!r} is."
    refused(EvaClipConfig.from_open_clip, fields, path, value, message)


def test_a_flag_that_is_null_is_off():
    fields = twins.hf_fields(Sizes())
    for path in HF_TRUTHS:
        fields = put(fields, path, None)
    for layer in (
        EvaClipConfig.from_hf(fields).image.layer,
        EvaClipConfig.from_hf(fields).text.layer,
    ):
        assert layer.qkv_biases == (False, False, False)
        assert (layer.norm, layer.norm_after, layer.gated) == ("layer", False, False)
