"""The command line: help, and mistakes that end in one message and no traceback."""

import subprocess
import sys

import pytest

from jaxagent.cli.main import COMMANDS, main


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(words)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


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
    ],
)
def test_a_mistake_is_one_message_and_status_2(capsys, words, said):
    status, out, err = run(capsys, *words)
    assert status == 2
    assert out == ""
    assert err.startswith("jaxagent: ")
    assert said in err


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
