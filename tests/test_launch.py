"""The launch scripts, run with stand-ins for the tools they call that write down their
arguments."""

import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
TOOLS = ("gcloud", "xpk", "srun", "scontrol", "scancel", "git")
CLOUD = {"PROJECT": "p", "ZONE": "z", "CLUSTER": "c", "BUCKET": "gs://b_1"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}
LARGE = "mmagent_r2_qwen3_vl_8b"
SMALL = "flags_mmagent_r2_grpo"
FLAG = "--config.data.families=('a b', 'c')"


def started(name: str, folder: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """A script under way, with a stand-in in `folder` for each tool."""
    for tool in TOOLS:
        stand_in = folder / tool
        if not stand_in.exists():
            stand_in.write_text(f"#!/bin/sh\n{noted(tool, folder)}")
            stand_in.chmod(stand_in.stat().st_mode | stat.S_IEXEC)
    return subprocess.Popen(
        ["bash", str(ROOT / "launch" / name), *arguments],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def noted(tool: str, folder: Path) -> str:
    """Shell that adds the tool's arguments to `calls`, one call a line where none has a newline."""
    calls = folder / "calls"
    return f'printf "%s " {tool} "$@" >> {calls}\necho >> {calls}\n'


def run_script(name: str, folder: Path, *arguments: str, **variables: str) -> str:
    """Everything that the stand-ins were called with."""
    script = started(name, folder, *arguments, **variables)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 0, errors
    return (folder / "calls").read_text()


def training(calls: str) -> list[str]:
    """The words of the command that trains, as a shell reads them."""
    return shlex.split("jaxagent train" + calls.partition("jaxagent train")[2].splitlines()[0])


def installed(folder: Path) -> dict[str, str]:
    """The variables of a Slurm job in `folder`, where the package is installed for GPUs."""
    program = folder / ".venv-gpu" / "bin" / "jaxagent"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    return {**SLURM, "SLURM_SUBMIT_DIR": str(folder)}


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


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_8b_experiment_without_a_policys_folder_is_refused_before_anything_starts(
    path: Path, tmp_path: Path
):
    script = started(path.name, tmp_path, LARGE, **CLOUD, **installed(tmp_path))
    _, errors = script.communicate(timeout=60)
    assert script.returncode != 0
    assert "MODEL: the folder" in errors
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("name", "bucket", "policy"),
    [("gke_xpk.sh", "/bucket", "/tmp/policy"), ("tpu_vm.sh", "~/bucket", "$HOME/policy")],
)
def test_the_work_folder_lies_in_the_mounted_bucket_and_the_policy_on_the_hosts_disk(
    name: str, bucket: str, policy: str, tmp_path: Path
):
    calls = run_script(name, tmp_path, LARGE, MODEL="Qwen3-VL-8B", **CLOUD)
    words = training(calls)
    assert words[2:6] == ["--distributed", "--config", LARGE, "--workdir"]
    assert words[6:] == [f"{bucket}/{LARGE}", f"--config.model.folder={policy}"]
    assert f"{bucket}/Qwen3-VL-8B " in calls.partition("jaxagent train")[0]
    assert "gs://" not in calls


@pytest.mark.parametrize("name", ["gke_xpk.sh", "tpu_vm.sh"])
def test_a_flag_with_blanks_reaches_the_training_as_one_word(name: str, tmp_path: Path):
    words = training(run_script(name, tmp_path, SMALL, FLAG, **CLOUD))
    assert words[-1] == FLAG
    assert not [word for word in words if "model.folder" in word]


def test_xpk_mounts_the_bucket_before_the_workload_that_uses_it(tmp_path: Path):
    attach, create = run_script("gke_xpk.sh", tmp_path, SMALL, **CLOUD).splitlines()
    assert attach.startswith("xpk storage attach b-1 --project p --zone z --cluster c")
    assert "--bucket b_1" in attach
    assert "--mount-point /bucket --readonly false" in attach
    assert "rename-dir-limit" in attach
    assert create.startswith("xpk workload create --project p --zone z --cluster c")
    assert "--storage b-1" in create


def test_the_tpu_vm_gets_a_python_that_the_package_takes(tmp_path: Path):
    calls = run_script("tpu_vm.sh", tmp_path, SMALL, **CLOUD)
    assert "gcloud compute tpus tpu-vm ssh jaxagent --project p --zone z --worker=all" in calls
    remote = calls.partition(" --command ")[2]
    subprocess.run(["bash", "-n"], input=remote, text=True, check=True)
    assert "gcsfuse --implicit-dirs --rename-dir-limit 200000 b_1 bucket" in remote
    assert "uv venv -q --python 3.11" in remote


def test_slurm_starts_one_process_that_sees_every_gpu(tmp_path: Path):
    (tmp_path / "srun").write_text(
        f'#!/bin/sh\nprintf "%s " "$JAX_LOCAL_DEVICE_IDS" >> {tmp_path}/calls\n'
        + noted("srun", tmp_path)
    )
    (tmp_path / "srun").chmod(0o755)
    calls = run_script(
        "slurm_gpu.sh", tmp_path, LARGE, FLAG, MODEL="/data/p q", **installed(tmp_path)
    )
    assert calls.startswith("0,1,2,3,4,5,6,7 srun .venv-gpu/bin/jaxagent train --distributed")
    assert f"--workdir {tmp_path}/work/{LARGE} --config.model.folder=/data/p q {FLAG}" in calls
    text = (ROOT / "launch" / "slurm_gpu.sh").read_text()
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n" in text


def test_a_slurm_job_that_is_told_to_stop_waits_for_the_save_and_queues_itself_again(
    tmp_path: Path,
):
    place, saved = tmp_path / "place", tmp_path / "saved"
    stand_ins = {
        "srun": f"trap 'echo > {saved}; exit 2' TERM\necho $$ > {place}\n"
        "while true; do sleep 0.1; done\n",
        "scancel": noted("scancel", tmp_path) + f"kill $(cat {place})\n",
        "scontrol": f"test -e {saved} && " + noted("scontrol", tmp_path),
    }
    for tool, text in stand_ins.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / tool).chmod(0o755)
    script = started("slurm_gpu.sh", tmp_path, SMALL, **installed(tmp_path))
    while not (place.exists() and place.read_text()):
        assert script.poll() is None
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    script.communicate(timeout=60)
    assert (tmp_path / "calls").read_text() == "scancel --signal=TERM 7 \nscontrol requeue 7 \n"
