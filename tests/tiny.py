"""What many tests share: a tiny Qwen3-VL, its folder, its parameters, its images.

The parameters are not those of `Model.init`: every bias is random and every norm's scale differs
from 1, so that leaving one out shows, and the logits have a standard deviation above 1.
"""

import atexit
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxagent.data.tiny_policy import PolicySizes, make_policy_folder
from jaxagent.models.config import TextConfig
from jaxagent.models.layers import blueprint
from jaxagent.models.policy import Model, PolicyConfig, Towers
from jaxagent.models.qwen3_vl import Qwen3VisionConfig
from jaxagent.processing.policy import LoadedPolicy, open_policy
from jaxagent.trees import Params, map_named
from jaxagent.weights.folder import write_policy

SIZES = PolicySizes(
    vocab=512,
    width=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_size=16,
    mlp_width=48,
    vision_width=32,
    vision_layers=3,
    vision_heads=2,
    vision_mlp_width=48,
    patch=4,
    positions=36,
    deepstack=(0, 2),
    image_pixels=16 * 16,
    rope_theta=100.0,  # so that every frequency turns within a short context
)

TEXTS = (
    "The capital of Chad is N'Djamena.",
    '<reason>Find.</reason><search_call>{"image": 1}</search_call>',
    "<reason>1 no 2 yes 3 no 4 no 5 no</reason><rerank>Romania</rerank>",
    '<reason>Read.</reason><search_call>{"text": ["Romania: What is its capital?"]}</search_call>',
    "Image 1 is Romania. Romania. Capital: Bucharest. Population: 19,053,815.",
    "<reason>Found.</reason><answer>Bucharest</answer>",
)

_TEXT = TextConfig(
    vocab=64,
    width=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_size=16,
    mlp_width=48,
    norm_epsilon=1e-6,
    rope_theta=1e4,
    rope_sections=(4, 2, 2),
    rope_interleaved=True,
    qk_norm=True,
    qkv_bias=False,
    out_bias=False,
    tied=True,
    deepstack=2,
)
_VISION = Qwen3VisionConfig(
    width=32,
    layers=3,
    heads=2,
    mlp_width=48,
    out_width=32,
    channels=3,
    patch=4,
    temporal_patch=2,
    merge=2,
    positions=36,
    deepstack=(0, 2),
)


def model(**text) -> Model:
    """A tiny model; keywords change its text sizes."""
    return Model(
        PolicyConfig(
            family="qwen3_vl",
            text=replace(_TEXT, **text),
            vision=_VISION,
            image_token=7,
        )
    )


def params(model: Model, *, seed: int = 0) -> Params:
    """Random parameters that hide nothing: see the module's docstring."""
    numbers = np.random.default_rng(seed)
    initial = blueprint(lambda: Towers(model.config)).initial

    def draw(name, leaf):
        mean, std = initial[name]
        spread = 1.5 * std if std else 0.3
        return jnp.asarray(mean + spread * numbers.standard_normal(leaf.shape), jnp.float32)

    return map_named(draw, model.shapes())


@cache
def policy_folder() -> Path:
    """A Hugging Face folder with a tiny policy of `SIZES` and random parameters."""
    temporary = tempfile.TemporaryDirectory(prefix="jaxagent-tiny-")
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    make_policy_folder(folder, TEXTS, sizes=SIZES, seed=0)
    policy = open_policy(folder)
    write_policy(folder, policy.model.config, params(policy.model), template=folder)
    return folder


@cache
def policy() -> LoadedPolicy:
    """The policy of `policy_folder` and its parameters."""
    opened = open_policy(policy_folder())
    return LoadedPolicy(opened, params(opened.model))


def image(seed: int, height: int = 16, width: int = 16) -> np.ndarray:
    """Random pixels, `[height, width, 3]` uint8."""
    numbers = np.random.default_rng(seed)
    return numbers.integers(0, 256, (height, width, 3), dtype=np.uint8)
