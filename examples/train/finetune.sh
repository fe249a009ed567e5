#!/usr/bin/env bash
# A shipped or an own model taught new data, with its errors before and after:
#   bash examples/train/finetune.sh copper-s new.extxyz runs/tuned [--set finetune.replay=[old.extxyz] …]
# New elements are learnt, element references are fitted to the new data; parts named in finetune.freeze stay as they are.
set -euo pipefail
model=$1 data=$2 out=$3
shift 3

# Two codes count energies from different zeros: --align compares after fitting one offset per element.
faenet-calc evaluate -m "$model" "$data" --align --symmetry 0
faenet-calc train "$data" -o "$out" --finetune-from "$model" --set finetune.freeze=[edge_embedding] --set optim.lr=1e-3 "$@"
faenet-calc evaluate -m "$out/best.safetensors" "$data" --symmetry 0
