"""Tools answer a batch in the order of its calls, over a real base."""

import numpy as np
import pytest

from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.mmagent_r2 import method as mmagent_r2
from jaxagent.agents.promsa import ProMSA
from jaxagent.agents.promsa import method as promsa
from jaxagent.agents.protocol import (
    Arguments,
    Failed,
    ImageQuery,
    SummaryQuery,
    TextQuery,
    ToolCall,
    Tools,
)
from jaxagent.agents.tools import all_tools, summary_tool
from jaxagent.retrieval import knowledge_base
from jaxagent.retrieval.encoders import Encoders
from jaxagent.services.summariser import summarise_by_extraction
from jaxagent.types import Passage
from tests.agents.dialogues import question

PASSAGES = [
    Passage(id="elm-1", title="Elm", text="Leaves: rough"),
    Passage(id="elm-2", title="Elm", text="Bark: grey"),
    Passage(id="ash-1", title="Ash", text="Leaves: feathered"),
]


class Brightness:
    """Encodes an image by its first pixel, as an angle in degrees."""

    name, digest = "brightness", "1"

    def __call__(self, images):
        turns = np.radians([float(image[0, 0, 0]) for image in images])
        return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Tools:
    base = knowledge_base.build(
        tmp_path_factory.mktemp("base"),
        [
            knowledge_base.Entity(id=name, name=name.title(), images=(f"kb:{angle}",))
            for name, angle in (("ash", 10), ("elm", 20), ("fir", 50))
        ],
        PASSAGES,
        images=lambda key: np.full((2, 2, 3), int(key.split(":")[1]), np.uint8),
        encoders=Encoders(Brightness(), None),
    )
    return all_tools(base, summarise_by_extraction)


def call(tool: str, arguments: Arguments) -> ToolCall:
    return ToolCall(question=question(), tool=tool, arguments=arguments)


def test_every_method_finds_its_tools(tools: Tools):
    assert mmagent_r2(MMAgentR2()).tools | promsa(ProMSA()).tools == tools.keys()


def test_images_are_searched_each_with_its_own_exclusions(tools: Tools):
    found = tools["search_images"](
        [
            call("search_images", ImageQuery(image="q:12", top=2)),
            call("search_images", ImageQuery(image="q:12", top=2, exclude=frozenset({"ash"}))),
            call("search_images", ImageQuery(image="q:49", top=1)),
        ]
    )
    assert [[one.entity for one in row.candidates] for row in found] == [
        ["ash", "elm"],
        ["elm", "fir"],
        ["fir"],
    ]


def test_pages_bring_every_passage_of_their_title(tools: Tools):
    (found,) = tools["search_pages"]([call("search_pages", ImageQuery(image="q:19", top=3))])
    assert [one.name for one in found.candidates] == ["Elm", "Ash", "Fir"]
    assert [one.id for one in found.passages] == ["elm-1", "elm-2", "ash-1"]


def test_passages_come_in_the_order_of_calls_and_queries(tools: Tools):
    both = TextQuery(queries=("ash leaves", "elm bark"), top=1)
    one = TextQuery(queries=("elm leaves",), top=2, exclude=frozenset({"elm-1"}))
    found = tools["search_passages"]([call("search_passages", both), call("search_passages", one)])
    assert [row.id for row in found[0].passages] == ["ash-1", "elm-2"]
    assert {row.id for row in found[1].passages} == {"ash-1", "elm-2"}


def test_summaries_are_texts_and_failures_stay_failures(tools: Tools):
    query = SummaryQuery(question="Which leaves?", passages=tuple(PASSAGES))
    (found,) = tools["summarise"]([call("summarise", query)])
    assert found.text.startswith("Elm: Leaves: rough")
    broken = summary_tool(lambda queries: [Failed("down") for _ in queries])
    assert broken([call("summarise", query)]) == [Failed("down")]


def test_arguments_of_another_tool_are_a_fault_of_the_program(tools: Tools):
    with pytest.raises(TypeError, match="search_images was called with TextQuery; it takes Image"):
        tools["search_images"]([call("search_images", TextQuery(queries=("x",), top=1))])


def test_an_empty_batch_is_answered_with_nothing(tools: Tools):
    assert [tool([]) for tool in tools.values()] == [[]] * 4
