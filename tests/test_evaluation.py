"""Evaluation: which questions are asked, what is kept of a dialogue, and the figures."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from jaxagent.agents.mmagent_r2 import (
    Answer,
    ImageSearch,
    MMAgentR2,
    Reject,
    Rerank,
    SearchImage,
    SearchText,
    State,
    format_turn,
    method,
)
from jaxagent.evaluation import (
    Protocol,
    chosen,
    dialogue_row,
    metrics,
    paired_change,
    read_rows,
    summary,
    tower_identified,
    write_rows,
)
from jaxagent.retrieval import knowledge_base
from jaxagent.retrieval.encoders import Encoders
from jaxagent.retrieval.hits import IndexConfig
from jaxagent.types import Candidate, Dialogue, ImageRef, Passage, Question, Score, Trajectory, Turn
from tests.agents import dialogues


def question(name: str, *, entity: str = "ro", split: str = "unseen_entity", **changes) -> Question:
    fields = {
        "data_id": name,
        "images": (f"view:{entity}",),
        "text": "What is its capital?",
        "kind": "String",
        "family": "single",
        "answers": ("Bucharest",),
        "entities": (entity,),
        "relation": "capital",
        "evidence": ("ro-1",),
        "split": split,
    }
    return Question(**(fields | changes))


def candidate(entity: str, name: str) -> Candidate:
    return Candidate(entity=entity, name=name, image=f"kb:{entity}", score=0.5)


CHAD, ROMANIA = candidate("td", "Chad"), candidate("ro", "Romania")


def policy(action: object) -> Turn:
    return Turn(author="policy", text="…", action=action)


def returned(*found: Candidate | Passage) -> Turn:
    return Turn(author="environment", parts=("1 ", ImageRef("kb:td")), found=found)


def trajectory(*turns: Turn, recorded: Candidate | None = None) -> Trajectory:
    state = State(images=(ImageSearch(entity=recorded),))
    dialogue = Dialogue(
        question=question("q"), turns=turns, state=state, done=True, answer="Bucharest"
    )
    nothing = np.zeros(4, np.float32)
    return Trajectory(
        dialogue=dialogue,
        sample=0,
        ids=np.arange(4),
        written=nothing.astype(bool),
        log_probs=nothing,
        num_calls=2,
    )


def row(done: Trajectory) -> dict:
    score = Score(total=2.0, terms={"outcome": 1.0, "format": 1.0})
    return dialogue_row(done, score, rank=3, names={"ro": "Romania"})


def decided(
    config: MMAgentR2,
    script: Sequence[str],
    ranking: Sequence[str] = dialogues.COUNTRIES,
    *,
    entities: Sequence[str] = ("ro",),
) -> list[tuple[str, bool | None]]:
    """Each decision of the script's and its verdict, with images of these entities."""
    asked = dialogues.question(*entities)
    dialogue, _ = dialogues.play(method(config), asked, script, answer=dialogues.tools(ranking))
    rows = row(dialogues.trajectory(dialogue))["turns"]
    return [(t["decision"]["kind"], t["decision"]["right"]) for t in rows if "decision" in t]


SEARCH, SECOND = (format_turn("look", SearchImage(1)), format_turn("look", SearchImage(2)))
REJECT = format_turn("none", Reject())
READ = format_turn("read", SearchText(("Land ro: What?",)))
ANSWER = format_turn("found", Answer("N'Djamena"))


def rerank(word: str) -> str:
    return format_turn("it", Rerank(word))


def test_right_decisions_are_told_from_wrong_ones():
    script = [SEARCH, REJECT, REJECT, rerank("LAND RO "), rerank("Land td"), READ, ANSWER]
    config = MMAgentR2(batch_size=2, rej_max=1)
    assert decided(config, script, ("td", "ad", "ro", "md")) == [
        ("search image", None),
        ("reject", True),
        ("reject", False),
        ("rerank", True),
        ("rerank", None),  # of a batch before: refused
        ("search text", None),
        ("answer", True),
    ]


@pytest.mark.parametrize("choice", ["name", "number"])
def test_a_rerank_by_the_word_that_is_not_asked_for_has_no_verdict(choice):
    found = decided(
        MMAgentR2(choice=choice), [SEARCH, rerank("Land ro"), rerank("2")], ("td", "ro")
    )
    assert found[1:] == [("rerank", True if choice == one else None) for one in ("name", "number")]


