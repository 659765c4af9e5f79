"""Extraction is deterministic and fits the question; the endpoint is asked, retried and cleaned."""

import json
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.agents.protocol import Failed, SummaryQuery
from jaxagent.services.summariser import (
    EndpointSummariser,
    extract,
    sentences,
    summarise_by_extraction,
    without_thinking,
)
from jaxagent.types import Passage


def passage(title: str, text: str) -> Passage:
    return Passage(id=f"{title}-{text[:8]}", title=title, text=text)


CHAD = (
    passage("Chad", "Total area: 1,284,000 sq km"),
    passage("Chad", "Capital: N'Djamena"),
    passage("Chad", "Anthem: La Tchadienne. It was adopted in 1960. It has four stanzas."),
)
ROMANIA = (passage("Romania", "Capital: Bucharest"), passage("Romania", "Population: 18 million"))
QUERY = SummaryQuery(question="What is the capital of this country?", passages=CHAD + ROMANIA)


def reply(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


def test_the_best_sentence_of_every_title_is_kept():
    assert extract(QUERY) == "Chad: Capital: N'Djamena\nRomania: Capital: Bucharest"


def test_sentences_that_share_no_word_are_kept_only_to_show_their_title():
    query = SummaryQuery(question="Who?", passages=CHAD + ROMANIA)
    assert extract(query) == "Chad: Total area: 1,284,000 sq km\nRomania: Capital: Bucharest"


def test_at_most_four_sentences_in_their_first_order():
    rows = tuple(passage(f"Land {number}", f"Capital: City {number}") for number in range(9))
    query = SummaryQuery(question="Which capital?", passages=rows)
    assert extract(query) == "\n".join(
        f"Land {number}: Capital: City {number}" for number in range(4)
    )


def test_nothing_gives_nothing():
    assert extract(SummaryQuery(question="?", passages=())) == ""
    assert summarise_by_extraction([QUERY, QUERY]) == [extract(QUERY)] * 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It is old. It is big.", ["It is old.", "It is big."]),
        ("Near St. Helena. The U.S. dollar.", ["Near St. Helena.", "The U.S. dollar."]),
        ("One 3.5 km\nTwo\n\nThree", ["One 3.5 km", "Two", "Three"]),
        ("", []),
    ],
)
def test_sentences(text: str, parts: list[str]):
    assert sentences(text) == parts


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Plain.", "Plain."),
        ("<think>Hm.</think>\n\nPlain.", "Plain."),
        ("One <think>a</think>two <think>b</think>three", "One two three"),
        ("Hm, let me see.</think>Plain.", "Plain."),
        ("Plain.<think>never closed", "Plain."),
        ("<think>never closed", ""),
    ],
)
def test_thinking_is_removed(text: str, kept: str):
    assert without_thinking(text) == kept


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "<"])).map("".join))
def test_no_thinking_mark_is_left(text: str):
    assert "think>" not in without_thinking(text)


def test_the_endpoint_is_asked_with_question_and_passages_in_order():
    seen = []

    def ask(request, timeout):
        seen.append((request.full_url, timeout, request.headers, json.loads(request.data)))
        return reply("<think>hm</think> Chad's capital is N'Djamena.")

    summarise = EndpointSummariser(
        url="http://localhost:8000/v1/", model="m", key="secret", timeout_s=5.0, ask=ask
    )
    assert summarise([QUERY]) == ["Chad's capital is N'Djamena."]
    ((url, timeout, headers, body),) = seen
    assert url == "http://localhost:8000/v1/chat/completions"
    assert timeout == 5.0
    assert headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(summarise)
    assert body["model"] == "m"
    asked = body["messages"][1]["content"]
    assert asked.startswith("Question: What is the capital of this country?\n\n[Chad] Total area")
    assert asked.endswith("[Romania] Population: 18 million")


@pytest.mark.parametrize(
    "bad",
    [
        urllib.error.URLError("refused"),
        TimeoutError("late"),
        b"<html>",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": null}}]}',
        reply("  "),
        reply("<think>for ever"),
    ],
    ids=str,
)
def test_a_try_that_fails_is_retried_and_then_reported(bad: Exception | bytes):
    tries = []

    def ask(request, timeout):
        tries.append(request)
        if isinstance(bad, Exception):
            raise bad
        return bad

    summarise = EndpointSummariser(
        url="http://localhost:1/v1", model="m", retries=2, pause_s=0.0, ask=ask
    )
    (failed,) = summarise([QUERY])
    assert isinstance(failed, Failed)
    assert "after 3 tries" in failed.reason
    assert len(tries) == 3


def test_one_failure_leaves_its_neighbours_alone_and_a_retry_can_help():
    state = {"failures": 1}
    lock = threading.Lock()

    def ask(request, timeout):
        question = json.loads(request.data)["messages"][1]["content"].split("\n")[0]
        with lock:
            if "bad" in question or state["failures"]:
                state["failures"] = max(0, state["failures"] - 1)
                raise OSError("reset")
        return reply(question)

    summarise = EndpointSummariser(
        url="http://localhost:1/v1", model="m", retries=1, pause_s=0.0, ask=ask
    )
    queries = [SummaryQuery(question=text, passages=()) for text in ("first", "bad", "third")]
    state["failures"] = 0
    found = summarise(queries)
    assert [type(one) for one in found] == [str, Failed, str]
    assert (found[0], found[2]) == ("Question: first", "Question: third")
    state["failures"] = 1
    assert summarise(queries[:1]) == ["Question: first"]
    assert summarise([]) == []


def test_passages_beyond_the_limit_are_left_out():
    seen = []

    def ask(request, timeout):
        seen.append(json.loads(request.data)["messages"][1]["content"])
        return reply("x")

    summarise = EndpointSummariser(
        url="http://localhost:1/v1", model="m", ask=ask, max_characters=70
    )
    summarise([QUERY])
    assert seen[0].endswith("[Chad] Capital: N'Djamena")


def test_a_real_server_is_spoken_to():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = reply(f"{self.path} {body['model']}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        summarise = EndpointSummariser(url=url, model="qwen")
        assert summarise([QUERY]) == ["/v1/chat/completions qwen"]
    finally:
        server.shutdown()
        server.server_close()
    gone = EndpointSummariser(url=url, model="qwen", retries=0)
    assert isinstance(gone([QUERY])[0], Failed)


def test_an_url_without_a_scheme_is_refused():
    with pytest.raises(ValueError, match="give one such as http://localhost:8000/v1"):
        EndpointSummariser(url="localhost:8000", model="m")
