"""Initial values of a small text tower that can tell whether two images show the same.

A pretrained policy compares images; from random values a small tower needs tens of thousands of
dialogues to find out how. Here a circuit for it stands at the start, in the second group of heads
beside the one of `data.induction`, and training keeps or changes it:

    first layer        a token looks for the end of a search call and notes whether there is one
    last of deepstack  a token takes z, principal components of the features of the last image
    first behind it    queries z meet keys z, and keys with the note are dimmed: at a candidate's
                       name attention stays with the candidate, or goes to what was said before the
                       search where the question's image looks the same; that share is written out

What is left to learn is to read the share, to see finer differences and to compare candidates.

Three things make room. Image tokens get a common mean, by which keys tell them from text. Nothing
else writes where z, the note and the share stand. And z turns with slow rotary pairs alone.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxagent.data.induction import QK_SCALE, SLOW, looking_back, rotary_angles
from jaxagent.models.decoder import ImageFeatures
from jaxagent.models.policy import PolicyConfig
from jaxagent.trees import Params, flat, nested

IMAGE_MEAN = 0.75  # size of the common mean, in that of the embeddings
LOCAL = 0.6  # share of the energy of an image token's key that tells how far it lies back
DISTANCE = 2.5  # tokens back at which an image is found best: right behind it
LOCAL_PAIRS = (1, 2, 3)  # rotary pairs that tell an image from the one before it
SEARCH = 0.8  # of the embedding of a search's end in a key, beside the mean of all others
NOTE_GAIN, VECTOR_GAIN, SHARE_GAIN = 0.1, 0.3, 0.6  # of what the three heads write
DIM_KEY, DIM_QUERY = 1.2, 0.5  # of the note in a key, and of the query that it meets


def with_matching(
    params: Params, config: PolicyConfig, features: ImageFeatures, *, search_end: int
) -> Params:
    """A policy's parameters with the circuit in them; the text tower's are `with_induction`'s.

    Args:
        features: of sample images, as large as embeddings (`training.warm_start.levelled`).
        search_end: the token that ends a search call.
    """
    check_room(config)
    text, last = config.text, len(config.vision.deepstack) - 1
    named = {name: np.array(leaf) for name, leaf in flat(params).items()}
    deep, behind = "text/deepstack_layers/attention", "text/layers/attention"
    table, head = named["text/embed/table"], text.heads // text.kv_heads

    angles = rotary_angles(text)
    slow = np.flatnonzero(np.tile((angles < SLOW) & (angles > angles[-1]), 2))
    note_pair = np.eye(text.head_size)[len(angles) - 1]  # the slowest is the note's
    slow_key = np.isin(np.arange(text.head_size), slow) / len(slow) ** 0.5
    local_key, local_query = looking_back(angles, LOCAL_PAIRS, DISTANCE)
    local = (LOCAL / len(LOCAL_PAIRS)) ** 0.5
    image_key = local * local_key + (1 - LOCAL) ** 0.5 * slow_key
    image_query = local * local_query + (1 - LOCAL) ** 0.5 * slow_key

    word = _unit(table.mean(axis=0))  # what all embeddings share
    taken = (named[f"{deep}/o/kernel"][0, 0].T, named[f"{behind}/q/kernel"][0, :, 0],
             named[f"{behind}/v/kernel"][0, :, 0], word[:, None])  # fmt: skip
    free = _orthogonal(np.concatenate(taken, axis=1))
    z, (image, note, share) = free[:, : len(slow)], free[:, len(slow) :].T[:3]
    own = np.concatenate([z, note[:, None], share[:, None]], axis=1)
    for name, leaf in named.items():
        if name.startswith("text/") and name.endswith(("embed/table", "o/kernel", "down/kernel")):
            leaf -= (leaf @ own) @ own.T

    mean = IMAGE_MEAN * np.sqrt(np.mean(table**2) * text.width) * image
    shift = mean - np.asarray(features.tokens).mean(axis=(0, 1))
    named["vision/merger/mlp/down/bias"] += shift
    seen = np.asarray(features.tokens) + shift + np.asarray(features.deepstack)[:-1].sum(axis=0)
    components = _principal(seen, len(slow), (image, word))

    end = _unit(table[search_end] - word * (word @ table[search_end]))
    named[f"{deep}/q/kernel"][0, :, head] = np.outer(image + word, slow_key)
    named[f"{deep}/k/kernel"][0, :, 1] = np.outer(SEARCH * end - word - image, slow_key)
    named[f"{deep}/v/kernel"][0, :, 1, 0] = end
    named[f"{deep}/o/kernel"][0, head] = 0
    named[f"{deep}/o/kernel"][0, head, 0] = NOTE_GAIN * note

    named[f"{deep}/q_norm/scale"][last] *= QK_SCALE
    named[f"{deep}/k_norm/scale"][last] *= QK_SCALE
    named[f"{deep}/q/kernel"][last, :, head] = np.outer(image + word, image_query)
    named[f"{deep}/k/kernel"][last, :, 1] = np.outer(image - word, image_key)
    named[f"{deep}/v/kernel"][last, :, 1, : len(slow)] = components
    named[f"{deep}/o/kernel"][last, head] = 0
    named[f"{deep}/o/kernel"][last, head, : len(slow)] = VECTOR_GAIN * z.T

    matched = np.zeros((text.width, text.head_size))
    matched[:, slow] = z
    named[f"{behind}/q/kernel"][0, :, head] = matched + DIM_QUERY * np.outer(word, note_pair)
    named[f"{behind}/k/kernel"][0, :, 1] = matched - DIM_KEY * np.outer(note, note_pair)
    named[f"{behind}/v/kernel"][0, :, 1, 0] = note
    named[f"{behind}/o/kernel"][0, head, 0] = -SHARE_GAIN * share
    return nested({name: jnp.asarray(leaf) for name, leaf in named.items()})


def check_room(config: PolicyConfig) -> None:
    """Raises ValueError when the text tower is too small for both circuits."""
    text, num_deep = config.text, len(config.vision.deepstack)
    num_slow = 2 * int(np.sum(rotary_angles(text) < SLOW))
    needed = 2 * num_slow + text.head_size + 1 + num_slow + 1
    if num_deep < 2 or text.kv_heads < 2 or text.width < needed:
        raise ValueError(
            "A new policy that learns to compare images needs at least 2 deepstack layers, 2 key "
            f"heads and a width of {needed}; model.sizes gives {num_deep}, {text.kv_heads} and "
            f"{text.width}."
        )


def _principal(
    features: Float[np.ndarray, "i n d"], count: int, unseen: tuple[Float[np.ndarray, " d"], ...]
) -> Float[np.ndarray, "d c"]:
    """The principal components of the images' mean normed features, without some directions."""
    sizes = np.sqrt(np.mean(features**2, axis=-1, keepdims=True))
    means = (features / sizes).mean(axis=1)
    means -= means.mean(axis=0)
    for direction in unseen:
        means -= np.outer(means @ direction, direction)
    return np.linalg.svd(means, full_matrices=len(means) < count)[2][:count].T


def _orthogonal(taken: Float[np.ndarray, "d n"]) -> Float[np.ndarray, "d m"]:
    """An orthonormal basis of what is orthogonal to all columns."""
    basis, sizes, _ = np.linalg.svd(taken, full_matrices=True)
    return basis[:, int(np.sum(sizes > 1e-4 * sizes[0])) :]


def _unit(x: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    return x / np.linalg.norm(x)
