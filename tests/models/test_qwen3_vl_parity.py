"""Qwen3-VL against transformers on a tiny folder whose parameters hide nothing."""

import copy
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxagent.models.policy import Model
from jaxagent.trees import flat, nested
from jaxagent.weights import policies as weights
from tests import tiny
from tests.models import twins

LOGITS = 1e-4
BLIND = 100 * LOGITS  # a mutation must show at least this clearly
LAYOUTS = {
    "text only": (20,),
    "one image": (3, (1, 4, 4), 8),
    "two grids, the same grid twice": (2, (1, 4, 4), 2, (1, 2, 6), 4, (1, 4, 4), 5),
    "adjacent images": (4, (1, 4, 6), 1, (1, 6, 2), 1, (1, 4, 4), 6),
}


@pytest.fixture(scope="module")
def policy():
    return tiny.policy()


@pytest.fixture(scope="module")
def contexts(policy):
    return [
        twins.context(policy.policy, layout, seed=seed)
        for seed, layout in enumerate(LAYOUTS.values())
    ]


@pytest.fixture(scope="module")
def theirs(policy, contexts):
    token = policy.policy.model.config.image_token
    return [twins.hf_logits(one, image_token=token) for one in contexts]


def largest_difference(logits, theirs):
    return max(np.abs(logits[row, : len(their)] - their).max() for row, their in enumerate(theirs))


def test_logits_equal_transformers(policy, contexts, theirs):
    made = twins.batch(policy.policy, contexts)
    logits = twins.logits(policy.policy.model, policy.params, made)
    assert min(their.std() for their in theirs) > 1
    assert largest_difference(logits, theirs) < LOGITS


def test_a_change_of_any_part_shows(policy, contexts, theirs):
    model, params = policy.policy.model, policy.params
    made = twins.batch(policy.policy, contexts)
    config = model.config
    one_dimensional = np.broadcast_to(np.arange(twins.LENGTH), made.positions.shape)
    transposed = {(t, w, h): patches for (t, h, w), patches in made.images.items()}

    def text(**changes):
        return Model(replace(config, text=replace(config.text, **changes)))

    def without(name):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.zeros_like(leaf) if name in str(path) else leaf, params
        )

    without_norms = nested(
        {name: leaf for name, leaf in flat(params).items() if not re.search("[qk]_norm", name)}
    )
    mutations = {
        "1-D positions": (model, params, made._replace(positions=one_dimensional)),
        "rows and columns swapped": (model, params, made._replace(images=transposed)),
        "sectioned rotary": (text(rope_interleaved=False), params, made),
        "other sections": (text(rope_sections=(6, 1, 1)), params, made),
        "no q, k norm": (text(qk_norm=False), without_norms, made),
        "deepstack off": (model, without("deepstack_mergers"), made),
        "vision biases dropped": (model, without("'bias'"), made),
        "positions table dropped": (model, without("position"), made),
    }
    for name, mutation in mutations.items():
        difference = largest_difference(twins.logits(*mutation), theirs)
        assert difference > BLIND, f"{name} changes logits by only {difference}"


def test_a_clip_of_frames_is_encoded_as_transformers_does(policy):
    patches = np.random.default_rng(0).standard_normal((2 * 4 * 6, 96), dtype=np.float32)
    ours = twins.encoded(policy.policy.model, policy.params, patches[None], (2, 4, 6))
    with torch.no_grad():
        their = twins.hf_model().model.visual(
            torch.tensor(patches), grid_thw=torch.tensor([[2, 4, 6]])
        )
    np.testing.assert_allclose(ours.tokens[0], their.pooler_output, atol=1e-4)
    for mine, theirs in zip(ours.deepstack[:, 0], their.deepstack_features, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_gradients_equal_transformers(policy, contexts):
    model, one = policy.policy.model, contexts[1]
    made = twins.batch(policy.policy, [one])
    num = len(one.ids)

    def loss(params):
        features = twins.features(model, params, made)
        hidden = model.forward(
            params, *map(jnp.asarray, made[:3]), features, jnp.asarray(made.feature_index)
        )
        chosen = jax.nn.log_softmax(model.logits(params, hidden)[0, : num - 1])
        return -chosen[jnp.arange(num - 1), one.ids[1:]].mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(policy.params)
    their_model = twins.hf_model()
    their_model.zero_grad()
    arguments = twins.hf_arguments(one, model.config.image_token)
    their_logits = their_model(**arguments).logits[0, :-1]
    their_loss = torch.nn.functional.cross_entropy(their_logits, torch.tensor(one.ids[1:]).long())
    their_loss.backward()
    named = dict(their_model.named_parameters())
    assert abs(float(value) - their_loss.item()) < 1e-5
    ours = flat(gradients)
    total = np.sqrt(sum(float(jnp.sum(leaf * leaf)) for leaf in ours.values()))
    for row in weights.table(model.config):
        theirs = np.stack([row.imported(named[key].grad.numpy()) for key in row.hf_keys()])
        mine = np.asarray(ours[row.name]).reshape(theirs.shape)
        # a key's bias has no gradient at all: softmax does not see it
        floor = max(np.linalg.norm(theirs), 1e-3 * total)
        assert np.linalg.norm(mine - theirs) < 1e-4 * floor, row.name


def test_bfloat16_errs_no_more_than_transformers(policy, contexts, theirs):
    model = policy.policy.model
    contexts, theirs = contexts[:2], theirs[:2]
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), policy.params)
    ours = twins.logits(model, half, twins.batch(policy.policy, contexts))
    their_model = copy.deepcopy(twins.hf_model()).to(torch.bfloat16)
    with torch.no_grad():
        their_half = [
            their_model(**twins.hf_arguments(one, model.config.image_token)).logits[0]
            for one in contexts
        ]
    their_half = [logits.float().numpy() for logits in their_half]

    def error(logits):
        squares = [
            np.square(mine[: len(full)] - full).mean()
            for mine, full in zip(logits, theirs, strict=True)
        ]
        return np.sqrt(np.mean(squares))

    assert error(ours) < 1.5 * error(their_half)
