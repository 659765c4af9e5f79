"""Verdicts stand at the token after each candidate image, and tell the truth."""

import numpy as np

from jaxagent.training.samples import verdicts
from jaxagent.types import Candidate, Dialogue, ImageSpan, Trajectory, Turn
from tests.training.dialogues import question


def test_the_query_image_has_no_verdict_and_each_candidate_one():
    found = tuple(
        Candidate(entity=entity, name=entity, image=f"kb:{entity}", score=0.0)
        for entity in ("ro", "td")
    )
    # 0 start, 1-4 query, 5 end, 6 text | 7 start, 8-11 ro, 12 end, 13 name | 14 start ... 20 name
    images = [("view:td", 1), ("kb:ro", 8), ("kb:td", 15)]
    trajectory = Trajectory(
        dialogue=Dialogue(
            question=question("q"), turns=(Turn(author="environment", found=found),), done=True
        ),
        sample=0,
        ids=np.arange(22, dtype=np.int32),
        written=np.zeros(22, bool),
        log_probs=np.zeros(22, np.float32),
        images=tuple(ImageSpan(key=key, start=start, grid=(1, 4, 4)) for key, start in images),
    )
    assert verdicts(trajectory, merge=2) == {13: False, 20: True}
