"""The command line: help, and mistakes that end in one message and no traceback."""

import errno
import subprocess
import sys

import pytest

from jaxagent.cli.main import COMMANDS, main
from tests.cli.commands import run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "There is no command 'trian'. Did you mean 'train'?"),
        (["train"], "--config"),
        (
            ["train", "--config", "flags_mmagent_r2_gpro", "--workdir", "w"],
            "Did you mean 'flags_mmagent_r2_grpo'?",
        ),
        (["train", "--confg", "x"], "--config"),
        (["kb", "biuld"], "invalid choice: 'biuld'"),
        (["quickstart", "--shrot"], "--shrot"),
        (["--verbose"], "Unknown argument '--verbose'"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(capsys, words, said):
    status, out, err = run(capsys, *words)
    assert status == 2
    assert out == ""
    assert err.startswith("jaxagent: ")
    assert said in err


def failing(monkeypatch, error: Exception) -> list[str]:
    """A command that ends with the error."""

    def dispatch(arguments):
        raise error

    monkeypatch.setattr("jaxagent.cli.main.dispatch", dispatch)
    return ["kb"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "x/a.jsonl"), "x/a.jsonl: permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "no room left"),
        (ModuleNotFoundError("No module named 'optax'", name="optax"), "pip install -e ."),
    ],
)
def test_what_the_machine_refuses_or_lacks_is_one_message(capsys, monkeypatch, error, said):
    status, _, err = run(capsys, *failing(monkeypatch, error))
    assert status == 2
    assert said in err


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'jaxagent.x'", name="jaxagent.x"),
        OSError("a finished sentence"),
        ValueError("x"),
    ],
)
def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch, error):
    with pytest.raises(type(error)):
        main(failing(monkeypatch, error))


def test_no_command_prints_the_list(capsys):
    status, out, _ = run(capsys)
    assert status == 2
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(capsys, name):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert COMMANDS[name].split()[0] in capsys.readouterr().out.lower()


def test_the_list_of_commands_does_not_wait_for_jax():
    code = """
import sys, jaxagent.cli.main as main
try: main.main(["--help"])
except SystemExit: print("jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
