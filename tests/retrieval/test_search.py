"""Search over an open base: candidates, passages, exclusion, and the recall of the retriever."""

import numpy as np
import pytest

from jaxagent.retrieval import knowledge_base as kb
from jaxagent.retrieval.encoders import Encoders
from jaxagent.retrieval.search import entity_ranks, recall, search_images, search_passages
from jaxagent.types import Passage, Question


class Direction:
    """Encodes an image as the unit vector at the angle (in degrees) that its first pixel says."""

    name, digest = "direction", "1"

    def __init__(self):
        self.num_images = 0

    def __call__(self, images):
        self.num_images += len(images)
        turns = np.radians([float(image[0, 0, 0]) for image in images])
        return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def images(key):
    return np.full((2, 2, 3), int(key.split(":")[1]), np.uint8)


# By angle: Ash at 10 and 60, Elm at 20, Fir at 50, Yew at 90.
ENTITIES = [
    kb.Entity(id="yew", name="Yew", images=("kb:90",)),
    kb.Entity(id="ash", name="Ash", images=("kb:10", "kb:60")),
    kb.Entity(id="elm", name="Elm", images=("kb:20",)),
    kb.Entity(id="fir", name="Fir", images=("kb:50",)),
]
PASSAGES = [
    Passage(id="elm-1", title="Elm", text="Leaves: rough"),
    Passage(id="elm-2", title="Elm", text="Bark: grey"),
    Passage(id="yew-1", title="Yew", text="Leaves: needles"),
]


@pytest.fixture
def base(tmp_path):
    encoders = Encoders(Direction(), None)
    return kb.build(tmp_path, ENTITIES, PASSAGES, images=images, encoders=encoders)


def ids(rows):
    return [[row.entity for row in found] for found in rows]


def question(images, entities):
    return Question(
        data_id="1", images=images, text="?", kind="String", family="single", answers=("a",),
        entities=entities, relation="r",
    )  # fmt: skip


def test_an_entity_is_one_candidate_with_its_best_image(base):
    (found,) = search_images(base, ["q:14"], [4], [()])
    assert [(row.name, row.image) for row in found] == [
        ("Ash", "kb:10"), ("Elm", "kb:20"), ("Fir", "kb:50"), ("Yew", "kb:90"),
    ]  # fmt: skip
    assert found[0].score == pytest.approx(np.cos(np.radians(4)), abs=1e-6)
    (far,) = search_images(base, ["q:66"], [1], [()])
    assert far[0].image == "kb:60"


def test_each_call_has_its_own_top_and_exclusions(base):
    found = search_images(base, ["q:14", "q:14", "q:85"], [2, 3, 1], [(), {"ash"}, {"yew"}])
    assert ids(found) == [["ash", "elm"], ["elm", "fir", "yew"], ["ash"]]


def test_served_batches_never_overlap_and_end_with_a_short_one(base):
    served = []
    sizes = []
    for _ in range(3):
        (batch,) = search_images(base, ["q:14"], [3], [served])
        served += [row.entity for row in batch]
        sizes.append(len(batch))
    assert served == ["ash", "elm", "fir", "yew"]
    assert sizes == [3, 1, 0]


def test_a_query_image_is_encoded_once(base):
    base.image_encoder.num_images = 0
    for _ in range(3):
        search_images(base, ["q:14", "q:14", "q:85"], [1, 2, 1], [(), (), ()])
    assert base.image_encoder.num_images == 2


def test_unknown_exclusions_and_images_raise_with_their_name(base):
    with pytest.raises(KeyError, match="no entity 'oak'"):
        search_images(base, ["q:14"], [1], [{"oak"}])
    with pytest.raises(KeyError, match="no passage 'oak-1'"):
        search_passages(base, ["oak"], [1], [{"oak-1"}])


def test_passages_come_best_first_without_the_excluded(base):
    found = search_passages(base, ["elm leaves", "leaves"], [2, 3], [(), {"elm-1"}])
    assert [[row.id for row in rows] for rows in found] == [["elm-1", "elm-2"], ["yew-1"]]
    assert found[0][0].score > found[0][1].score > 0


def test_no_calls_return_no_results(base):
    assert search_images(base, [], [], []) == []
    assert search_passages(base, [], [], []) == []


def test_recall_needs_all_images_of_a_question(base):
    questions = [
        question(("q:14",), ("ash",)),
        question(("q:14",), ("elm",)),
        question(("q:14", "q:85"), ("ash", "fir")),
        question(("q:85", "q:14"), ("yew", "yew")),
    ]
    assert entity_ranks(base, questions, 3).tolist() == [1, 2, 3, 0]
    assert recall(base, questions, (1, 2, 3)) == {1: 0.25, 2: 0.5, 3: 0.75}
    with pytest.raises(ValueError, match="at least one question"):
        recall(base, [])
