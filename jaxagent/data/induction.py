"""Initial values of a small text tower that can copy from its context.

A pretrained policy copies names and numbers out of its context by induction: one head looks a token
back, so that a token knows what it follows; a later head looks for what followed the present token
before (Olsson et al., 2022, arXiv 2209.11895). From random values a small tower needs millions of
tokens to find that circuit. Here it stands at the start, and training keeps or changes it:

    first layer    a token's query meets the key of the token before it, by position alone;
                   what it takes, P e(before), is written into a subspace of its own
    later layer    query P e(now) meets keys P e(before); what it takes, e there, is written out
    last layers    what any head takes is written out as it is: wherever a head learns to look, it
                   copies, tokens it never met too

Position alone needs something that every token shares: the embeddings get a common mean. One head
of each of the two layers is made so; the others start at random, free to learn to look. The idea of
starting attention near what training finds is Trockman and Kolter's (2023, arXiv 2305.09828).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxagent.models.config import TextConfig
from jaxagent.trees import Params, flat, nested

QK_SCALE = 1.7  # of the norms of q and k: at 1 a matching key cannot stand out of 300
EMBEDDING_SCALE = 2.0  # of the embeddings: at 1 the tied head cannot tell 2,000 tokens apart
OUTPUT_SCALE = 0.3  # of what layers add, so that a token's own embedding leads at the start
BEFORE_GAIN = 0.7  # of what the first layer's head writes
FOUND_GAIN = 2.0  # of what the later layer's head writes
COPY_GAIN = 1.0  # of what the last layers' heads write
FAST = (0, 1, 2)  # rotary pairs, the fastest, that tell a token's neighbours apart
SLOW = 1 / 128  # radians a token: rotary pairs below it match tokens whatever their distance


def with_induction(params: Params, config: TextConfig, *, seed: int) -> Params:
    """Qwen3's text tower with the circuit in it, from a tower with random values.

    The first layer is the first of deepstack's, the later one the first behind them.
    """
    rng = np.random.default_rng((seed, 11))
    named = {name: np.array(leaf) for name, leaf in flat(params).items()}
    for name, leaf in named.items():
        if name.endswith(("q_norm/scale", "k_norm/scale")):
            leaf[0] *= QK_SCALE  # the circuit's layers are the first of each stack
        if name.endswith(("attention/o/kernel", "mlp/down/kernel")):
            leaf *= OUTPUT_SCALE
    table = named["embed/table"]
    shared = np.sign(rng.normal(size=config.width)) * table.std()
    table *= EMBEDDING_SCALE
    table += shared
    shared /= np.linalg.norm(shared)
    before, found = "deepstack_layers/attention", "layers/attention"
    angles = rotary_angles(config)
    key, query = looking_back(angles, FAST, 1.0)
    slow = np.tile(angles < SLOW, 2)
    taken, written, copied = (_projection(rng, config, shared) for _ in range(3))
    taken, written = taken * slow, written * slow
    named[f"{before}/k/kernel"][0, :, 0] = np.outer(shared, key)
    named[f"{before}/q/kernel"][0, :, 0] = np.outer(shared, query)
    named[f"{before}/v/kernel"][0, :, 0] = taken
    named[f"{before}/o/kernel"][0, 0] = BEFORE_GAIN * written.T
    named[f"{found}/k/kernel"][0, :, 0] = written
    named[f"{found}/q/kernel"][0, :, 0] = taken
    named[f"{found}/v/kernel"][0, :, 0] = copied
    named[f"{found}/o/kernel"][0, 0] = FOUND_GAIN * copied.T
    per_group = config.heads // config.kv_heads
    for layer in range(1, named[f"{found}/o/kernel"].shape[0]):
        for group in range(config.kv_heads):
            copied = _projection(rng, config, shared)
            heads = slice(group * per_group, (group + 1) * per_group)
            named[f"{found}/v/kernel"][layer, :, group] = copied
            named[f"{found}/o/kernel"][layer, heads] = COPY_GAIN * copied.T
    return nested({name: jnp.asarray(leaf) for name, leaf in named.items()})


def rotary_angles(config: TextConfig) -> Float[np.ndarray, " r"]:
    """How far each rotary pair turns a token, in radians."""
    half = config.head_size // 2
    return config.rope_theta ** (-np.arange(half) / half)


def looking_back(
    angles: Float[np.ndarray, " r"], pairs: Sequence[int], distance: float
) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
    """A key, and the query whose rotated product with it is largest `distance` tokens later."""
    used = np.isin(np.arange(len(angles)), pairs).astype(np.float64)
    turned = distance * angles
    key = np.concatenate([used, 0 * used])
    return key, np.concatenate([used * np.cos(turned), -used * np.sin(turned)])


def _projection(
    rng: np.random.Generator, config: TextConfig, shared: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "d h"]:
    """A random orthonormal projection that does not see the shared direction."""
    random = rng.normal(size=(config.width, config.head_size))
    random -= np.outer(shared, shared @ random)
    return np.linalg.qr(random)[0]