def test_a_rejection_before_any_batch_has_no_verdict():
    assert decided(MMAgentR2(), [REJECT]) == [("reject", None)]


def test_a_rejection_that_is_no_action_has_no_verdict():
    assert decided(MMAgentR2(variant="neither"), [SEARCH, REJECT])[1] == ("reject", None)


def test_a_decision_is_held_against_the_image_that_was_searched():
    script = [SECOND, rerank("Land td")]
    assert decided(MMAgentR2(), script, entities=("td", "ro"))[-1] == ("rerank", False)


def test_a_candidate_is_right_when_it_shows_the_image_that_was_searched():
    asked = dialogues.question("td", "ro")
    script = [SECOND, SEARCH, ANSWER]
    answer = dialogues.tools(("td", "ro"))
    dialogue, _ = dialogues.play(method(MMAgentR2()), asked, script, answer=answer)
    turns = row(dialogues.trajectory(dialogue))["turns"]
    right = [[one["right"] for one in turn["candidates"]] for turn in turns if "parts" in turn]
    assert [one for one in right if one] == [[False, True], [True, False]]


def test_a_decision_is_held_against_the_last_batch_of_its_image():
    """Image 1's pool is spent when it is searched again; image 2's batch was shown since."""
    script = [SEARCH, SECOND, SEARCH, rerank("Land td"), REJECT]
    config = MMAgentR2(batch_size=1, rej_max=0)
    assert decided(config, script, entities=("td", "ro"))[-2:] == [
        ("rerank", True),
        ("reject", False),
    ]


def test_identification_needs_the_true_entity():
    assert row(trajectory(recorded=ROMANIA))["identified"] is True
    assert row(trajectory(recorded=CHAD))["identified"] is False
    assert row(trajectory())["identified"] is False


def test_rows_survive_the_file(tmp_path):
    rows = [row(trajectory(policy(SearchImage(1)), returned(CHAD), recorded=CHAD))]
    write_rows(tmp_path / "a" / "rows.jsonl", rows)
    assert read_rows(tmp_path / "a" / "rows.jsonl") == json.loads(json.dumps(rows)) == rows
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["rows.jsonl"]


def test_a_torn_file_of_rows_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n{"id": 2')
    with pytest.raises(ValueError, match=r"rows\.jsonl is torn\. Delete the file"):
        read_rows(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("\n", "holds no dialogue"), ('{"id": 1}\n', "Line 1 of .* it lacks data_id, split")],
)
def test_rows_of_nothing_or_of_another_version_are_refused(tmp_path, text, said):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_rows(path)


def test_every_entity_is_asked_about_before_any_is_asked_twice():
    questions = [question(f"{entity}{n}", entity=entity) for entity in "abcd" for n in range(5)]
    kept = chosen(questions, Protocol(splits=("unseen_entity",), count=6, seed=1))
    counts = sorted(sum(q.entities[0] == entity for q in kept) for entity in "abcd")
    assert counts == [1, 1, 2, 2]
    assert kept == [q for q in questions if q in kept]


def test_splits_share_the_count_and_the_seed_decides():
    questions = [
        question(f"{split}{n}", entity=str(n % 7), split=split)
        for split in ("unseen_entity", "unseen_question")
        for n in range(40)
    ]
    protocol = Protocol(splits=("unseen_entity", "unseen_question"), count=11)
    first, again = chosen(questions, protocol), chosen(questions, protocol)
    assert first == again
    assert [sum(q.split == split for q in first) for split in protocol.splits] == [6, 5]
    other = Protocol(splits=protocol.splits, count=11, seed=5)
    assert chosen(questions, other) != first


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="no question in split 'unseen_question'"):
        chosen([question("q")], Protocol(splits=("unseen_question",)))


def counted(split: str, accuracy: float, *, entity: str = "ro", name: str = "q") -> dict:
    changes = {"accuracy": accuracy, "split": split, "entity_ids": [entity], "data_id": name}
    return row(trajectory(recorded=ROMANIA)) | changes


