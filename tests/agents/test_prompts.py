"""The prompts stand in golden files: a change of wording shows in a diff.

Write them anew with `python tests/agents/test_prompts.py`.
"""

from pathlib import Path

import pytest

from jaxagent.agents import mmagent_r2, promsa
from jaxagent.agents.mmagent_r2 import MMAgentR2
from jaxagent.agents.promsa import ProMSA

FOLDER = Path(__file__).parents[1] / "golden" / "prompts"
PROMPTS = {
    "mmagent_r2": mmagent_r2.system_prompt(MMAgentR2()),
    "mmagent_r2_rerank_only": mmagent_r2.system_prompt(MMAgentR2(variant="rerank_only")),
    "mmagent_r2_neither": mmagent_r2.system_prompt(MMAgentR2(variant="neither")),
    "mmagent_r2_number": mmagent_r2.system_prompt(MMAgentR2(choice="number")),
    "mmagent_r2_short": mmagent_r2.system_prompt(MMAgentR2(prompt="short")),
    "promsa": promsa.system_prompt(ProMSA()),
    "promsa_text_only": promsa.system_prompt(ProMSA(image_calls=0)),
    "promsa_short": promsa.system_prompt(ProMSA(prompt="short")),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_is_the_golden_text(name: str):
    assert PROMPTS[name] + "\n" == (FOLDER / f"{name}.txt").read_text()


def test_a_variant_names_no_action_that_it_lacks():
    assert "<rerank>" not in PROMPTS["mmagent_r2_neither"]
    assert "None" not in PROMPTS["mmagent_r2_rerank_only"]
    assert "image_search_tool" not in PROMPTS["promsa_text_only"]


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in PROMPTS.items():
        (FOLDER / f"{name}.txt").write_text(text + "\n")
