#!/bin/bash
# Two nodes with four GPUs each, requeued until the run is finished:  sbatch examples/train/slurm.sh
#SBATCH --job-name=faenet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
set -euo pipefail
mkdir -p runs

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The job stops ten minutes before the wall time and saves its state; the next job continues exactly from there.
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" \
  -m faenet_calc train examples/train/modern-m.yaml --resume auto --time-limit 13800 --json | tee -a runs/modern-m.jsonl

if tail -n 1 runs/modern-m.jsonl | grep -q '"finished": "interrupted"'; then
  sbatch "$0"
fi