def test_overall_accuracy_is_the_harmonic_mean_over_splits():
    rows = [counted("unseen_entity", 0.0), counted("unseen_entity", 1.0)]
    rows += [counted("unseen_question", 1.0)]
    found = summary(rows)
    assert found.overall["accuracy"] == pytest.approx(2 / 3)
    assert found.groups["unseen_entity"]["accuracy"] == 0.5
    assert found.groups["unseen_question single"]["dialogues"] == 1
    assert found.overall["ident"] == 1.0
    assert found.overall["R@1"] == 0.0
    assert found.overall["R@15"] == 1.0
    assert found.overall["reward outcome"] == 1.0


def test_questions_whose_image_shows_too_little_are_reported_apart():
    rows = [counted("unseen_entity", 1.0), counted("unseen_entity", 0.0) | {"ambiguous": True}]
    groups = summary(rows).groups
    assert [groups[name]["accuracy"] for name in ("clear_view", "ambiguous_view")] == [1.0, 0.0]


def test_figures_over_several_splits_leave_training_questions_out():
    rows = [counted("unseen_entity", 0.0), counted("unseen_question", 1.0)]
    train = counted("train", 1.0) | {"rank": 1, "identified": False}
    found = summary([*rows, train, train])
    alone = summary(rows)
    assert found.overall == alone.overall
    assert found.groups.items() >= alone.groups.items()
    assert found.groups.keys() - alone.groups.keys() == {"train", "train single"}
    assert found.groups["train"]["dialogues"] == 2
    assert summary([train, train]).overall["dialogues"] == 2


def test_a_method_that_records_nothing_has_no_ident():
    assert "ident" not in metrics([counted("unseen_entity", 1.0) | {"identified": None}])


def test_no_row_is_refused():
    with pytest.raises(ValueError, match="no dialogue"):
        summary([])


def test_the_interval_of_a_paired_change_draws_entities():
    names = [(str(entity), f"{entity}-{n}") for entity in range(30) for n in range(4)]
    stream = np.random.default_rng(0)
    before = [counted("s", 0.0, entity=e, name=n) for e, n in names]
    gain = {str(entity): float(stream.random() < 0.5) for entity in range(30)}
    after = [counted("s", gain[e], entity=e, name=n) for e, n in names]
    change = paired_change(before, after, value=lambda r: r["accuracy"])
    share = np.mean(list(gain.values()))
    assert change.mean == pytest.approx(share)
    width = 2 * 1.96 * np.sqrt(share * (1 - share) / 30)
    assert change.high - change.low == pytest.approx(width, rel=0.15)


def test_a_paired_change_of_different_questions_is_refused():
    with pytest.raises(ValueError, match="share 0 of 2 questions"):
        paired_change(
            [counted("s", 1.0, name="a")],
            [counted("s", 1.0, name="b")],
            value=lambda r: r["accuracy"],
        )


def test_the_tower_reranks_the_retrievers_pool(tmp_path):
    colours = {"kb:ro": 10, "kb:td": 120, "kb:ad": 250, "view:ro": 20, "view:td": 240}

    def images(key: str) -> np.ndarray:
        return np.full((8, 8, 3), colours[key], np.uint8)

    class Blind:
        """Every image looks alike to it, so its pool is the whole base."""

        name, digest = "blind", "0"

        def __call__(self, rgb):
            return np.tile(np.array([[1.0, 0.0]], np.float32), (len(rgb), 1))

    def towers(keys):
        angles = {key: colours[key] / 255 * np.pi / 2 for key in keys}
        return {key: np.array([np.cos(a), np.sin(a)]) for key, a in angles.items()}

    config = IndexConfig(kind="exact")
    base = knowledge_base.build(
        tmp_path,
        [
            knowledge_base.Entity(id=key[3:], name=key, images=(key,))
            for key in colours
            if key.startswith("kb:")
        ],
        [Passage(id="p", title="t", text="text")],
        images=images,
        encoders=Encoders(Blind(), None),
        config=knowledge_base.KnowledgeBaseConfig(image_index=config, text_index=config),
    )
    asked = [
        question("a"),
        question("b", images=("view:td",), entities=("td",)),
        question("c", images=("view:ro", "view:td"), entities=("ro", "ad")),
    ]
    assert tower_identified(asked, base, towers) == [True, False, True]
