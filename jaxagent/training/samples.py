"""What training takes from a trajectory: its exact tokens, and the numbers that its loss needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxagent.agents.protocol import with_images
from jaxagent.models.rope import num_image_tokens
from jaxagent.types import Candidate, ImageSpan, Trajectory


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One dialogue to learn from; `group` is the number of its question in the batch.

    `verdicts` are extra targets: at each of these positions the policy is asked whether the image
    just read shows the entity that the question is about.
    """

    ids: Int[np.ndarray, " t"]
    written: Bool[np.ndarray, " t"]
    log_probs: Float[np.ndarray, " t"]
    images: tuple[ImageSpan, ...] = ()
    calls: int = 0
    group: int = 0
    advantage: float = 0.0
    verdicts: Mapping[int, bool] = field(default_factory=dict)

    def __post_init__(self):
        if self.written[:1].any():
            raise ValueError("The first token is marked as written, but nothing predicts it.")

    @property
    def num_targets(self) -> int:
        return int(self.written.sum())


def sample(
    trajectory: Trajectory,
    *,
    group: int = 0,
    advantage: float = 0.0,
    verdicts: Mapping[int, bool] | None = None,
) -> Sample:
    """A trajectory as something to learn from."""
    return Sample(
        ids=trajectory.ids,
        written=trajectory.written,
        log_probs=trajectory.log_probs,
        images=trajectory.images,
        calls=trajectory.num_calls,
        group=group,
        advantage=advantage,
        verdicts=verdicts or {},
    )


def verdicts(trajectory: Trajectory, *, merge: int) -> dict[int, bool]:
    """Same or different, at the token that follows each candidate image.

    The token after an image, of the candidate's number or name, is where the comparison with the
    query image can gather:

        <vision_start> <image> <image> <vision_end> 1 Chad <vision_start> ...
                                                    ^ here

    The answer is yes when the candidate is the entity of the query image that was searched.
    """
    served = iter(_served(trajectory))
    labels = {}
    for image in trajectory.images[len(trajectory.question.images) :]:
        same = next((same for candidate, same in served if candidate.image == image.key), None)
        after_marker = image.start + num_image_tokens(image.grid, merge) + 1
        if same is not None and after_marker < len(trajectory.ids):
            labels[after_marker] = same
    return labels


def _served(trajectory: Trajectory) -> list[tuple[Candidate, bool]]:
    """Every candidate in the order shown, and whether it is the entity of the image searched."""
    entities = trajectory.question.entities
    return [
        (one, one.entity == entities[image])
        for turn, image in with_images(trajectory.dialogue)
        for one in turn.found
        if isinstance(one, Candidate)
    ]


def until_first_choice(one: Sample) -> Sample:
    """The sample up to the end of the turn after its first candidates; as it is without any."""
    if not one.verdicts:
        return one
    first = min(one.verdicts)
    turn_ends = np.flatnonzero(one.written[first:-1] & ~one.written[first + 1 :])
    end = first + turn_ends[0] + 1 if len(turn_ends) else len(one.ids)
    return replace(
        one,
        ids=one.ids[:end],
        written=one.written[:end],
        log_probs=one.log_probs[:end],
        images=tuple(image for image in one.images if image.start < end),
        verdicts={place: same for place, same in one.verdicts.items() if place < end},
    )
