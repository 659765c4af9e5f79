"""Verdicts stand at the token after each candidate image, and tell the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxagent.agents.mmagent_r2 import Reject, SearchImage
from jaxagent.training.samples import Sample, until_first_choice, verdicts
from jaxagent.types import Candidate, Dialogue, ImageSpan, Question, Trajectory, Turn
from tests.training.dialogues import question


def candidates(*entities: str) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(entity=entity, name=entity, image=f"kb:{entity}", score=0.0)
        for entity in entities
    )


def played(asked: Question, turns: Sequence[Turn], images: Mapping[int, str], size: int):
    """A dialogue of `size` tokens, none of them written; `images` are by their first token."""
    return Trajectory(
        dialogue=Dialogue(question=asked, turns=tuple(turns), done=True),
        sample=0,
        ids=np.arange(size, dtype=np.int32),
        written=np.zeros(size, bool),
        log_probs=np.zeros(size, np.float32),
        images=tuple(
            ImageSpan(key=key, start=start, grid=(1, 4, 4)) for start, key in images.items()
        ),
    )


def test_the_query_image_has_no_verdict_and_each_candidate_one():
    found = candidates("ro", "td")
    # 0 start, 1-4 query, 5 end, 6 text | 7 start, 8-11 ro, 12 end, 13 name | 14 start ... 20 name
    images = {1: "view:td", 8: "kb:ro", 15: "kb:td"}
    trajectory = played(question("q"), [Turn(author="environment", found=found)], images, 22)
    assert verdicts(trajectory, merge=2) == {13: False, 20: True}


def test_a_candidate_is_held_against_the_image_that_was_searched():
    asked = replace(question("q"), images=("view:td", "view:ro"), entities=("td", "ro"))
    turns = [
        turn
        for number, found in ((1, candidates("ro", "td")), (2, candidates("td", "ro")))
        for turn in (
            Turn(author="policy", action=SearchImage(number)),
            Turn(author="environment", found=found),
        )
    ]
    keys = (*asked.images, "kb:ro", "kb:td", "kb:td", "kb:ro")
    trajectory = played(asked, turns, {8 * i: key for i, key in enumerate(keys)}, 48)
    assert verdicts(trajectory, merge=2) == {21: False, 29: True, 37: False, 45: True}


def test_a_search_of_an_image_that_is_not_there_changes_nothing():
    """The policy may ask for it; its next rejection goes on with the image before."""
    turns = (
        Turn(author="policy", action=SearchImage(1)),
        Turn(author="environment", found=candidates("ro")),
        Turn(author="policy", action=SearchImage(7)),
        Turn(author="environment", parts=("Error: images are numbered 1 to 1.",)),
        Turn(author="policy", action=Reject()),
        Turn(author="environment", found=candidates("td")),
    )
    images = {0: "view:td", 8: "kb:ro", 16: "kb:td"}
    trajectory = played(question("q"), turns, images, 24)
    assert verdicts(trajectory, merge=2) == {13: False, 21: True}


def test_a_look_ends_after_the_first_choice():
    # 0-1 prompt, 2-5 query, 6 written | 7-10 first candidate, 11 name | 12 written | 13-16, 17 name
    images = tuple(
        ImageSpan(key=key, start=start, grid=(1, 4, 4))
        for key, start in (("view:td", 2), ("kb:ro", 7), ("kb:td", 13))
    )
    whole = Sample(
        ids=np.arange(20, dtype=np.int32),
        written=np.isin(np.arange(20), (6, 12, 18, 19)),
        log_probs=np.zeros(20, np.float32),
        images=images,
        verdicts={11: False, 17: True},
    )
    look = until_first_choice(whole)
    assert look.ids.tolist() == list(range(13))
    assert (look.num_targets, look.images, look.verdicts) == (2, images[:2], {11: False})
    assert until_first_choice(replace(whole, verdicts={17: True})).ids.tolist() == list(range(20))
    plain = replace(whole, verdicts={})
    assert until_first_choice(plain) is plain
