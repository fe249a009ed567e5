#!/usr/bin/env bash
# One run in two processes on this machine (gloo on CPUs, nccl on GPUs); the same command resumes an interrupted run:
#   bash examples/train/torchrun.sh data.extxyz runs/two [--set run.time_limit_s=600 …]
# optim.batch_size is per process; the learning rate stays that of the whole batch.
set -euo pipefail
data=$1 out=$2
shift 2

OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" torchrun --standalone --nproc-per-node="${PROCESSES:-2}" \
  -m faenet_calc train "$data" -o "$out" --resume auto "$@"
