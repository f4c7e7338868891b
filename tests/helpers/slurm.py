"""Stand-ins for SLURM's commands, which run what they are given on this machine.

They write into the folder `$STAND_IN`: sbatch its calls (`calls.txt`) and the elements that wait
(`queue.txt`, which squeue prints) or, where `$RUNS` is set, the exit status of each start of an
element (`statuses.txt`), which it starts again while it is requeued; srun its options (`srun.txt`);
scontrol what goes back into the queue (`requeued.txt`). srun signals its tasks once, as before the
time limit, when the file `$SIGNAL_AT` has content. sbatch kills what has called it at its call
`$KILL_AT`, before it has submitted (`N before`) or after it (`N after`).
"""

import os
import sys
from pathlib import Path

SBATCH = f"""#!{sys.executable} -SE
import itertools, os, re, shlex, subprocess, sys
from pathlib import Path

here = Path(os.environ["STAND_IN"])
options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
script, *arguments = sys.argv[1 + len(options) :]
script = Path(script)
with (here / "calls.txt").open("a") as calls:
    calls.write(shlex.join(sys.argv[1:]) + "\\n")
if "REFUSE" in os.environ:
    sys.exit("sbatch: error: invalid partition specified: gpu\\nsbatch: error: no such partition")
call = len((here / "calls.txt").read_text().splitlines())
job = 100 + call
if os.environ.get("KILL_AT") == f"{{call}} before":
    os.kill(os.getppid(), 9)
    sys.exit(1)


def requeued(element):
    done = here / "requeued.txt"
    lines = done.read_text().splitlines() if done.exists() else []
    return lines.count(f"requeue Incomplete {{element}}")


def run(element, index, heads):
    replaced = re.sub("%[%a]", lambda found: index if found[0] == "%a" else "%", heads["--output"])
    output = Path(replaced)
    for restarts in itertools.count():
        found = {{
            "JOB_ID": f"{{job}}{{index}}",
            "ARRAY_JOB_ID": str(job),
            "ARRAY_TASK_ID": index,
            "RESTART_COUNT": str(restarts),
            "NTASKS": heads["--ntasks"],
            "JOB_NUM_NODES": heads["--nodes"],
            "JOB_NODELIST": "one",
        }}
        if "--cpus-per-task" in heads:
            found["CPUS_PER_TASK"] = heads["--cpus-per-task"]
        environment = os.environ | {{f"SLURM_{{key}}": value for key, value in found.items()}}
        environment.setdefault("SECONDS", "600")  # since the script's start, as bash counts
        with output.open("a") as file:
            command = ["bash", script, *arguments]
            place = heads.get("--chdir")
            done = subprocess.run(command, env=environment, stdout=file, stderr=file, cwd=place)
        with (here / "statuses.txt").open("a") as statuses:
            name = heads["--job-name"].split("-")[-2]
            statuses.write(f"{{name}} {{index}} {{done.returncode}}\\n")
        if requeued(element) <= restarts:
            return


heads = dict((*word.split("=", 1), "")[:2] for word in options)
for index in heads["--array"].split("%")[0].split(","):
    if "RUNS" in os.environ:
        run(f"{{job}}_{{index}}", index, heads)
    else:
        with (here / "queue.txt").open("a") as queue:
            queue.write(f"{{job}} {{index}} {{heads['--job-name']}}\\n")
if os.environ.get("KILL_AT") == f"{{call}} after":
    os.kill(os.getppid(), 9)
print(f"{{job}};cluster")
"""
SQUEUE = """#!/bin/bash
echo "$@" >> "$STAND_IN/squeue.txt"
echo "CLUSTER: here"
echo "7 N/A another job"
[ ! -e "$STAND_IN/queue.txt" ] || cat "$STAND_IN/queue.txt"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >> "$STAND_IN/srun.txt"; shift; done
pids=()
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids+=($!); done
if [ -n "$SIGNAL_AT" ] && [ ! -e "$STAND_IN/signalled" ]; then
    until [ -s "$SIGNAL_AT" ]; do sleep 0.05; kill -0 "${pids[0]}" || break; done
    touch "$STAND_IN/signalled"; kill -USR1 "${pids[@]}"
fi
status=0
for pid in "${pids[@]}"; do wait "$pid"; code=$?; [ $code -gt $status ] && status=$code; done
exit $status
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$STAND_IN/requeued.txt"; fi
"""
# Holds a run at a step until it is signalled, on any machine
HOLDS = """
import time
from ssl_vit.training import heartbeat, preemption
request_stop, on_step, reasons = preemption.SignalHandler.request_stop, heartbeat.Watchdog.on_step, []

def noted(self, reason):
    reasons.append(reason)
    request_stop(self, reason)

def held(self, step):
    on_step(self, step)
    while step == 5 and not reasons:
        time.sleep(0.02)

preemption.SignalHandler.request_stop, heartbeat.Watchdog.on_step = noted, held
"""


def stand_ins(folder: Path) -> dict[str, str]:
    """Write the commands into `folder`; the variables of the environment with which they are found
    there."""
    made = {"sbatch": SBATCH, "squeue": SQUEUE, "srun": SRUN, "scontrol": SCONTROL}
    for name, text in made.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"STAND_IN": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
