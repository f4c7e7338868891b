"""The script that SLURM (19.05 or later) runs for each task of a part: sbatch's options, and the
processes that it starts."""

import os
import re
import shlex
from pathlib import Path

from ...errors import UserError
from ...formatting import process_command, process_environment
from ..lab_tools import Slurm

OPTIONS = {
    "time": "time",
    "partition": "partition",
    "qos": "qos",
    "account": "account",
    "constraint": "constraint",
    "gpus": "gpus-per-node",
    "cpus": "cpus-per-task",
    "memory": "mem",
}  # key after slurm. -> sbatch's option
# What slurm.options= must not say, and what says it. With gpus-per-task or a binding a process sees
# its own GPU alone, and LOCAL_RANK would number GPUs that are not there.
GPUS = (
    *("gpus", "gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"),
    *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-tres", "tasks-per-node"),
)
OTHERS = (
    *("signal", "requeue", "no-requeue", "open-mode", "dependency", "chdir", "wrap", "wait"),
    *("parsable", "test-only", "help", "usage", "version"),
)
TAKEN = {
    **{head: f"slurm.{key}=" for key, head in OPTIONS.items()},
    **dict.fromkeys(GPUS, "slurm.gpus="),
    "cpus-per-gpu": "slurm.cpus=",
    "array": "parallel=",
    "job-name": "name=",
    "output": "out=",
    **dict.fromkeys(OTHERS, "the launcher"),
}
# Variables of sbatch that are not SBATCH_ and the option's name
VARIABLES = {
    "array": "ARRAY_INX",
    "mem": "MEM_PER_NODE",
    "time": "TIMELIMIT",
    "requeue": "NO_REQUEUE",
}
LONG_NAME = re.compile(r"[a-z][a-z0-9-]+", re.ASCII)
FLAG = "true"  # as an option without a value is typed in slurm.options=
WITHOUT_VALUE = ("", "null", "~", "false")

# Without B: the signal goes to the processes of srun, not to the script (sbatch(1), --signal), as
# does the SIGTERM of a preemption with a grace time
SIGNAL = "USR1@120"
# A process that ends does not take the others with it before they have saved, whatever slurm.conf
# says, and one that hangs does not hold the task. What is exported here reaches the processes, also
# where sbatch was given another --export.
SRUN = ["srun", "--export=ALL", "--kill-on-bad-exit=0", "--wait=120"]
SEVERAL = """\
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export WORLD_SIZE={processes} LOCAL_WORLD_SIZE={processes}
# shellcheck disable=SC2016  # the process's own variables
{srun} bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"' process \\
    {run} index="$SLURM_ARRAY_TASK_ID"
"""
ONE = """\
{srun} {run} index="$SLURM_ARRAY_TASK_ID"
"""
# Incomplete: a task that scancel ends stays ended. The number of the array's task, as that of the
# job is the whole array's for one of them
END = """\
status=$?
again=
failures={place}-"$SLURM_ARRAY_TASK_ID".failures # a line for each since it last saved
if [ $status -eq 69 ] || [ $status -gt 128 ]; then # it lost a process, or was killed
    echo $status >> "$failures" && [ "$(wc -l < "$failures")" -le 8 ] && again=yes
elif [ $status -eq 75 ]; then # it was signalled, and has saved
    rm -f "$failures"
    again=yes
fi
if [ -z "$again" ]; then
    rm -f "$failures"
    exit $status
fi
exec scontrol requeue Incomplete "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
"""


def _gpus(resources: Slurm) -> int:
    return int((resources.gpus or "0").rpartition(":")[2])


def processes(resources: Slurm) -> int:
    """Processes of a task: one for each GPU, at least one."""
    return max(1, _gpus(resources))


