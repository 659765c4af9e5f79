"""EVA-CLIP against a PyTorch twin whose parameters hide nothing."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxagent.models import eva_clip, eva_clip_config, rope
from jaxagent.models.eva_clip import Layer, Model
from jaxagent.models.eva_clip_config import EvaClipConfig, ImageConfig, LayerConfig
from jaxagent.models.layers import blueprint
from jaxagent.trees import flat, nested
from jaxagent.weights import eva_clip as weights
from tests.models import eva_clip_twin as twins
from tests.models.eva_clip_twin import HfTwin, OpenClipTwin, Sizes

LAYER, EMBEDDING = 1e-5, 1e-4
BLIND = 100  # how many tolerances a mutation must show at least

HF = {
    "8B": Sizes(rms=True, biases=""),
    "EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=3),
    "EVA02 E": Sizes(norm_after=True, biases="qv"),
}
OPEN_CLIP = {
    "open_clip EVA02 L": Sizes(gated=True, inner_norm=True, biases="qv", rope_side=3),
    "open_clip EVA02 E": Sizes(norm_after=True, biases="qv", fused=True),
}


def some(*names: str):
    """Twins of these names only; mutations run op by op, so that nothing is compiled for each."""
    return pytest.mark.parametrize("pair", names, indirect=True, scope="module")


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
            patch.setitem(eva_clip_config._TIMM, "tiny", tower(sizes))
            found = weights.read_eva_clip(folder)
    return twin, Model(found.config), jax.tree.map(jnp.asarray, found.params)


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


@partial(jax.jit, static_argnums=0)
def both(model, params, pixels, ids):
    """Embeddings, and unit vectors."""
    vectors = model.image_vectors(params, pixels), model.text_vectors(params, ids)
    return embeddings(model, params, pixels, ids), vectors


def jitted(model, params, pixels, ids):
    return both(model, params, pixels, ids)[0]


def largest_difference(ours, expected):
    return max(np.abs(np.asarray(a) - b).max() for a, b in zip(ours, expected, strict=True))


def test_embeddings_and_vectors_equal_the_twin(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    expected = theirs(twin, pixels, ids)
    assert min(their.std() for their in expected) > 1
    found, vectors = both(model, params, pixels, ids)
    assert largest_difference(found, expected) < EMBEDDING
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
            name: named.get(name, jnp.zeros(leaf.shape))
            for name, leaf in flat(other.shapes()).items()
        }
    )


@some("8B", "EVA02 L", "open_clip EVA02 E")
def test_a_change_of_any_flag_shows(pair):
    twin, model, params = pair
    pixels, ids = inputs()
    images, _ = theirs(twin, pixels, ids)
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
        other, kept = mutated(model, params, **changes)
        with jax.disable_jit():
            found = other.image_embeddings(kept, pixels)
        difference = np.abs(np.asarray(found) - images).max()
        assert difference > BLIND * EMBEDDING, f"{name}: embeddings change by only {difference}"


@some("EVA02 L")
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
            with jax.disable_jit():
                found = embeddings(model, params, pixels, ids)
        difference = np.abs(np.asarray(found[tower]) - (images, texts)[tower]).max()
        assert difference > BLIND * EMBEDDING, f"{name}: embeddings change by only {difference}"


@some("8B")
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


@pytest.mark.parametrize(
    ("pair", "dtype"),
    [("8B", "bfloat16"), ("8B", "float16"), ("EVA02 L", "bfloat16")],
    indirect=["pair"],
    scope="module",
)
def test_half_precision_errs_little_more_than_the_twins(pair, dtype):
    twin, model, params = pair
    pixels, ids = inputs(32)
    expected = theirs(twin, pixels, ids)
    half = twins.randomize(type(twin)(twin.sizes)).to(getattr(torch, dtype))
    their = theirs(half, pixels, ids)
    small = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)
    ours, vectors = both(model, small, pixels, ids)
    assert {str(part.dtype) for part in ours} == {dtype}
    for mine, other, exact in zip(ours, their, expected, strict=True):
        error = np.linalg.norm(np.asarray(mine, np.float32) - exact)
        assert 0 < error <= 1.5 * np.linalg.norm(other - exact)
    assert {str(part.dtype) for part in vectors} == {"float32"}


@some("8B", "open_clip EVA02 L")
def test_what_stands_behind_the_end_of_a_text_is_not_seen(pair):
    _, model, params = pair
    pixels, ids = inputs()
    ids = ids.at[:, -1].set(1)
    end = np.argmax(ids, axis=1)
    others = jnp.where(np.arange(12)[None] > end[:, None], 2, ids)
    assert (others != ids).any()
    whole = jitted(model, params, pixels, ids)[1]
    np.testing.assert_array_equal(jitted(model, params, pixels, others)[1], whole)
    with jax.disable_jit():
        cut = model.text_embeddings(params, ids[:, : end.max() + 1])
    np.testing.assert_allclose(cut, whole, atol=1e-5)


@some("8B", "open_clip EVA02 L")
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


@some("8B")
def test_inputs_that_do_not_fit_are_refused(pair):
    _, model, params = pair
    with pytest.raises(ValueError, match="do not fit a tower"):
        model.image_embeddings(params, jnp.zeros((1, 3, 28, 35)))
    with pytest.raises(ValueError, match="13 tokens are too long"):
        model.text_embeddings(params, jnp.zeros((1, 13), jnp.int32))
