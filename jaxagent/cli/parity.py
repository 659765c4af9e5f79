"""`jaxagent parity`: a folder in PyTorch and in JAX, the difference of every stage.

A policy's rows go from the pixels to the gradients, an encoder's from its tokens to its vectors.
The exit status is 1 when a row fails. PyTorch is needed here and nowhere else (the extra `parity`).

On a GPU both frameworks use the same memory. JAX would take most of it at its start, before PyTorch
has read anything, so it is told to take what it needs (`XLA_PYTHON_CLIENT_PREALLOCATE=false`,
unless the environment says otherwise). PyTorch has given its memory back when JAX begins.
"""

import argparse
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax

from jaxagent.cli.errors import UserError, told
from jaxagent.cli.progress import Bars
from jaxagent.cli.tables import text_table
from jaxagent.models.config import ConfigError
from jaxagent.models.policy import FAMILIES
from jaxagent.parity.compare import Row
from jaxagent.parity.encoders import compare_eva_clip, compare_sentence_encoder
from jaxagent.parity.policies import compare_policy
from jaxagent.processing.chat import ChatError
from jaxagent.processing.image_files import ImageError
from jaxagent.report.records import Table
from jaxagent.retrieval.sentence_recipe import RecipeError
from jaxagent.types import Progress
from jaxagent.weights.safetensors import WeightsError

DTYPES = ("float32", "bfloat16")
PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}
"""JAX's word for a device, and PyTorch's."""

SENTENCE_ENCODERS = ("bert", "xlm-roberta")

Comparison = Callable[[Progress], Iterator[Row]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a policy or an encoder in Hugging Face format")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights and states")
    parser.add_argument("--device", choices=PLATFORMS, default="cpu", help="of both frameworks")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that lies in an EVA-CLIP folder; PyTorch has no other",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, no table")
    parser.epilog = (
        "With --device gpu, PyTorch and JAX share the GPU: XLA_PYTHON_CLIENT_PREALLOCATE is set to "
        "false unless it is set already."
    )


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    if rest:
        raise UserError(f"Unknown argument {rest[0]!r}. See `jaxagent parity --help`.")
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "PyTorch is not installed; jaxagent compares with it, and needs it for nothing else. "
            "Install it: pip install 'jaxagent[parity]'"
        )
    # before JAX opens its devices, a GPU that it is not to compute on among them
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    folder = Path(options.folder)
    comparison = wanted(folder, options)
    with (
        Bars() as bars,
        told(ConfigError, ChatError, ImageError, RecipeError, WeightsError),
        jax.default_device(device(options.device)),
        jax.default_matmul_precision("highest"),
    ):
        rows = list(comparison(bars))
    failed = [row.stage for row in rows if not row.passed]
    if options.json:
        print(json.dumps(document(options, rows), indent=1))
    else:
        print(text_table(table(options, rows)))
        print(f"{len(rows)} stages, {len(failed)} failed: {verdict(failed)}")
    return 1 if failed else 0


def device(name: str) -> jax.Device:
    """JAX's device of a name, where PyTorch has it too; UserError where one has not."""
    if name == "cpu":
        return jax.devices("cpu")[0]
    import torch

    remedy = "Compare on the CPU (--device cpu), or install"
    if not torch.cuda.is_available():
        raise UserError(f"PyTorch finds no GPU. {remedy} a PyTorch of the machine's CUDA version.")
    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        raise UserError(
            f"JAX finds no GPU ({error}). {remedy} its GPU build: pip install 'jaxagent[gpu]'"
        ) from None


def wanted(folder: Path, options: argparse.Namespace) -> Comparison:
    """The comparison of what a folder holds; UserError when it holds nothing that is known."""
    if not (folder / "config.json").exists() and (folder / "open_clip_config.json").exists():
        raise UserError(
            f"{folder} is an EVA-CLIP of open_clip, which transformers cannot load. Give the "
            "folder of the same model with config.json (BAAI/EVA-CLIP-8B has one)."
        )
    fields = config_fields(folder)
    kind = fields.get("model_type")
    if kind in FAMILIES:
        compare = compare_policy
    elif kind in SENTENCE_ENCODERS:
        compare = compare_sentence_encoder
    elif fields.get("architectures") == ["EvaCLIPModel"]:
        compare = compare_eva_clip
        if not options.trust_remote_code:
            raise UserError(
                f"{folder} is an EVA-CLIP, which PyTorch can only load by running the Python code "
                "in that folder. Read that code, then allow it: --trust-remote-code"
            )
    else:
        known = ", ".join([*FAMILIES, *SENTENCE_ENCODERS])
        raise UserError(
            f"{folder} holds a {kind!r} model; {known} and EVA-CLIP can be compared. Give a folder "
            "of one of them."
        )
    return lambda progress: compare(
        folder, dtype=options.dtype, device=PLATFORMS[options.device], progress=progress
    )


def config_fields(folder: Path) -> Mapping[str, object]:
    """What a folder's `config.json` says."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text())
    except OSError:
        raise UserError(
            f"{path} is not there. Give the folder of a policy or of an encoder, in the format of "
            "Hugging Face."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}. Download it again.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} is {fields!r}; it must be an object. Download it again.")
    return fields


def table(options: argparse.Namespace, rows: Sequence[Row]) -> Table:
    """The rows as they are printed."""
    half = any(row.theirs is not None for row in rows)
    own = ("PyTorch's own",) if half else ()
    title = f"{options.folder} in JAX and PyTorch, {options.dtype}, {options.device}"
    return Table(
        title=title,
        columns=("stage", "largest", "relative", *own, "allowed", "", ""),
        rows=[
            (
                row.stage,
                f"{row.absolute:.1e}",
                f"{row.relative:.1e}",
                *((("" if row.theirs is None else f"{row.theirs:.1e}"),) if half else ()),
                f"{row.tolerance:.1e}",
                "pass" if row.passed else "FAIL",
                row.note,
            )
            for row in rows
        ],
    )


def verdict(failed: Sequence[str]) -> str:
    return f"the first is {failed[0]}" if failed else "the same model"


def document(options: argparse.Namespace, rows: Sequence[Row]) -> dict[str, object]:
    """The rows as JSON; a number that is none is null."""
    failed = [row.stage for row in rows if not row.passed]
    return {
        "folder": options.folder,
        "dtype": options.dtype,
        "device": options.device,
        "passed": not failed,
        "first_failure": failed[0] if failed else None,
        "rows": [
            {
                "stage": row.stage,
                "absolute": finite(row.absolute),
                "relative": finite(row.relative),
                "transformers": finite(row.theirs),
                "tolerance": finite(row.tolerance),
                "passed": row.passed,
                "note": row.note,
            }
            for row in rows
        ],
    }


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
