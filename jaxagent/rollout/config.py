"""What a rollout is told: how tokens are drawn, how much is held, which shapes get compiled."""

from dataclasses import dataclass, field

from jaxagent.bounds import POSITIVE, SHARE, at_least, check_numbers
from jaxagent.models.policy import CacheKernel
from jaxagent.retrieval.ladders import rung
from jaxagent.rollout.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Settings of the engine.

    Ladders are ascending sizes; work is padded to the next rung, and only rungs are ever compiled.

    Args:
        context: tokens that one dialogue may hold, observations included.
        slots: dialogues that are decoded side by side, on all replicas.
        replicas: devices of this host that each hold the parameters and a share of the slots.
        decode_steps: tokens decoded by one device call.
        rows: dialogues in one device call, for each replica.
        chunk_lengths: tokens of an appended chunk; a longer one is appended in several.
        image_rows: images encoded together.
        kernel: how attention reads the cache: "row" for CPUs, "batch" for accelerators.
        span_step: the "batch" kernel reads this many slots, or a multiple of it.
        deterministic: gather tool answers at fixed points of the schedule, not as they arrive.
        tool_seconds: deadline of a batch of tool calls.
        tool_retries: further tries of a single call that raises.
        max_failure_rate: share of failed tool calls that stops the run.
        feature_bytes: bound of the host cache of image features.
    """

    sampling: Sampling = field(default_factory=Sampling)
    context: int = 768
    slots: int = 64
    replicas: int = 1
    decode_steps: tuple[int, ...] = (1, 8)
    rows: tuple[int, ...] = (8, 32)
    chunk_lengths: tuple[int, ...] = (32, 64, 128, 256)
    image_rows: tuple[int, ...] = (1, 16, 64)
    kernel: CacheKernel = "row"
    span_step: int = 128
    deterministic: bool = True
    tool_seconds: float = 30.0
    tool_retries: int = 1
    max_failure_rate: float = 0.05
    feature_bytes: int = 2**30

    def __post_init__(self) -> None:
        for name in ("decode_steps", "rows", "chunk_lengths", "image_rows"):
            ladder = getattr(self, name)
            if not ladder or ladder[0] < 1 or list(ladder) != sorted(set(ladder)):
                raise ValueError(
                    f"rollout.{name} is {ladder}; it must hold ascending sizes of at least 1."
                )
        sizes = ("context", "slots", "replicas", "span_step")
        check_numbers(self, "rollout", at_least(1), *sizes)
        check_numbers(self, "rollout", at_least(0), "tool_retries", "feature_bytes")
        check_numbers(self, "rollout", POSITIVE, "tool_seconds")
        check_numbers(self, "rollout", SHARE, "max_failure_rate")
        if self.slots % self.replicas:
            raise ValueError(
                f"rollout.slots is {self.slots}; it must be a multiple of {self.replicas} replicas."
            )


def piece(ladder: tuple[int, ...], size: int) -> int:
    """The rung for the first piece of `size`: in two pieces when that pads less than in one.

    ladder 32 64 128, size 70      64, with 32 for the rest, pads to 96 and not to 128
    """
    whole = rung(ladder, size)
    below = max((one for one in ladder if one < min(whole, size)), default=0)
    return below if below and below + rung(ladder, size - below) < whole else whole
