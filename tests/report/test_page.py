"""The report is read in a real browser: it opens from disk, filters its dialogues and shows one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from jaxagent.report.page import curve_data, escaped_json, page, write_report
from jaxagent.report.records import Curve, Figure, Report, Table

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
TRAP = '</script><img src=x onerror="document.title=1"> <|im_end|> "quoted" \u2028'


def image(key: str) -> np.ndarray:
    if key == "kb:lost":
        raise KeyError(key)
    colour = np.frombuffer(key.encode().ljust(12, b"."), np.uint8)[3:6]
    return np.broadcast_to(colour, (60, 90, 3)).copy()


def dialogue(name: str, *, right: bool, text: str = "") -> dict:
    candidates = [
        {"name": entity, "image": f"kb:{entity}", "score": 0.5, "right": entity == name}
        for entity in (name, "lost")
    ]
    turns = [
        {
            "author": "policy",
            "text": f"<reason>See {text}.</reason><rerank>{name}</rerank>",
            "decision": {"kind": "rerank", "right": right},
        },
        {
            "author": "environment",
            "parts": ["1 ", {"image": f"kb:{name}"}],
            "candidates": candidates,
        },
    ]
    return {
        "id": f"{name}#0",
        "question": f"What is the capital of {name}?",
        "images": [f"view:{name}"],
        "entities": [name],
        "answers": ["Bucharest"],
        "answer": "Bucharest" if right else "Paris",
        "correct": right,
        "identified": right,
        "split": "unseen_entity",
        "family": "single",
        "reward": 2.0,
        "terms": {"outcome": 1.0, "format": 1.0},
        "calls": 2,
        "truncated": False,
        "turns": turns,
    }


def summarised(name: str) -> dict:
    """A dialogue of ProMSA: what its searches find reaches the policy as a summary."""
    found = dialogue(name, right=True)
    candidates = found["turns"][1]["candidates"]
    passages = [{"title": name, "text": "It has a coast. It has hills.", "right": True}]
    turns = [
        {"author": "environment", "parts": [f"{name}: {text}"]} | more
        for text, more in (
            ("a state by a sea.", {"candidates": candidates, "passages": []}),
            ("it has a coast.", {"candidates": [], "passages": passages}),
        )
    ]
    return found | {"identified": None, "turns": turns}


def example() -> Report:
    return Report(
        title="Flags & more",
        summary="A <b>summary</b>",
        figures=[Figure(label="accuracy", value="41.2 %", note="unseen entities")],
        curves=[Curve(title="reward", series={"grpo": [(0, 0.1), (1, 0.4)], "gspo": [(0, 0.2)]})],
        tables=[Table(title="Splits", columns=["split", "accuracy"], rows=[["all", 40.25]])],
        dialogues=[
            dialogue("Romania", right=True, text=TRAP),
            dialogue("Chad", right=False),
            dialogue("Andorra", right=False, text="needle"),
            summarised("Oman"),
        ],
        facts={"command": "jaxagent quickstart"},
    )


def render() -> str:
    return page(example(), images=image, image_side=48)


class Outline(HTMLParser):
    """Start tags with their attributes, and the text under each element that has a class."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def having(self, word: str) -> list[dict]:
        return [a for _, a in self.tags if word in (a.get("class") or "").split()]


def browsed(path: Path, *, script: str = "", fragment: str = "") -> str:
    """The page's HTML after its own script, and then `script`, have run in headless Chromium."""
    opened = path.with_name("opened.html")
    opened.write_text(path.read_text().replace("</body>", f"<script>{script}</script></body>"))
    profile = path.with_name("profile")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{opened}{fragment}"], capture_output=True, text=True, timeout=120
    )
    assert "<body" in done.stdout, done.stderr[-2000:]
    return re.sub(r"<script\b.*?</script>", "", done.stdout, flags=re.DOTALL)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine; .ci/run installs one")
    path = tmp_path / "report.html"
    write_report(path, example(), images=image, image_side=48)
    return path


