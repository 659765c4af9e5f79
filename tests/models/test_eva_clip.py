"""EVA-CLIP against a PyTorch twin whose parameters hide nothing, and its published sizes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxagent.models import eva_clip, rope
from jaxagent.models.config import ConfigError
from jaxagent.models.eva_clip import Layer, Model
from jaxagent.models.eva_clip_config import EvaClipConfig, ImageConfig, LayerConfig
from jaxagent.models.layers import blueprint
from jaxagent.trees import flat, nested, num_parameters
from jaxagent.weights import eva_clip as weights
from tests.models import eva_clip_twin as twins
from tests.models.eva_clip_twin import HfTwin, OpenClipTwin, Sizes

LAYER, EMBEDDING = 1e-5, 1e-4
BLIND = 100  # how many tolerances a mutation must show at least

HF = {
    "8B": Sizes(rms=True, biases=""),
    "EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=3),
    "EVA02 E": Sizes(norm_after=True, biases="qv"),
    "every bias": Sizes(),
}
OPEN_CLIP = {
    "open_clip EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=3),
    "open_clip EVA02 E": Sizes(norm_after=True, biases="qv", fused=True),
    "open_clip EVA01 g": Sizes(biases="qv", fused=True),
}


def tower(sizes: Sizes) -> ImageConfig:
    """The image tower that an entry of timm's table would name."""
    layer = LayerConfig(
        width=sizes.width,
        heads=sizes.heads,
        mlp_width=sizes.mlp_width,
        norm_epsilon=sizes.image_epsilon,
        norm_after=sizes.norm_after,
        inner_norm=sizes.inner_norm,
        gated=sizes.gated,
        qkv_biases=tuple(name in sizes.biases for name in "qkv"),
        fused=sizes.fused,
    )
    return ImageConfig(
        layer=layer,
        layers=sizes.layers,
        image=sizes.image,
        patch=sizes.patch,
        rotary_side=sizes.rope_side,
    )


