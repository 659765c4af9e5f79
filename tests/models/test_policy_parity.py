"""The policies against transformers on tiny folders whose parameters hide nothing."""

import copy
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxagent.models.policy import Model
from jaxagent.trees import Params, flat, map_named, nested
from jaxagent.weights import policies as weights
from jaxagent.weights.folder import read_policy
from tests.models import families, twins

LAYER, TOWER, LOGITS = 1e-5, 1e-4, 1e-4
BLIND = 100 * LOGITS  # a mutation must show at least this clearly


class Pair(NamedTuple):
    """A case here and in transformers, with contexts and what transformers says of them."""

    model: Model
    params: Params
    hf: torch.nn.Module
    contexts: list[twins.Context]
    theirs: list[np.ndarray]


@cache
def pair(name: str) -> Pair:
    folder = families.folder(name)
    config, params = read_policy(folder)
    model = Model(config)
    contexts = [
        twins.context(model, layout, seed=seed)
        for seed, layout in enumerate(twins.LAYOUTS.values())
    ]
    theirs = [
        twins.hf_logits(one, image_token=config.image_token, folder=folder) for one in contexts
    ]
    return Pair(model, params, twins.hf_model(folder), contexts, theirs)


every_case = pytest.mark.parametrize("name", families.CASES)
every_family = pytest.mark.parametrize("name", families.ONE_OF_EACH.values())


def largest_difference(logits, theirs):
    return max(np.abs(logits[row, : len(their)] - their).max() for row, their in enumerate(theirs))


@every_case
def test_logits_equal_transformers(name):
    model, params, _, contexts, theirs = pair(name)
    assert min(their.std() for their in theirs) > 1
    logits = twins.logits(model, params, twins.batch(model, contexts))
    assert largest_difference(logits, theirs) < LOGITS


@every_case
def test_hidden_states_of_every_layer_equal_transformers(name):
    model, params, hf, contexts, _ = pair(name)
    layers = tuple(range(model.config.text.layers + 1))
    made = twins.batch(model, contexts)
    ours = jax.jit(model.hidden_states, static_argnames="layers")(
        params, *made[:3], twins.features(model, params, made), made.feature_index, layers=layers
    )
    for row, one in enumerate(contexts):
        found = twins.hf_states(hf, one, image_token=model.config.image_token)
        for mine, theirs in zip(ours[:, row, : len(one.ids)], found, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=LAYER * max(1, np.abs(theirs).max()))
    with pytest.raises(ValueError, match=r"numbered 0 to 3; there is no \[4\]"):
        model.hidden_states(params, *map(jnp.asarray, made[:3]), layers=(4,))


@every_case
@pytest.mark.parametrize("grid", [(1, 4, 4), (1, 6, 10), (2, 4, 6)])  # the last: two frames
def test_image_features_equal_transformers(name, grid):
    model, params, hf, _, _ = pair(name)
    patches = np.random.default_rng(0).standard_normal(
        (2, grid[0] * grid[1] * grid[2], model.config.vision.patch_values), dtype=np.float32
    )
    ours = twins.encoded(model, params, patches, grid)
    with torch.no_grad():
        theirs = hf.model.visual(
            torch.tensor(patches.reshape(-1, patches.shape[-1])), grid_thw=torch.tensor([grid] * 2)
        )
    tokens = ours.tokens.reshape(-1, ours.tokens.shape[-1])
    assert theirs.pooler_output.std() > 0.3
    np.testing.assert_allclose(tokens, theirs.pooler_output, atol=TOWER)
    taps = theirs.deepstack_features if model.config.vision.deepstack else []
    assert len(ours.deepstack) == len(taps)
    for mine, tap in zip(ours.deepstack, taps, strict=True):
        np.testing.assert_allclose(mine.reshape(-1, mine.shape[-1]), tap, atol=TOWER)


def without(params, part, index=...):
    """The parameters with a part set to what leaves it out: biases to 0, a norm's scale to 1."""

    def change(name, leaf):
        if part not in name:
            return leaf
        changed = np.array(leaf)
        changed[index] = 1 if name.endswith("scale") else 0
        return changed

    return map_named(change, params)


