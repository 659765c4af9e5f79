"""Policies of every family, compared; and faults, each named by the first stage that has it."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from jaxagent.models import layers, qwen2_5_vl, rope, vision
from jaxagent.models.rope import Positions
from jaxagent.models.vision import Layout
from jaxagent.parity import cases as parity_cases
from jaxagent.parity import torch_side
from jaxagent.parity.cases import cases
from jaxagent.parity.policies import compare_policy, stage_rows, whole_rows
from jaxagent.processing.policy import open_policy
from jaxagent.types import silent
from jaxagent.weights import policies as weights
from tests.parity import folders

CASES = {
    "qwen2_vl": "qwen2_vl, untied, 7 heads a group",
    "qwen2_5_vl": "qwen2_5_vl, tied, 1 head a group, uneven groups of blocks",
    "qwen3_vl": "qwen3_vl, untied, 7 heads a group",
}


pytestmark = pytest.mark.usefixtures("quickly_compiled")


@cache
def recorded(name: str, dtype: str = "float32"):
    """A case's policy, the contexts, and what transformers makes of them."""
    policy = open_policy(folders.folder(name))
    contexts = cases(policy)
    theirs = torch_side.run(
        policy.folder,
        contexts,
        dtype=dtype,
        device="cpu",
        tokens=4,
        banned=policy.chat.banned_ids,
        progress=silent,
    )
    return policy, contexts, theirs


def rows(name: str, dtype: str = "float32"):
    """The rows of a case's stages."""
    return list(stage_rows(*recorded(name, dtype), dtype=dtype, progress=silent))


def failed(made) -> list[str]:
    return [row.stage for row in made if not row.passed]


@pytest.mark.parametrize("name", CASES.values(), ids=CASES)
def test_every_stage_of_a_folder_is_the_same(name):
    made = rows(name)
    assert failed(made) == []
    stages = {row.stage for row in made}
    config = recorded(name)[0].model.config
    assert {f"vision block {i}" for i in range(config.vision.layers)} <= stages
    assert {f"text block {i}" for i in range(config.text.layers)} <= stages
    assert {f"deepstack {i}" for i in range(len(config.vision.deepstack))} <= stages
    assert min(one.whole.logits.std() for one in recorded(name)[2].recordings) > 1


def test_the_whole_model_is_the_same():
    policy, contexts, theirs = recorded(CASES["qwen3_vl"])
    made = list(whole_rows(policy, contexts, theirs, dtype="float32", progress=silent))
    assert failed(made) == []
    assert {"logits", "log-probs of a continuation", "decoding logits", "greedy tokens"} <= {
        row.stage for row in made
    }
    num_groups = sum(row.stage.startswith("gradient") for row in made)
    assert num_groups == len(weights.table(policy.model.config))


def test_bfloat16_is_judged_by_transformers_own_error():
    made = rows(CASES["qwen2_5_vl"], "bfloat16")
    assert failed(made) == []
    judged = [row for row in made if row.theirs is not None]
    assert len(judged) > 8
    assert all(1e-4 < row.theirs < 0.1 for row in judged)


def one_window(rows, columns, *, side, merge):
    return Layout(np.arange(rows * columns), ((1, rows * columns * merge**2),))


def without_bias(linear, x):
    return jnp.tensordot(x, linear.kernel[...], linear.num_axes)


def one_dimensional(ids, images, merge, *, first=0):
    return Positions(np.broadcast_to(np.arange(len(ids), dtype=np.int32), (3, len(ids))), len(ids))


def swapped(original):
    return lambda height, width, merge: original(height, width, merge)[::-1]


def other_axes(config):
    return np.arange(config.head_size // 2) % 3


FAULTS = {
    "windows off": ("qwen2_5_vl", qwen2_5_vl, "window_layout", one_window, "vision block 1"),
    "biases dropped": ("qwen2_vl", layers.Linear, "__call__", without_bias, "vision block 0"),
    "1-D positions": ("qwen3_vl", parity_cases, "position_ids", one_dimensional, "position ids"),
    "wrong rotary sections": ("qwen2_vl", rope, "frequency_axes", other_axes, "text block 0"),
    "rows and columns swapped": (
        "qwen2_vl",
        rope,
        "patch_coordinates",
        swapped(rope.patch_coordinates),
        "vision block 0",
    ),
    "no rotary in images": (
        "qwen3_vl",
        vision,
        "rotate",
        lambda x, rotation: x,
        "vision block 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_the_first_stage_that_has_it(monkeypatch, fault):
    family, place, name, wrong, stage = FAULTS[fault]
    policy, contexts, theirs = recorded(CASES[family])
    monkeypatch.setattr(place, name, wrong)
    if name == "position_ids":  # which the contexts are made with
        contexts = cases(policy)
    made = stage_rows(policy, contexts, theirs, dtype="float32", progress=silent)
    row = next(row for row in made if not row.passed)
    assert row.stage == stage
    assert row.relative > 100 * row.tolerance


def test_the_wide_pass_is_the_model_in_float32_and_leaves_the_weights(monkeypatch):
    folder = folders.folder(CASES["qwen2_5_vl"])
    case = cases(open_policy(folder))[0]
    half = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    before = {key: value.clone() for key, value in half.state_dict().items()}
    whole, gradients = torch_side.widely(half, case, backwards=True)
    for key, value in half.state_dict().items():
        assert torch.equal(value, before[key]), key
        assert value.dtype == torch.bfloat16
    patches = tuple(torch.tensor(one).bfloat16().float().numpy() for one in case.patches)
    full = half.float()
    expected = torch_side.record(full, case._replace(patches=patches), half=False).whole
    np.testing.assert_allclose(whole.logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(whole.features, expected.features, atol=1e-5)
    named = torch_side.gradient(full, case._replace(patches=patches))
    assert gradients.keys() == named.keys()
    for key, kept in named.items():
        np.testing.assert_allclose(gradients[key].numbers, kept.numbers, atol=1e-5, err_msg=key)


def test_the_pixels_are_those_of_the_processor_in_the_folder(monkeypatch):
    folder = folders.folder(CASES["qwen2_vl"])
    original = torch_side.pixel_values
    monkeypatch.setattr(
        torch_side, "pixel_values", lambda *given: [one + 1e-3 for one in original(*given)]
    )
    first = next(compare_policy(folder, dtype="float32", device="cpu", progress=silent))
    assert (first.stage, first.passed) == ("pixel values", False)
