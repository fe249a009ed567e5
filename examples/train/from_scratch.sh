#!/usr/bin/env bash
# From labelled structures to a checkpoint, its errors and a relaxation with it:
#   bash examples/train/from_scratch.sh dft.extxyz runs/mine [--set run.time_limit_s=600 …]
# No data yet? `faenet-calc data generate examples/recipes/emt.yaml` makes some.
set -euo pipefail
data=$1 out=$2
shift 2

faenet-calc data check "$data"
# A tenth each is kept for validation and for the test at the end, snapshots of one trajectory together.
faenet-calc train "$data" -o "$out" --set data.test_fraction=0.1 "$@"
# The first structure of the data, relaxed; code 3 says that it ran, but did not converge.
faenet-calc relax -m "$out/best.safetensors" "$data@0" -o "$out/relaxed.extxyz" --steps 100 --overwrite || [ $? -eq 3 ]
