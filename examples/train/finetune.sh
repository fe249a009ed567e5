#!/usr/bin/env bash
# Fine-tune a shipped or your own model on new data, and print its errors on a test set before and after:
#   bash examples/train/finetune.sh copper-s new.extxyz runs/tuned [--set finetune.replay=[old.extxyz] …]
# New elements are added and element references are fitted to the new data; parts listed in finetune.freeze are not trained.
set -euo pipefail
model=$1 data=$2 out=$3
shift 3

faenet-calc data split "$data" -o "$out-data"
train=("$out-data/train.extxyz" "$out-data/val.extxyz") test=$out-data/test.extxyz

# Codes have different energy zeros: --align fits one offset per element before comparing.
# Exit code 3 means that the structures are outside the domain of the model, which is why it is fine-tuned.
faenet-calc evaluate -m "$model" "$test" --align --symmetry 0 || [ $? -eq 3 ]
faenet-calc train "${train[@]}" -o "$out" --finetune-from "$model" --set finetune.freeze=[edge_embedding] "$@"
faenet-calc evaluate -m "$out/best.safetensors" "$test" --symmetry 0
