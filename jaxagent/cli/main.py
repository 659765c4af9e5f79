"""Reads the command line and runs one command; a user's mistake is one message, not a traceback."""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from jaxagent.cli.errors import UserError, sentence
from jaxagent.suggestions import did_you_mean

COMMANDS = {
    "quickstart": "build, train and evaluate a small agent, and leave a page to look at",
    "kb": "build the knowledge base and the benchmark, or say what one holds",
    "train": "train a policy by an experiment's config",
    "evaluate": "run a policy over a split",
    "sweep": "run every row of a config's sweep(), one JSON line a run",
    "parity": "compare a folder in PyTorch and in JAX, stage by stage",
    "convert": "make orbax arrays of a policy in Hugging Face format, and back",
    "report": "write the HTML page of a work folder or of a results file",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 2 the user's mistake, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(arguments)
    except KeyboardInterrupt:
        again = "The same command goes on from what was saved, or begins again."
        print(f"\njaxagent: interrupted. {again}", file=sys.stderr)
        return 130
    except Exception as error:
        if (message := to_mend(error)) is None:
            raise
        print(f"jaxagent: {message}", file=sys.stderr)
        return 2


def to_mend(error: Exception) -> str | None:
    """What the user can mend: a mistake, the installation, the disk. None is the program's fault.

    A full disk has no file's name: the system tells it of what was opened before.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "jaxagent").partition(".")[0] in ("jaxagent", "configs"):
            return None
        return (
            f"The Python module {error.name!r} is not installed, and jaxagent needs it. Install "
            "jaxagent with all that it needs, in the folder of its sources: "
            "python -m pip install -e ."
        )
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{sentence(error)} Put that right and run the same command again."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "There is no room left to write. Make some and run the same command again."
    return None


def dispatch(arguments: Sequence[str]) -> int:
    """Imports the one command that is asked for: `jaxagent --help` does not wait for JAX."""
    parser = Parser(prog="jaxagent", description="Vision-language search agents in JAX.")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=Parser)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise UserError(
            f"There is no command {wanted!r}. {did_you_mean(wanted, COMMANDS)} "
            "See `jaxagent --help`."
        )
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name == wanted:
            # PyTorch is not needed, so transformers need not say that it is missing.
            os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
            module = importlib.import_module(f"jaxagent.cli.{name}")
            module.add_arguments(command)
    if wanted is None and not set(arguments) & {"-h", "--help"}:
        if arguments:
            raise UserError(f"Unknown argument {arguments[0]!r}. See `jaxagent --help`.")
        parser.print_help()
        return 2
    options, rest = parser.parse_known_args(arguments)
    return module.run(options, rest) or 0


class Parser(argparse.ArgumentParser):
    """`argparse` whose errors are `UserError`s."""

    def error(self, message: str):
        raise UserError(f"{message}. See `{self.prog} --help`.")


if __name__ == "__main__":
    sys.exit(main())
