"""What .ci/run refuses before it begins."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_machine_without_a_browser_is_refused(tmp_path: Path):
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        ["bash", str(script)], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout.startswith(".ci/run: no chromium")
