"""The launch scripts, run with stand-ins for the tools they call that write down their
arguments."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
CLOUD = {"PROJECT": "p", "ZONE": "z", "CLUSTER": "c", "BUCKET": "gs://b"}
FLAG = "--config.data.families=('a b', 'c')"


def run_script(name: str, folder: Path, *arguments: str, **variables: str) -> str:
    """Everything that the stand-ins were called with, one call a line.

    `git archive` runs for real where there is a repository.
    """
    calls = folder / "calls"
    for tool in ("gcloud", "xpk", "srun", "git"):
        stand_in = folder / tool
        stand_in.write_text(f'#!/bin/sh\nprintf "%s " {tool} "$@" >> {calls}\necho >> {calls}\n')
        stand_in.chmod(stand_in.stat().st_mode | stat.S_IEXEC)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder), **variables}
    done = subprocess.run(
        ["bash", str(ROOT / "launch" / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return calls.read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses_and_passes_shellcheck(path: Path):
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(path)], check=True)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_missing_variable_is_named_before_anything_starts(path: Path):
    done = subprocess.run(
        ["bash", str(path)], env={"PATH": "/bin:/usr/bin"}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1


def test_xpk_gets_one_workload_that_joins_all_hosts(tmp_path: Path):
    call = run_script("gke_xpk.sh", tmp_path, "promsa_qwen3_vl_8b", FLAG, NUM_SLICES="2", **CLOUD)
    assert call.startswith("xpk workload create --project p --zone z --cluster c")
    assert "--num-slices 2" in call
    assert "jaxagent train --distributed --config promsa_qwen3_vl_8b" in call
    assert "--workdir gs://b/promsa_qwen3_vl_8b" in call


def test_the_tpu_vm_runs_the_training_on_every_host(tmp_path: Path):
    calls = run_script("tpu_vm.sh", tmp_path, "mmagent_r2_qwen3_vl_8b", FLAG, **CLOUD)
    assert "gcloud compute tpus tpu-vm ssh jaxagent --project p --zone z --worker=all" in calls
    assert "jaxagent train --distributed --config mmagent_r2_qwen3_vl_8b" in calls


def test_a_flag_with_blanks_reaches_the_training_as_one_word(tmp_path: Path):
    call = run_script("gke_xpk.sh", tmp_path, "promsa_qwen3_vl_8b", FLAG, **CLOUD)
    command = call.partition(" --command ")[2].partition("jaxagent train")[2]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    )
    assert FLAG in words.stdout.splitlines()


def test_slurm_starts_one_process_a_gpu(tmp_path: Path):
    installed = tmp_path / ".venv" / "bin" / "jaxagent"
    installed.parent.mkdir(parents=True)
    installed.touch(mode=0o755)
    call = run_script(
        "slurm_gpu.sh", tmp_path, "mmagent_r2_qwen3_vl_8b", FLAG, SLURM_SUBMIT_DIR=str(tmp_path)
    )
    assert call.startswith("srun --gpu-bind=none .venv/bin/jaxagent train --distributed")
    assert FLAG in call
