"""The papers' formulae, transcribed word by word in slow NumPy: one Python loop per sum sign.

A batch is a list of samples; a sample is (log_probs, old_log_probs, advantage, calls, group), each
of the first two a list over its targets. Nothing of the package is used here.
"""

import math


def grpo(samples, *, low, high):
    """Token-level GRPO: 1 / sum_i |o_i| * sum_i sum_t min(r A, clip(r) A), r = pi / pi_old."""
    total, count = 0.0, 0
    for log_probs, old, advantage, _, _ in samples:
        for new_t, old_t in zip(log_probs, old, strict=True):
            ratio = math.exp(new_t - old_t)
            clipped = min(max(ratio, 1 - low), 1 + high)
            total += min(ratio * advantage, clipped * advantage)
            count += 1
    return -total / count


def gspo(samples, *, low, high):
    """GSPO equation 5: 1 / G * sum_i min(s A, clip(s) A), s = exp(1 / |y| sum_t log ratio)."""
    total = 0.0
    for log_probs, old, advantage, _, _ in samples:
        s = math.exp(sum(n - o for n, o in zip(log_probs, old, strict=True)) / len(log_probs))
        total += min(s * advantage, min(max(s, 1 - low), 1 + high) * advantage)
    return -total / len(samples)


def tn_gspo(samples, *, low, high, c, alpha, offset):
    """ProMSA: D = L (1 + c H^alpha), r = exp(sum_t Delta_t / D), min(r A, clip(r) A)."""
    total = 0.0
    for log_probs, old, advantage, calls, _ in samples:
        d = len(log_probs) * (1 + c * (offset + calls) ** alpha)
        r = math.exp(sum(n - o for n, o in zip(log_probs, old, strict=True)) / d)
        total += min(r * advantage, min(max(r, 1 - low), 1 + high) * advantage)
    return -total / len(samples)


def cross_entropy(samples):
    """The mean of - log pi over all targets."""
    values = [value for log_probs, *_ in samples for value in log_probs]
    return -sum(values) / len(values)
