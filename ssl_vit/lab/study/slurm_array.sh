#!/bin/bash
# An element of a study's job array, which runs one task; slurm.py beside this file submits it as
#     sbatch OPTIONS slurm_array.sh PLACE COMMAND...
# COMMAND index=ELEMENT runs the task. A task that was signalled before its time limit saves, ends with
# status 75, and goes back into the queue. So does one that was killed or lost a process (status 69), or
# was signalled before it can have trained, up to eight times since it last saved: a file has a line for
# each.
failures=$1-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.failures
shift

if [ "$SLURM_NTASKS" -gt 1 ]; then # processes that find one another
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
    export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))
fi

# What is exported here reaches the processes, also where sbatch was given another --export. One that
# ends does not take the others with it before they have saved, whatever slurm.conf says, and one that
# hangs does not hold the task. srun of 22.05 to 23.02 does not take --cpus-per-task from sbatch.
# shellcheck disable=SC2016  # the process's own variables
srun --export=ALL --kill-on-bad-exit=0 --wait=120 \
    ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    bash -c '[ "$SLURM_NTASKS" -eq 1 ] || export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
exec "$@"' process "$@" index="$SLURM_ARRAY_TASK_ID"
status=$?

again=
if [ $status -eq 75 ] && [ "$SECONDS" -ge 120 ]; then
    rm -f "$failures"
    again=yes
elif [ $status -eq 69 ] || [ $status -eq 75 ] || [ $status -gt 128 ]; then
    echo $status >> "$failures" && [ "$(wc -l < "$failures")" -le 8 ] && again=yes
fi
if [ -z "$again" ]; then
    rm -f "$failures"
    exit $status
fi
# Incomplete: not where scancel has ended it. By the number of the array's task, as that of the job is
# the whole array's for one of them
exec scontrol requeue Incomplete "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
