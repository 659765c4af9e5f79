"""BEM's 206 variables at tiny sizes, as a network that tells its inputs apart.

tests/data/bem_saved_model was written of it by TensorFlow 2.21.0, in an environment of its own
that has nothing else, from the root of the repository:

    import tensorflow as tf
    from tests.weights.bem_network import network
    module = tf.__internal__.tracking.AutoTrackable()
    module.variables = [tf.Variable(array) for array in network()]
    tf.saved_model.save(module, "tests/data/bem_saved_model")  # of which variables/ is kept
"""

from pathlib import Path

import numpy as np

SAVED_MODEL = Path(__file__).parents[1] / "data" / "bem_saved_model"
V, D, P, T, N, H, F = 24, 6, 40, 3, 2, 3, 5
_KEY = [(N, H), (D, N, H)]
_LAYER = [(D,), (D,), *_KEY, (D,), (N, H, D), *_KEY, *_KEY, (F,), (D, F), (D,), (F, D), (D,), (D,)]
SHAPES = [(D,), (D,), (P, D), (T, D), (V, D), *_LAYER * 12]
SHAPES += [(V,), (D,), (D, D), (D,), (D,), (D,), (D, D), (2,), (D, 2)]
SHIFT = 2.0
"""What the classifier's bias adds to "equivalent", so that inputs get both verdicts."""


def network() -> list[np.ndarray]:
    """The variables; in the order of an alphabetical tree the network is what it is meant to be."""
    arrays = [_array(i, shape).astype(np.float32) for i, shape in enumerate(SHAPES)]
    arrays[204] = np.array([0, SHIFT], np.float32)
    return arrays


def _array(i: int, shape: tuple[int, ...]) -> np.ndarray:
    array = np.random.default_rng([1, i]).standard_normal(shape)
    place = (i - 5) % 16 if 5 <= i < 197 else -1
    if i in (2, 3):  # places and segments count less than words
        return 0.3 * array
    if i == 4:
        return array
    if i == 1 or place in (1, 15):  # scales of norms
        return 1 + 0.1 * array
    if len(shape) == 1 or place in (2, 6, 8):  # biases
        return 0.1 * array
    if place in (3, 7):  # keys and queries, large enough that attention chooses
        return 2 * array / D**0.5
    if place == 5:
        return array / D**0.5
    return (8 if i == 205 else 1) * array / shape[0] ** 0.5
