"""How near the port is to PyTorch: `python tests/benchmarks/parity.py [--readme README.md]`.

Every family of policies and encoders at a tiny size, with random weights that hide nothing, and the
shipped policy, through `jaxagent parity` in float32 and in bfloat16. Prints one JSON line, and puts
the table between the README's `parity` markers when asked.
"""

import argparse
import json
import os
import sys
import tempfile
import types
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax

ROOT = Path(__file__).parents[2]
# One of the dependencies installs a package of the name `tests`; this is ours.
ours = types.ModuleType("tests")
ours.__path__ = [str(ROOT / "tests")]
sys.modules["tests"] = ours

from jaxagent.cli.report import fill
from jaxagent.cli.tables import markdown_table
from jaxagent.parity.compare import Row
from jaxagent.parity.encoders import compare_eva_clip, compare_sentence_encoder
from jaxagent.parity.policies import compare_policy
from jaxagent.report.records import Table
from jaxagent.types import silent
from tests.models import families
from tests.parity import encoder_folders, folders

DTYPES = ("float32", "bfloat16")
POLICIES = {
    **{family: folders.folder(name) for family, name in families.ONE_OF_EACH.items()},
    "shipped MMAgent-R2 policy": ROOT / "jaxagent/pretrained/mmagent_r2",
}


def comparisons():
    """Name -> (the comparison, the folder)."""
    yield from ((name, (compare_policy, folder)) for name, folder in POLICIES.items())
    for family in ("bert", "xlm-roberta"):
        yield family, (compare_sentence_encoder, encoder_folders.sentence_encoder(family))
    temporary = Path(tempfile.mkdtemp(prefix="jaxagent-eva-clip-"))
    yield "eva_clip", (compare_eva_clip, encoder_folders.eva_clip(temporary))


def figures(rows: list[Row]) -> dict[str, object]:
    """What a table holds of one comparison."""
    nearest = max(rows, key=lambda row: row.relative / (row.tolerance or 1))
    return {
        "stages": len(rows),
        "failed": [row.stage for row in rows if not row.passed],
        "largest": max(row.absolute for row in rows if row.stage in ENDS),
        "of_tolerance": nearest.relative / (nearest.tolerance or 1),
        "nearest_stage": nearest.stage,
        "of_theirs": max(
            (row.relative / row.theirs for row in rows if row.stage in ENDS and row.theirs),
            default=None,
        ),
    }


ENDS = ("logits", "sentence embeddings", "image embeddings", "text embeddings")
"""The stages whose numbers are what a user gets."""


def table(made: dict[str, dict[str, dict]]) -> Table:
    return Table(
        title="",
        columns=(
            "model",
            "stages",
            "logits or vectors: largest difference, fp32",
            "nearest to its tolerance, fp32",
            "their error in bf16 over PyTorch's own",
        ),
        rows=[
            (
                name,
                full["stages"],
                f"{full['largest']:.1e}",
                f"{full['of_tolerance']:.0%}, {full['nearest_stage']}",
                f"{half['of_theirs']:.2f}",
            )
            for name, (full, half) in ((n, (m["float32"], m["bfloat16"])) for n, m in made.items())
        ],
        note="Each model's stages from pixels or tokens to logits and gradients, or to vectors; "
        "tolerances and the measure of bf16 as `jaxagent parity` prints them. All pass.",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--readme", type=Path, help="the file to put the table in")
    options = parser.parse_args()
    made: dict[str, dict[str, dict]] = {}
    with jax.default_matmul_precision("highest"):
        for name, (compare, folder) in comparisons():
            for dtype in DTYPES:
                rows = list(compare(folder, dtype=dtype, device="cpu", progress=silent))
                made.setdefault(name, {})[dtype] = figures(rows)
    print(json.dumps(made))
    if failed := [name for name, by in made.items() if any(one["failed"] for one in by.values())]:
        sys.exit(f"These do not pass: {', '.join(failed)}.")
    if options.readme:
        fill(options.readme, "parity", markdown_table(table(made)))


if __name__ == "__main__":
    main()
