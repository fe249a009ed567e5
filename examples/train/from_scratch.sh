#!/usr/bin/env bash
# Train on labelled structures, print the test errors and relax a structure with the result:
#   bash examples/train/from_scratch.sh dft.extxyz runs/mine [--set run.time_limit_s=600 …]
# `faenet-calc data generate examples/recipes/emt.yaml` generates data to try it with.
set -euo pipefail
data=$1 out=$2
shift 2

faenet-calc data check "$data"
# 10 % each is held out for validation and for the final test; snapshots of one trajectory stay together.
faenet-calc train "$data" -o "$out" --set data.test_fraction=0.1 "$@"
# Relax the first structure; exit code 3 means that the relaxation did not converge.
faenet-calc relax -m "$out/best.safetensors" "$data@0" -o "$out/relaxed.extxyz" --steps 100 --overwrite || [ $? -eq 3 ]