def mutations(model, params, made):
    """Everything of a policy that can be left out or mistaken, as the arguments of `logits`."""
    config = model.config
    one_dimensional = np.broadcast_to(np.arange(twins.LENGTH), made.positions.shape)
    swapped = {(t, w, h): patches for (t, h, w), patches in made.images.items()}

    def text(**changes):
        return Model(replace(config, text=replace(config.text, **changes)))

    def vision(**changes):
        return Model(replace(config, vision=replace(config.vision, **changes)))

    found = {
        "1-D positions": (model, params, made._replace(positions=one_dimensional)),
        "rows and columns swapped": (model, params, made._replace(images=swapped)),
        "other sections": (text(rope_sections=(6, 1, 1)), params, made),
        "the other kind of sections": (
            text(rope_interleaved=not config.text.rope_interleaved),
            params,
            made,
        ),
    }
    if config.text.qk_norm:
        others = {k: v for k, v in flat(params).items() if "q_norm" not in k and "k_norm" not in k}
        found["no norms of q and k"] = (text(qk_norm=False), nested(others), made)
    if config.vision.deepstack:
        found["no deepstack"] = (model, without(params, "deepstack_mergers"), made)
        found["no positions table"] = (model, without(params, "position/table"), made)
    if config.family == "qwen2_5_vl":
        every = tuple(range(config.vision.layers))
        found["no windows"] = (vision(full_layers=every), params, made)
        found["no full layer"] = (vision(full_layers=()), params, made)
        found["other windows"] = (vision(window=24), params, made)
    for name, leaf in flat(params).items():
        if name.endswith(("bias", "scale")) and "qkv" not in name:
            found[f"without {name}"] = (model, without(params, name), made)
        elif name.endswith("qkv/bias"):
            for place, part in enumerate("qkv"):
                index = (slice(None), place)
                found[f"without {name} of {part}"] = (model, without(params, name, index), made)
        assert leaf.any()
    return found


@every_family
def test_a_change_of_any_part_shows(name):
    model, params, _, contexts, theirs = pair(name)
    made = twins.batch(model, contexts)
    for mutation, arguments in mutations(model, params, made).items():
        difference = largest_difference(twins.logits(*arguments), theirs)
        assert difference > BLIND, f"{mutation} changes logits by only {difference}"


@every_family
def test_gradients_equal_transformers(name):
    model, params, hf, contexts, _ = pair(name)
    one = contexts[2]
    made = twins.batch(model, [one])
    num = len(one.ids)

    def loss(params):
        features = twins.features(model, params, made)
        hidden = model.forward(
            params, *map(jnp.asarray, made[:3]), features, jnp.asarray(made.feature_index)
        )
        chosen = jax.nn.log_softmax(model.logits(params, hidden)[0, : num - 1])
        return -chosen[jnp.arange(num - 1), one.ids[1:]].mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    hf.zero_grad()
    their_logits = hf(**twins.hf_arguments(one, model.config.image_token)).logits[0, :-1]
    their_loss = torch.nn.functional.cross_entropy(their_logits, torch.tensor(one.ids[1:]).long())
    their_loss.backward()
    named = dict(hf.named_parameters())
    assert abs(float(value) - their_loss.item()) < 1e-5
    ours = flat(gradients)
    total = np.sqrt(sum(float(jnp.sum(leaf * leaf)) for leaf in ours.values()))
    for row in weights.table(model.config):
        theirs = np.stack([row.imported(named[key].grad.numpy()) for key in row.hf_keys()])
        mine = np.asarray(ours[row.name]).reshape(theirs.shape)
        # a key's bias has no gradient at all without rotary positions: softmax does not see it
        floor = max(np.linalg.norm(theirs), 1e-3 * total)
        assert np.linalg.norm(mine - theirs) < 1e-4 * floor, row.name


@every_family
def test_bfloat16_errs_no_more_than_transformers(name):
    model, params, hf, contexts, theirs = pair(name)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    ours = twins.logits(model, half, twins.batch(model, contexts))
    hf_half = copy.deepcopy(hf).to(torch.bfloat16)
    with torch.no_grad():
        their_half = [
            hf_half(**twins.hf_arguments(one, model.config.image_token)).logits[0].float().numpy()
            for one in contexts
        ]

    def error(logits):
        squares = [
            np.square(mine[: len(full)] - full).mean()
            for mine, full in zip(logits, theirs, strict=True)
        ]
        return np.sqrt(np.mean(squares))

    assert error(ours) < 1.5 * error(their_half)
