#!/bin/bash
# Pre-train under SLURM, one task a GPU, again and again until it is finished; from the clone, with
# its environment active or PYTHON= exported, images and out= on a disk that all machines share:
#     sbatch launch/slurm.sh recipe=mpp data.path=IMAGES
#     sbatch --nodes=2 --export=ALL,ZERO=2 launch/slurm.sh recipe=mpp data.path=IMAGES
#     sbatch --export=ALL,TOOL=finetune launch/slurm.sh recipe=finetune init=runs/mpp
# Two minutes before the time limit SLURM signals the tasks; they save and end with status 75, and the
# job is requeued and resumes. So does one that was killed or lost a process (status 69), up to eight
# times between two time limits: slurm-JOB.failures counts them. Not through `accelerate launch`: it
# dies of that signal, and turns every status into 1. Studies: ssl_vit/lab/study/slurm_array.sh.
#SBATCH --job-name=ssl_vit
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=4:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
if [ -n "${ZERO:-}" ]; then # the stage of DeepSpeed's ZeRO; without it DDP
    export ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=$ZERO ACCELERATE_DEEPSPEED_ZERO3_INIT=false
fi

# A process that ends must not take others with it before they have saved (KillOnBadExit in
# slurm.conf); srun of 22.05 to 23.02 does not take --cpus-per-task from sbatch.
# shellcheck disable=SC2016  # the task's own variables
srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "${PYTHON:-python}" "tools/${TOOL:-pretrain}.py" "$@"' task "$@"
status=$?
again=
failures=slurm-$SLURM_JOB_ID.failures # a line for each since the run last saved
if [ $status -eq 69 ] || [ $status -gt 128 ]; then
    echo $status >> "$failures" && [ "$(wc -l < "$failures")" -le 8 ] && again=yes
elif [ $status -eq 75 ]; then
    rm -f "$failures"
    again=yes
fi
if [ -z "$again" ]; then
    rm -f "$failures"
    exit $status
fi
exec scontrol requeue Incomplete "$SLURM_JOB_ID" # Incomplete: not where scancel has ended it
