"""What one target weighs in the loss, from counts of the whole batch.

    token_mean:        1 / (all targets)                           every target the same
    sequence_mean:     1 / (samples * targets of the sample)       every sample the same
    group_token_mean:  1 / (groups * targets of the group)         every group the same

The counts are of the global batch, so a micro-batch, a packed row or a host changes no weight, and
the loss of a batch is the plain sum of weighted terms.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Counts(NamedTuple):
    """Targets of each of n samples and of its group, and the totals of the global batch."""

    lengths: Int[np.ndarray, " n"]
    group_lengths: Int[np.ndarray, " n"]
    num_targets: int
    num_samples: int
    num_groups: int


def counts(lengths: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Counts:
    """The counts of a batch on one host; `groups[i]` is the number of sample i's group."""
    names, member = np.unique(groups, return_inverse=True)
    group_lengths = np.bincount(member, weights=lengths, minlength=len(names)).astype(np.int64)
    return Counts(lengths, group_lengths[member], int(lengths.sum()), len(lengths), len(names))


def token_mean(counts: Counts) -> Float[np.ndarray, " n"]:
    """The weight of a target when all targets of the batch weigh the same."""
    return np.full(len(counts.lengths), 1 / max(counts.num_targets, 1), np.float32)


def sequence_mean(counts: Counts) -> Float[np.ndarray, " n"]:
    """The weight of a target when all samples weigh the same; a sample without targets adds 0."""
    return (1 / (counts.num_samples * np.maximum(counts.lengths, 1))).astype(np.float32)


def group_token_mean(counts: Counts) -> Float[np.ndarray, " n"]:
    """The weight of a target when all groups weigh the same."""
    return (1 / (counts.num_groups * np.maximum(counts.group_lengths, 1))).astype(np.float32)
