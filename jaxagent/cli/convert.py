"""`jaxagent convert SOURCE TARGET`: a policy to orbax and back, or BEM to a folder of ours.

A policy in Hugging Face format becomes one with orbax arrays, which every `model.folder` takes and
a mesh reads by parts; the other way it becomes one that transformers loads. Everything else of the
folder goes along, so that both ways give the first folder's tensors bit for bit. `--vocab` converts
BEM's published SavedModel.

The target is made beside its place and moved there at the end, so it is whole or not there (an
empty folder that was there is filled, `config.json` last).
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxagent.cli.errors import UserError, told
from jaxagent.cli.progress import Bars
from jaxagent.cli.work import local_path
from jaxagent.trees import num_parameters
from jaxagent.weights.folder import (
    CARD,
    CONFIG,
    read_policy,
    saved_dtype,
    write_orbax_policy,
    write_policy,
)
from jaxagent.weights.orbax import DTYPES, is_orbax


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a policy's folder, or BEM's SavedModel")
    parser.add_argument("target", help="the folder to make")
    parser.add_argument("--to", choices=("orbax", "hf"), help="the other format by itself")
    parser.add_argument("--dtype", choices=DTYPES, help="of the arrays; the source's by itself")
    parser.add_argument("--vocab", help="BEM's vocab.txt")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    if rest:
        raise UserError(f"Unknown argument {rest[0]!r}. See `jaxagent convert --help`.")
    source, target = local_path(options.source, "SOURCE"), local_path(options.target, "TARGET")
    target = checked_target(source, target)
    if is_saved_model(source):
        said = bem(source, target, options)
    elif options.vocab is not None:
        raise UserError(
            f"--vocab goes with BEM's SavedModel, and {source} holds no saved_model.pb. Leave "
            "--vocab out, or name the folder that holds one."
        )
    else:
        said = policy(source, target, options)
    print(f"{target}: {said}")
    return 0


def checked_target(source: Path, target: Path) -> Path:
    """The target without links; a source that is not there and a target that is taken are refused.

    A link to an empty folder fills that folder, and one to nothing makes what it names.
    """
    if not source.is_dir():
        raise UserError(f"There is no folder {source}. Give SOURCE a policy's folder.")
    try:
        target = target.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError tells of a loop until Python 3.13
        raise UserError(f"{target} is no folder ({error}). Give another TARGET.") from error
    if source.resolve() == target:
        raise UserError(f"SOURCE and TARGET are both {source}. Give TARGET another folder.")
    there = next(path for path in (target, *target.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise UserError(f"{there} is no folder. Give TARGET a folder that is not there yet.")
    if there == target:
        check_empty(target)
    if there == target and target.is_mount():
        raise UserError(f"{target} is where a disk is mounted. Give TARGET a folder within it.")
    within = target.parent if there == target else there  # where the draft will lie
    if not os.access(within, os.W_OK | os.X_OK):
        raise UserError(f"The folder {within} cannot be written to. Give another TARGET.")
    return target


def check_empty(target: Path) -> None:
    if any(target.iterdir()):
        raise UserError(f"The folder {target} is not empty. Empty it, or give another TARGET.")


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` at the end of the block, or is removed when that fails.

    An empty `target` is filled, its config last. The draft lies in a folder of a new name, so
    nothing of anybody else is removed; that of a run that was killed stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    draft = home / target.name  # its mode is the user's choice, and that of `home` is not
    draft.mkdir()
    try:
        yield draft
        if target.is_dir():  # perhaps the folder that the user is in: it is filled, not replaced
            check_empty(target)
            for path in sorted(draft.iterdir(), key=lambda path: path.name == CONFIG):
                path.replace(target / path.name)
        else:
            draft.replace(target)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def policy(source: Path, target: Path, options: argparse.Namespace) -> str:
    """Converts a policy's folder, and tells what of."""
    if not (source / CONFIG).exists():
        raise UserError(
            f"{source} holds neither a {CONFIG} nor a saved_model.pb. SOURCE is a policy in "
            "Hugging Face format, one that `jaxagent convert` made, or BEM's SavedModel."
        )
    to = options.to or ("hf" if is_orbax(source) else "orbax")
    with told(ValueError, OSError):
        kept = saved_dtype(source)
        dtype = options.dtype or kept
        if dtype is None:
            raise UserError(
                f"The weights of {source} have dtypes that cannot be written. Choose one with "
                f"--dtype: {', '.join(DTYPES)}."
            )
        with Bars() as bars, drafted(target) as draft:
            config, params = read_policy(source, dtype=kept or "float32", progress=bars)
            if to == "orbax":
                write_orbax_policy(
                    draft, config, params, template=source, dtype=dtype, progress=bars
                )
            else:
                write_policy(draft, config, params, template=source, dtype=dtype)
            if dtype == kept and (source / CARD).exists():  # its figures hold for the same numbers
                shutil.copyfile(source / CARD, draft / CARD)
    words = {"orbax": "orbax arrays", "hf": "Hugging Face format"}
    return f"{config.family}, {num_parameters(params):,} parameters in {dtype}, {words[to]}"


def is_saved_model(folder: Path) -> bool:
    return (folder / "saved_model.pb").exists() or (folder / "variables").is_dir()


def bem(source: Path, target: Path, options: argparse.Namespace) -> str:
    """Converts BEM's SavedModel, and tells the verdicts that found its order."""
    from jaxagent.processing.bem_conversion import convert_bem

    if options.vocab is None or options.to or options.dtype:
        raise UserError(
            f"{source} is a SavedModel, which is read as BEM's. It needs --vocab vocab.txt, the "
            "vocabulary that belongs to it, and takes no --to and no --dtype."
        )
    with told(ValueError, OSError), drafted(target) as draft:
        found = convert_bem(source, local_path(options.vocab, "--vocab"), draft)
    shown = ", ".join(f"{value:.3f}" for value in found.probabilities)
    return f"bem, {num_parameters(found.params):,} parameters; known pairs score {shown}"