@pytest.fixture(scope="module", params=[*HF, *OPEN_CLIP])
def pair(request, tmp_path_factory):
    """A twin, and our model and parameters read from its folder."""
    folder, name = tmp_path_factory.mktemp("eva_clip"), request.param
    if name in HF:
        twin = twins.randomize(HfTwin(HF[name]))
        twins.save(twin, folder, twins.hf_fields(HF[name]))
        found = weights.read_eva_clip(folder)
    else:
        sizes = OPEN_CLIP[name]
        twin = twins.randomize(OpenClipTwin(sizes))
        twins.save(twin, folder, twins.open_clip_fields(sizes, "tiny"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(eva_clip_towers(), "tiny", tower(sizes))
            found = weights.read_eva_clip(folder)
    return twin, Model(found.config), jax.tree.map(jnp.asarray, found.params)


def eva_clip_towers():
    from jaxagent.models import eva_clip_config

    return eva_clip_config._TIMM


def inputs(num: int = 5):
    """Pixels, and ids whose largest stands at another place in each row, with more behind it."""
    numbers = np.random.default_rng(1)
    pixels = numbers.standard_normal((num, 3, 28, 28), dtype=np.float32)
    ids = numbers.integers(1, 50, (num, 12)).astype(np.int32)
    ids[np.arange(num), 3 + np.arange(num) % 8] = 59
    ids[:, -1] = np.maximum(ids[:, -1], 59 * (np.arange(num) % 2))  # padded with the end token
    return jnp.asarray(pixels), jnp.asarray(ids)


def theirs(twin, pixels, ids):
    with torch.no_grad():
        dtype = twin.logit_scale.dtype
        images = twin.encode_image(torch.tensor(np.asarray(pixels)).to(dtype))
        texts = twin.encode_text(torch.tensor(np.asarray(ids)).long())
    return images.float().numpy(), texts.float().numpy()


def embeddings(model, params, pixels, ids):
    return model.image_embeddings(params, pixels), model.text_embeddings(params, ids)


jitted = jax.jit(embeddings, static_argnums=0)


def largest_difference(ours, expected):
    return max(np.abs(np.asarray(a) - b).max() for a, b in zip(ours, expected, strict=True))


def test_embeddings_and_vectors_equal_the_twin(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    expected = theirs(twin, pixels, ids)
    assert min(their.std() for their in expected) > 1
    assert largest_difference(jitted(model, params, pixels, ids), expected) < EMBEDDING
    vectors = model.image_vectors(params, pixels), model.text_vectors(params, ids)
    for ours, their in zip(vectors, expected, strict=True):
        their = their / np.linalg.norm(their, axis=1, keepdims=True)
        np.testing.assert_allclose(ours, their, atol=EMBEDDING)
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


def their_layers(twin):
    """The layers of the twin's image tower and of its text tower, as functions."""
    if isinstance(twin, HfTwin):
        return twin.vision_model.encoder.layers, twin.text_model.encoder.layers
    return twin.visual.trunk.blocks, twin.text.transformer.resblocks


def our_layer(config: LayerConfig, params, x, *, causal: bool, rotation=None):
    graph = blueprint(partial(Layer, config)).graph
    t = x.shape[1]
    visible = jnp.broadcast_to(jnp.tri(t, dtype=jnp.bool_), (len(x), t, t)) if causal else None
    return eva_clip.nnx.merge(graph, params)(jnp.asarray(x), visible, rotation)


# Inputs as small as the root of the epsilon show its size; the others show everything else.
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_every_layer_equals_the_twins(pair, scale):
    twin, model, params = pair
    image, text = model.config.image, model.config.text
    rotation = None if image.rotary_side is None else eva_clip.patch_rotation(image)
    numbers = np.random.default_rng(2)
    for name, config, layers in zip(
        ("image", "text"), (image, text), their_layers(twin), strict=True
    ):
        num = image.side**2 + 1 if name == "image" else 12
        x = scale * numbers.standard_normal((2, num, config.layer.width), dtype=np.float32)
        turn = rotation if name == "image" else None
        for index, layer in enumerate(layers):
            with torch.no_grad():
                expected = layer(torch.tensor(x)).numpy()
            own = jax.tree.map(lambda leaf, i=index: leaf[i], params[name]["layers"])
            run = partial(our_layer, params=own, x=x, causal=name == "text", rotation=turn)
            np.testing.assert_allclose(run(config.layer), expected, atol=LAYER, rtol=LAYER)
            if scale < 1 and not config.layer.norm_after:
                other = replace(config.layer, norm_epsilon=1e-5 if name == "image" else 1e-6)
                assert np.abs(run(other) - expected).max() > BLIND * LAYER


def without(params, name, value):
    return nested({key: value(leaf) if key == name else leaf for key, leaf in flat(params).items()})


def test_a_change_of_any_parameter_shows(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    expected = theirs(twin, pixels, ids)
    neutral = {"bias": np.zeros_like, "scale": np.ones_like}
    for name, leaf in flat(params).items():
        if name == "log_scale":
            continue
        if name.endswith("/k/bias") and not (
            name.startswith("image") and model.config.image.rotary_side
        ):
            continue  # the same for every key, so that softmax does not see it
        kind = next((word for word in neutral if name.endswith(word)), "other")
        changed = without(params, name, neutral.get(kind, np.zeros_like))
        difference = largest_difference(jitted(model, changed, pixels, ids), expected)
        assert difference > BLIND * EMBEDDING, f"{name} changes embeddings by only {difference}"
        assert leaf.std() > 0.1 * min(1, leaf.ndim), name


def mutated(model, params, **changes):
    """The model with other flags in its image tower, and the parameters that it still has."""
    image = model.config.image
    layer = {name: value for name, value in changes.items() if hasattr(image.layer, name)}
    rest = {name: value for name, value in changes.items() if name not in layer}
    config = replace(image, layer=replace(image.layer, **layer), **rest)
    other = Model(replace(model.config, image=config))
    named = flat(params)
    return other, nested(
        {
            name: named.get(name, np.zeros(leaf.shape, np.float32))
            for name, leaf in flat(other.shapes()).items()
        }
    )


def test_a_change_of_any_flag_shows(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    expected = theirs(twin, pixels, ids)
    image = model.config.image
    mutations = {
        "norms on the other side": {"norm_after": not image.layer.norm_after},
        "norms of the other kind": {"norm": "layer" if image.layer.norm == "rms" else "rms"},
    }
    if image.layer.inner_norm:
        mutations["no inner norms"] = {"inner_norm": False}
        mutations["no gate"] = {"gated": False}
        mutations["no rotary positions"] = {"rotary_side": None}
        mutations["positions of this grid"] = {"rotary_side": image.side}
        mutations["another base"] = {"rotary_theta": 100.0}
    for name, changes in mutations.items():
        found = jitted(*mutated(model, params, **changes), pixels, ids)
        difference = largest_difference(found, expected)
        assert difference > BLIND * EMBEDDING, f"{name}: embeddings change by only {difference}"


def test_a_change_of_any_step_shows(pair, monkeypatch):
    twin, model, params = pair
    pixels, ids = inputs()
    images, texts = theirs(twin, pixels, ids)
    original = {
        name: getattr(eva_clip, name) for name in ("_through", "attention", "patch_rotation")
    }

    def rolled(*arguments):
        return jnp.roll(original["_through"](*arguments), -1, axis=1)

    def unmasked(q, k, v, visible):
        return original["attention"](q, k, v, None)

    def transposed(config):
        turn = original["patch_rotation"](config)
        return rope.Rotation(*(jnp.roll(part, part.shape[1] // 2, axis=1) for part in turn))

    def halves(x, turn):
        return rope.rotate(x, rope.Rotation(*(part[None] for part in turn)))

    steps = {
        "the token after the class token": ("_through", rolled, 0),
        "the token after the end": ("_through", rolled, 1),
        "the last token": ("end_places", lambda ids: jnp.full(len(ids), ids.shape[1] - 1), 1),
        "no causal mask": ("attention", unmasked, 1),
    }
    if model.config.image.rotary_side is not None:
        steps["rows for columns"] = ("patch_rotation", transposed, 0)
        steps["halves for pairs"] = ("rotate_pairs", halves, 0)
    for name, (attribute, step, tower) in steps.items():
        with monkeypatch.context() as patch:
            patch.setattr(eva_clip, attribute, step)
            found = embeddings(model, params, pixels, ids)
        difference = np.abs(np.asarray(found[tower]) - (images, texts)[tower]).max()
        assert difference > BLIND * EMBEDDING, f"{name}: embeddings change by only {difference}"


def test_another_gelu_shows_in_a_layer(pair, monkeypatch):
    twin, model, params = pair
    x = np.random.default_rng(3).standard_normal((16, 12, 24), dtype=np.float32)
    with torch.no_grad():
        expected = their_layers(twin)[1][0](torch.tensor(x)).numpy()
    own = jax.tree.map(lambda leaf: leaf[0], params["text"]["layers"])
    exact = jax.nn.gelu
    for name, other in {
        "tanh": lambda x, approximate: exact(x, approximate=True),
        "quick": lambda x, approximate: x * jax.nn.sigmoid(1.702 * x),
    }.items():
        monkeypatch.setattr(jax.nn, "gelu", other)
        found = our_layer(model.config.text.layer, own, x, causal=True)
        assert np.abs(found - expected).max() > BLIND * LAYER, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_errs_little_more_than_the_twins(pair, dtype):
    twin, model, params = pair
    pixels, ids = inputs(32)
    expected = theirs(twin, pixels, ids)
    half = twins.randomize(type(twin)(sizes_of(twin))).to(getattr(torch, dtype))
    their = theirs(half, pixels, ids)
    small = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)
    ours = jitted(model, small, pixels, ids)
    assert {str(part.dtype) for part in ours} == {dtype}
    for mine, other, exact in zip(ours, their, expected, strict=True):
        error = np.linalg.norm(np.asarray(mine, np.float32) - exact)
        assert 0 < error <= 1.5 * np.linalg.norm(other - exact)
    assert model.image_vectors(small, pixels).dtype == np.float32


def sizes_of(twin):
    return twin.sizes


def test_what_stands_behind_the_end_of_a_text_is_not_seen(pair):
    _, model, params = pair
    ids = inputs()[1].at[:, -1].set(1)
    end = np.argmax(ids, axis=1)
    others = jnp.where(np.arange(12)[None] > end[:, None], 2, ids)
    assert (others != ids).any()
    np.testing.assert_array_equal(
        model.text_embeddings(params, ids), model.text_embeddings(params, others)
    )
    longest = end.max() + 1
    np.testing.assert_allclose(
        model.text_embeddings(params, ids[:, :longest]),
        model.text_embeddings(params, ids),
        atol=1e-5,
    )


def test_gradients_equal_the_twins(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    labels = np.arange(len(ids))

    def loss(params):
        images, texts = model.image_vectors(params, pixels), model.text_vectors(params, ids)
        logits = model.logits(params, images, texts)
        rows, columns = jax.nn.log_softmax(logits), jax.nn.log_softmax(logits, axis=0)
        return -(rows[labels, labels] + columns[labels, labels]).mean() / 2

    value, gradients = jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, params))
    twin.zero_grad()
    images = F.normalize(twin.encode_image(torch.tensor(np.asarray(pixels))), dim=-1)
    texts = F.normalize(twin.encode_text(torch.tensor(np.asarray(ids)).long()), dim=-1)
    logits = twin.logit_scale.exp() * images @ texts.T
    their_loss = (
        F.cross_entropy(logits, torch.tensor(labels))
        + F.cross_entropy(logits.T, torch.tensor(labels))
    ) / 2
    their_loss.backward()
    assert abs(float(value) - their_loss.item()) < 1e-4
    ours, named = flat(gradients), dict(twin.named_parameters())
    total = np.sqrt(sum(float(jnp.sum(leaf * leaf)) for leaf in ours.values()))
    for row in weights.table(model.config):
        their = np.stack([row.imported(named[key].grad.numpy()) for key in row.hf_keys()])
        mine = np.asarray(ours[row.name]).reshape(their.shape)
        # a key's bias has no gradient at all: softmax does not see it
        floor = max(np.linalg.norm(their), 1e-3 * total)
        assert np.linalg.norm(mine - their) < 1e-4 * floor, row.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image", "text"])
def test_a_layer_of_8b_equals_the_twins(name):
    sizes = Sizes(
        width=4096,
        heads=32,
        mlp_width=20_480,
        rms=True,
        biases="",
        text_width=1280,
        text_heads=20,
        text_mlp_width=5120,
        layers=1,
        text_layers=1,
    )
    config = EvaClipConfig.from_hf(twins.hf_fields(sizes))
    build, tower = (
        (twins.hf_image_layer, config.image)
        if name == "image"
        else (twins.hf_text_layer, config.text)
    )
    twin = twins.randomize(build(sizes), gain=1.0)
    named = dict(twin.named_parameters())
    own = {}
    for row in weights.table(config):
        if row.name.startswith(f"{name}/layers/"):
            key = row.key.split("{i}.")[1]
            own[row.name.removeprefix(f"{name}/layers/")] = jnp.asarray(
                row.imported(named[key].detach().numpy())
            )
    x = np.random.default_rng(0).standard_normal((1, 77, tower.layer.width), dtype=np.float32)
    found = our_layer(tower.layer, nested(own), x, causal=name == "text")
    with torch.no_grad():
        expected = twin(torch.tensor(x)).numpy()
    assert np.abs(expected).max() > 3
    np.testing.assert_allclose(found, expected, atol=LAYER, rtol=LAYER)


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


# The model cards round their counts (8.1B, 18.1B in total; 7.5B, 17.5B for images). The sizes of the
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
    fields = twins.hf_fields(HF["8B"])
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
    fields = twins.open_clip_fields(OPEN_CLIP["open_clip EVA02 L"], "eva02_base_patch16_clip_224")
    model = fields["model_cfg"]
    for name, change in changes.items():
        model[name] = model[name] | change if isinstance(change, dict) else change
    with pytest.raises(ConfigError, match=message):
        EvaClipConfig.from_open_clip(fields)


def test_inputs_that_do_not_fit_are_refused(pair):
    _, model, params = pair
    with pytest.raises(ValueError, match="do not fit a tower"):
        model.image_embeddings(params, jnp.zeros((1, 3, 28, 35)))
    with pytest.raises(ValueError, match="13 tokens are too long"):
        model.text_embeddings(params, jnp.zeros((1, 13), jnp.int32))