def test_the_page_names_no_other_file_and_no_address():
    outline = Outline(render())
    outside = [a for _, a in outline.tags for name in ("src", "href", "srcset") if a.get(name)]
    assert outside == []
    assert "http" not in render().replace("http://www.w3.org/2000/svg", "")


def test_text_of_a_policy_cannot_close_the_script_element():
    assert render().count("</script>") == 2
    assert json.loads(escaped_json({"a": TRAP})) == {"a": TRAP}


def test_titles_and_cells_are_escaped():
    assert "<title>Flags &amp; more</title>" in render()
    assert "A &lt;b&gt;summary&lt;/b&gt;" in render()


def test_each_image_is_embedded_once_and_an_unknown_one_is_left_out():
    data = json.loads(re.search(r'id="data">(.*?)</script>', render(), re.DOTALL)[1])
    assert sorted(data["images"]) == [
        "kb:Andorra", "kb:Chad", "kb:Oman", "kb:Romania",
        "view:Andorra", "view:Chad", "view:Oman", "view:Romania",
    ]  # fmt: skip
    assert all(uri.startswith("data:image/webp;base64,") for uri in data["images"].values())


def test_small_numbers_keep_their_digits():
    curve = Curve(title="gap", series={"a": [(0, 1.23456789e-7), (1, 0.0), (2, 1234.56789)]})
    assert curve_data(curve)["series"] == {"a": [[0, 1.2346e-7], [1, 0.0], [2, 1234.6]]}


def test_an_empty_report_is_still_a_page():
    assert "<h1>Nothing yet</h1>" in page(Report(title="Nothing yet"), images=image, image_side=8)


def test_the_browser_draws_curves_and_opens_the_first_dialogue(written: Path):
    text = browsed(written)
    outline = Outline(text)
    assert len(outline.having("chart")) == 1
    assert text.count("4 of 4 dialogues") == 1
    assert "What is the capital of Romania?</h3>" in text
    assert "onerror" not in str([a for _, a in outline.tags])
    assert "<title>Flags &amp; more</title>" in text


def test_a_search_filters_the_dialogues(written: Path):
    script = """
        const box = document.getElementById("search");
        box.value = "needle";
        box.dispatchEvent(new Event("input"));
    """
    text = browsed(written, script=script)
    assert "1 of 4 dialogues" in text
    assert "What is the capital of Andorra?</h3>" in text


def test_a_menu_filters_and_a_click_follows_one_dialogue_turn_by_turn(written: Path):
    script = """
        const menu = document.getElementById("filter-outcome");
        menu.value = "wrong answer";
        menu.dispatchEvent(new Event("change"));
        document.querySelectorAll(".list li")[1].click();
    """
    text = browsed(written, script=script)
    outline = Outline(text)
    assert "2 of 4 dialogues" in text
    assert "What is the capital of Andorra?</h3>" in text
    assert [a["class"] for a in outline.having("turn")] == ["turn policy", "turn environment"]
    assert [a["class"] for a in outline.having("candidate")] == ["candidate true", "candidate"]
    assert "rerank ✗" in text
    assert "kb:lost</span>" in text  # an image that cannot be shown says its key


def test_a_summary_is_shown_beside_what_it_was_made_of(written: Path):
    text = browsed(written, fragment="#dialogue=Oman%230")
    assert Outline(text).having("candidate")
    assert "It has hills." in text
    assert "Oman: a state by a sea.</div>" in text
    assert "Oman: it has a coast.</div>" in text


def test_passages_that_are_themselves_the_observation_are_shown_once(written: Path):
    """MMAgent-R2 reads the passages as they are."""
    passage = {"title": "Oman", "text": "It has a coast.", "right": True}
    turn = {"author": "environment", "parts": ["Oman. It has a coast."], "passages": [passage]}
    report = Report(title="t", dialogues=[dialogue("Oman", right=True) | {"turns": [turn]}])
    write_report(written, report, images=image, image_side=48)
    assert browsed(written).count("It has a coast.") == 1


def test_a_link_opens_its_dialogue(written: Path):
    text = browsed(written, fragment="#dialogue=Chad%230")
    assert "What is the capital of Chad?</h3>" in text
