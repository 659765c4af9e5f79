"""A small experiment for the commands, and how a test runs one."""

import json
from pathlib import Path

from jaxagent.cli.main import main

EXPERIMENT = "flags_mmagent_r2_grpo"
COUNTRIES = "td,ro,fr,it,de,be,ie,ci,ml,gn,pe,at,lv,pl,id,ng"
SMALL = [
    f"--config.data.flags.countries={COUNTRIES}",
    "--config.data.flags.val_entities=3",
    "--config.data.flags.test_entities=4",
    "--config.data.flags.views=4",
    "--config.retrieval.text_encoder=lexical",
    "--config.retrieval.measured=5",
]
QUICK = [
    "--config.evaluation.questions=4",
    "--config.method.mmagent_r2.max_turns=2",
    "--config.method.mmagent_r2.max_tokens=8",
    "--config.rollout.context=512",
    "--config.rollout.slots=8",
    "--config.rollout.rows=(8,)",
    "--config.rollout.image_rows=(8,)",
    "--config.packing.row_lengths=(512,)",
    "--config.packing.call_tokens=1024",
    "--config.packing.chunk=128",
    "--config.rl.questions=2",
    "--config.rl.samples=2",
]


def base_flags(work: Path) -> list[str]:
    return [*SMALL, f"--config.retrieval.image_encoder={work / 'encoder'}"]


def agent_flags(work: Path) -> list[str]:
    places = [f"--config.data.folder={work / 'kb'}", f"--config.model.folder={work / 'policy'}"]
    return ["--config", EXPERIMENT, *places, *base_flags(work), *QUICK]


def run(capsys, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def refused(capsys, *words: str) -> str:
    """The message, when the command ends with exactly one and status 2."""
    status, _, err = run(capsys, *words)
    assert status == 2
    (message,) = err.split("jaxagent: ")[1:]
    return message


def entities(work: Path) -> list[dict]:
    return json.loads((work / "kb" / "benchmark.json").read_text())["entities"]