def heads(name: str, part: str, array: str, folder: Path, resources: Slurm) -> dict[str, str]:
    """{option of sbatch: its value; of one without a value empty} of a part's script.

    Args:
        name: of the study.
        part: of the study.
        array: the indices of the tasks to run, as sbatch's --array.
        folder: of the study.
        resources: that each task requests.

    Raises:
        UserError: slurm.options= sets what the launcher does, or a value cannot be written for
            sbatch.
    """
    # sbatch replaces %a and the like by numbers
    place = str(folder.resolve() / "slurm").replace("%", "%%")
    given = {head: getattr(resources, key) for key, head in OPTIONS.items()}
    if _gpus(resources) == 0:
        del given["gpus-per-node"]
    own = {
        "job-name": f"{name}-{part}",
        "array": array,
        "nodes": "1",
        "ntasks": str(processes(resources)),
        **{head: str(value) for head, value in given.items() if value is not None},
        "signal": SIGNAL,
        "requeue": "",
        "open-mode": "append",
        "output": f"{place}/{part}-%a.txt",
    }
    for head, value in own.items():
        _check(TAKEN[head], value)
    options = resources.options or {}
    for head, value in options.items():
        _check_option(head, value)
    return own | {head: "" if value == FLAG else value for head, value in options.items()}


def script(
    heads: dict[str, str], part: str, options: list[str], folder: Path, resources: Slurm
) -> str:
    """The text of a part's script.

    Args:
        heads: as `heads` gives them.
        part: of the study.
        options: of the study's command, without the launcher's.
        folder: of the study.
        resources: that each task requests.
    """
    # srun of 22.05 to 23.02 does not have it from sbatch
    srun = [*SRUN, *([f"--cpus-per-task={resources.cpus}"] if resources.cpus else [])]
    start = (SEVERAL if processes(resources) > 1 else ONE).format(
        processes=processes(resources),
        srun=shlex.join(srun),
        run=shlex.join(process_command("study", *options, f"only={part}")),
    )
    python_path = process_environment().get("PYTHONPATH", "")
    lines = [
        "#!/bin/bash",
        *(
            f"#SBATCH --{head}" + (f"={shlex.quote(value)}" if value else "")
            for head, value in heads.items()
        ),
        f"cd {shlex.quote(str(Path.cwd()))} || exit",
        f"export PYTHONPATH={shlex.quote(python_path)}",
        start + END.format(place=shlex.quote(f"{folder.resolve()}/slurm/{part}")),
    ]
    return "\n".join(lines)


def check_environment(heads: dict[str, str]) -> None:
    """Check that no variable of the environment stands against the script's options: sbatch takes
    variables first.

    Raises:
        UserError: one does.
    """
    for head, value in heads.items():
        variable = f"SBATCH_{VARIABLES.get(head, head.upper().replace('-', '_'))}"
        found = os.environ.get(variable)
        if found not in (None, value):
            text = f"sbatch would take it in place of the script's {head}"
            raise UserError(f"{variable}={found}: {text}; choices: unset {variable}")


def _check_option(name: str, value: str) -> None:
    """Check that slurm.options= may have this option.

    Raises:
        UserError: the launcher sets it, it is no long option, or it has no value.
    """
    given = f"slurm.options={{{name}: {value}}}"
    if not LONG_NAME.fullmatch(name):
        text = "expected a long option of sbatch without its dashes, as in {exclude: n1}"
        raise UserError(f"{given}: {text}")
    # gpu, gpu:4, gres/gpu:a100:4
    of_gpus = name == "gres" and "gpu" in re.split("[,:/=]", value)
    if name in TAKEN or of_gpus:
        by = "slurm.gpus=" if of_gpus else TAKEN[name]
        choices = "choices: other options of sbatch" if by == "the launcher" else f"choices: {by}"
        raise UserError(f"{given}: {by} sets it; {choices}")
    if value in WITHOUT_VALUE:
        text = f"choices: its value, or {FLAG} for an option without one; or leave it out"
        raise UserError(f"{given}: {text} (a value with a comma is quoted)")
    _check(f"slurm.options: {name}=", value)


def _check(key: str, value: str) -> None:
    """Check that a value is printable and has no backslash.

    sbatch reads its lines one by one, with a shell's quotes but with backslashes inside them: a
    line break in a value would make a line of the script, which is executed.
    """
    if not value.isprintable() or "\\" in value:
        text = "sbatch takes no such characters; choices: printable ones, no backslash"
        raise UserError(f"launcher=slurm: {key}{value!r}: {text}")
