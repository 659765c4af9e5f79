"""Advantages of one group: the samples of one question, compared with each other.

    centred:       A_i = R_i - mean(R)                       (ProMSA, the paper's text)
    standardised:  A_i = (R_i - mean(R)) / (std(R) + 1e-6)   (GRPO, DeepSeekMath section 4.1)

Both run on the host in float64, so that the sum of a group is 0 to the last bits of float32.
"""

import numpy as np
from jaxtyping import Float


def centred(rewards: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Rewards less their mean; exactly 0 when all are equal."""
    rewards = rewards.astype(np.float64)
    if np.ptp(rewards) == 0:
        return np.zeros(len(rewards), np.float32)
    return (rewards - rewards.mean()).astype(np.float32)


def standardised(
    rewards: Float[np.ndarray, " m"], *, ddof: int = 0, epsilon: float = 1e-6
) -> Float[np.ndarray, " m"]:
    """Centred rewards in units of the group's standard deviation; exactly 0 when all are equal.

    Args:
        ddof: 0 divides the variance by m (the paper), 1 by m - 1 (verl and TRL).
        epsilon: added to the standard deviation.
    """
    rewards = rewards.astype(np.float64)
    if np.ptp(rewards) == 0:
        return np.zeros(len(rewards), np.float32)
    return ((rewards - rewards.mean()) / (rewards.std(ddof=ddof) + epsilon)).astype(np.float32)
