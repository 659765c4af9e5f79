"""Log ratios between the policy and the one that sampled, on the targets of packed rows.

With delta_t = log pi(y_t) - log pi_old(y_t), L the targets of a sample, H = offset + its calls:

    token     (GRPO)     delta_t
    sequence  (GSPO)     sum_t delta_t / L                           the same on every target
    horizon   (TN-GSPO)  sum_t delta_t / (L * (1 + c * H^alpha))     the same on every target
    released  (TN-GSPO as ProMSA's code runs it)  the horizon's value, with the gradient of delta_t

A row holds several samples (u targets, z samples):

    targets       a  b  c  d  e  -
    samples.ids   1  1  1  2  2  0     0: no target here
    samples.calls 2  5                 one column a sample

Sources: DeepSeekMath section 4.1, GSPO section 4 (arXiv 2507.18071), ProMSA section "TN-GSPO" and
its public release. The KL term of GRPO is left out: none of the recipes here uses it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Samples(NamedTuple):
    """Which sample of its row a target belongs to (1, 2, ...; 0: none), and each sample's calls."""

    ids: Int[Array, "b u"]
    calls: Int[Array, "b z"]


def membership(samples: Samples) -> Bool[Array, "b u z"]:
    """True where target u belongs to sample z of its row."""
    columns = jnp.arange(1, samples.calls.shape[1] + 1, dtype=samples.ids.dtype)
    return samples.ids[:, :, None] == columns[None, None, :]


def spread(table: Float[Array, "b z"], samples: Samples) -> Float[Array, "b u"]:
    """Each sample's number on its targets, 0 where there is no target."""
    return jnp.sum(jnp.where(membership(samples), table[:, None, :], 0), axis=2)


def sample_means(x: Float[Array, "b u"], samples: Samples) -> Float[Array, "b z"]:
    """The mean of x over each sample's targets; 0 for a sample without any."""
    member = membership(samples)
    lengths = jnp.maximum(jnp.sum(member, axis=1), 1)
    return jnp.sum(jnp.where(member, x[:, :, None], 0), axis=1) / lengths.astype(x.dtype)


def token_log_ratio(delta: Float[Array, "b u"], samples: Samples) -> Float[Array, "b u"]:
    """GRPO: every target keeps its own ratio."""
    del samples
    return delta


def sequence_log_ratio(delta: Float[Array, "b u"], samples: Samples) -> Float[Array, "b u"]:
    """GSPO: the log of the geometric mean of a sample's ratios, on each of its targets."""
    return spread(sample_means(delta, samples), samples)


def horizon_log_ratio(
    delta: Float[Array, "b u"],
    samples: Samples,
    *,
    c: float = 0.04,
    alpha: float = 1.0,
    offset: int = 1,
) -> Float[Array, "b u"]:
    """TN-GSPO: GSPO's log ratio divided by 1 + c * (offset + calls)^alpha."""
    horizon = (samples.calls + offset).astype(delta.dtype)
    return spread(sample_means(delta, samples) / (1 + c * horizon**alpha), samples)


def released_log_ratio(
    delta: Float[Array, "b u"],
    samples: Samples,
    *,
    c: float = 0.04,
    alpha: float = 1.0,
    offset: int = 0,
) -> Float[Array, "b u"]:
    """TN-GSPO as released: the value of `horizon_log_ratio`, the gradient of `token_log_ratio`.

    The release rescales the old log-probabilities and hands them to a GSPO whose ratio is
    stop_gradient(sequence ratio) + (log pi - stop_gradient(log pi)); its gradient therefore lacks
    the division by 1 + c * H^alpha, which acts on the value, and so on clipping, alone.
    """
    value = horizon_log_ratio(delta, samples, c=c, alpha=alpha, offset=offset)
    return jax.lax.stop_gradient(value - delta) + delta
