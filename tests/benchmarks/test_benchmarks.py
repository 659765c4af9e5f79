"""The benchmarks still run: at their smallest, each prints its rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def printed(script: str, *flags: str) -> list[dict]:
    """The JSON lines of a benchmark."""
    done = subprocess.run(
        [sys.executable, FOLDER / script, *flags],
        env=os.environ | {"PYTHONPATH": str(FOLDER.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_rollout_is_timed_once_a_repeat():
    flags = ("--dialogues=8", "--slots=8", "--repeats=2", "--profile=1")
    first, second = printed("rollout.py", *flags)
    assert first["compilations"] > 0
    assert second["compilations"] == 0
    assert second["decoded"] > 0


@pytest.mark.slow
def test_an_update_is_timed():
    sizes = ("--dialogues=8", "--mean=100", "--rows=2", "--tokens=256", "--targets=128")
    (row,) = printed("update.py", *sizes, "--layers=3", "--repeats=2")
    assert len(row["update_seconds"]) == 2
    assert row["tokens_per_second"] > 0
