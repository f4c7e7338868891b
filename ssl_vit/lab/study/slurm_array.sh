#!/bin/bash
# Run one task of a study, as an element of a job array. slurm.py submits this script with
#     sbatch OPTIONS slurm_array.sh PLACE COMMAND...
# COMMAND index=ELEMENT runs the task. SLURM signals a task before the time limit. The task then saves,
# ends with status 75, and goes back into the queue. A task that was killed, that lost a process (status
# 69) or that was signalled before it could train goes back into the queue, too, up to eight times since
# the last save. The file $failures has a line for each of these times.
failures=$1-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.failures
shift

if [ "$SLURM_NTASKS" -gt 1 ]; then # processes that find one another
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
    export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))
fi

# --export=ALL passes the variables to the processes, even if sbatch got another --export. A process that
# ends must not end the other processes before they have saved, and a process that hangs must not hold
# the task. srun 22.05 to 23.02 does not take --cpus-per-task from sbatch.
# shellcheck disable=SC2016  # the process expands the variables
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
# Incomplete: SLURM does not requeue a task that scancel has ended. Name the task of the array, because
# the job number of one task is the number of the whole array.
exec scontrol requeue Incomplete "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
