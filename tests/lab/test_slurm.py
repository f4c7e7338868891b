"""The SLURM launcher: what sbatch is asked, and the script under stand-ins for SLURM's commands:
signals, kills and requeues."""

import functools
import hashlib
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from helpers.launchers import GAP, Bench, process_command
from helpers.launching import launch
from helpers.options import PROBE, TINY
from helpers.runs import rows
from helpers.slurm import HOLDS, stand_ins
from ssl_vit import formatting
from ssl_vit.errors import UserError
from ssl_vit.lab.study import slurm as launcher
from ssl_vit.lab.study import tool
from ssl_vit.lab.study.launch import task_command
from ssl_vit.recipe.given import Arguments, from_words

SLURM = launcher.Slurm()
RUNS = ("pretrain", "sweep", "probe", "final")
NEEDS = {"sweep": {"pretrain"}, "probe": {"pretrain"}, "final": {"sweep", "pretrain"}}
ONE_ARM = GAP | {
    "seeds": [0],
    "axes": {"arm": {"mpp": {"pretrain": {"recipe": "mpp"}}}},
    # what is chosen is not of this launcher
    "runs": {name: GAP["runs"][name] for name in ("pretrain", "sweep", "probe")},
}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SBATCH_")]:
        monkeypatch.delenv(name)
    made = Bench(tmp_path)
    made.job = replace(made.job, parallel=None)
    stands_in(made, monkeypatch)
    return made


def stands_in(bench, monkeypatch):
    """The tools are those of a bench from here on."""
    found = functools.partial(process_command, bench.tool)
    monkeypatch.setattr(launcher, "process_command", found)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder with stand-ins for SLURM's commands, and what they write."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, value in stand_ins(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def calls(slurm):
    """{run: [sbatch's options, the script and its arguments]} of each call."""
    found = {}
    for line in lines(slurm / "calls.txt"):
        words = shlex.split(line)
        count = next(i for i, word in enumerate(words) if not word.startswith("--"))
        options = dict((*word.split("=", 1), "")[:2] for word in words[:count])
        found[options["--job-name"].split("-")[-2]] = options, words[count:]
    return found


# ---- what is asked of SLURM


def test_a_job_array_for_each_run(bench, slurm, monkeypatch):
    """With the options that are given as they are. A preview needs no SLURM, and writes nothing."""
    given = [
        *("--partition=gpu", "--constraint=a100&(ib|eth)", "--exclusive", "--begin=16:00"),
        *("--cpus-per-task=8", "--gpus-per-node=a100:4", "--comment=it's # `touch gone`"),
    ]
    job = replace(bench.job, parallel=2, slurm=shlex.join(given))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        assert len(SLURM.preview(job)) == 4 and not bench.runs.exists()
    SLURM.check(job)
    outcome = SLURM.start(job)
    found = calls(slurm)
    order = [*found]
    assert sorted(order) == sorted(RUNS)
    numbers = {run: str(101 + place) for place, run in enumerate(order)}
    of_tasks = {name: numbers[task.run] for name, task in job.tasks.items()}
    assert outcome.submitted == of_tasks and (outcome.finished, outcome.failed) == ([], {})
    waits = {
        run: {*options.pop("--dependency", "").removeprefix("afterany:").split(":")} - {""}
        for run, (options, _) in found.items()
    }
    assert waits == {run: {numbers[need] for need in NEEDS.get(run, ())} for run in RUNS}
    assert order[0] == "pretrain" and order.index("sweep") < order.index("final")
    place = bench.runs / "slurm"
    of_folder = hashlib.sha256(str(place).encode()).hexdigest()[:8]
    for run, (options, words) in found.items():
        assert options == dict((*word.split("=", 1), "")[:2] for word in given) | {
            "--parsable": "",
            "--nodes": "1",
            "--ntasks": "4",
            "--ntasks-per-node": "4",
            "--signal": "USR1@120",
            "--requeue": "",
            "--open-mode": "append",
            "--chdir": str(Path.cwd()),
            "--job-name": f"gap-{run}-{of_folder}",
            "--array": "0,1,2,3,4,5%2" if run == "sweep" else "0,1,2,3%2",
            "--output": f"{place}/{run}-%a.txt",
        }
        script, counted, env, path, *rest = words
        assert (script, counted, env) == (str(launcher.SCRIPT), f"{place}/{run}", "env")
        assert path.startswith("PYTHONPATH=")
        names = "/".join(name for name, task in bench.job.tasks.items() if task.run == run)
        study = ["study", "name=gap", f"out={bench.notes}", f"only={names}"]
        assert rest == process_command(bench.tool, *study)
    assert bench.starts() == []


def test_only_what_has_not_finished_is_submitted(bench, slurm):
    for name in bench.job.tasks:
        if name not in ("probe-mpp-0", "final-scratch-1"):
            (bench.runs / name).mkdir(parents=True)
            (bench.runs / name / "result.json").touch()
    outcome = SLURM.start(bench.job)
    found = {run: options for run, (options, _) in calls(slurm).items()}
    # scratch's two seeds go before mpp's
    assert {run: one["--array"] for run, one in found.items()} == {"probe": "2", "final": "1"}
    assert not any("--dependency" in options for options in found.values())
    assert "--dependency" not in " ".join(SLURM.preview(bench.job))
    assert len(outcome.finished) == len(bench.job.tasks) - 2


LAYOUTS = {  # machines, processes in all and on each
    "": (1, 1, 1),
    "--gpus=8": (1, 8, 8),
    "--gpus=a100:4": (1, 4, 4),
    "--gpus-per-node=8 --nodes=2": (2, 16, 8),
    "--gpus=16 --nodes=2": (2, 16, 8),
    "--gres=gpu:2": (1, 2, 2),
    "--gres=gpu:a100:4 --nodes=2": (2, 8, 4),
    "--gres=ssd:8,gpu:4 --ntasks-per-node=4": (1, 4, 4),
    "--gpus=4 --ntasks-per-node=2": (1, 2, 2),
    "--ntasks-per-node=2 --nodes=4": (4, 8, 2),
    "--nodes=2": (2, 2, 1),
}


@pytest.mark.parametrize(("given", "layout"), LAYOUTS.items(), ids=LAYOUTS)
def test_a_process_for_each_gpu_unless_their_number_is_given(given, layout, bench):
    words = shlex.split(SLURM.preview(replace(bench.job, slurm=given))[0])
    options = dict(word.split("=", 1) for word in words if word.startswith("--n"))
    names = ("--nodes", "--ntasks", "--ntasks-per-node")
    assert tuple(int(options[name]) for name in names) == layout


WRONG = {  # {slurm=: the option, and what is expected}
    "-p gpu": "slurm: -p: ",
    "--time 4:00:00": "slurm: 4:00:00: ",
    "script.sh": "slurm: script.sh: ",
    "--comment='a": "slurm=--comment='a: No closing quotation",
    "--gpus=4 --gpu-bind=closest": "--gpu-bind=closest: ",
    "--gpus-per-task=1": "Use --gpus-per-node=",
    "--nodes=1-2": "--nodes=1-2: ",
    "--ntasks=8": "--ntasks=8: ",
    "--ntasks-per-node=0": "--ntasks-per-node=0: ",
    "--gres=ssd:8": "--gres=ssd:8: ",
    "--gpus=a100:2,v100:2": "--gpus=a100:2,v100:2: ",
    "--gpus=3 --nodes=2": "--gpus=3: ",
    "--gpus=7": "pretrain-scratch-0: optim.batch=64: 7 processes ",
    **{f"--{name}=1": f"slurm: --{name}=1: " for name in launcher.REFUSED},
}


@pytest.mark.parametrize(("given", "says"), WRONG.items(), ids=WRONG)
def test_what_slurm_is_not_asked(given, says, bench, slurm):
    job = replace(bench.job, slurm=given)
    for ask in (SLURM.check, SLURM.preview):
        with pytest.raises(UserError) as caught:
            ask(job)
        assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not bench.runs.exists() and not (slurm / "calls.txt").exists()


def test_sbatch_that_refuses_or_is_not_there(bench, slurm, monkeypatch):
    monkeypatch.setenv("REFUSE", "1")
    says = "run pretrain: sbatch: error: invalid partition specified: gpu, .* no such"
    with pytest.raises(UserError, match=f"^launcher=slurm: {says}"):
        SLURM.start(bench.job)
    (slurm / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error: refused >&2; exit 1\n")
    with pytest.raises(UserError, match=r"^launcher=slurm: the queue: slurm_load_jobs error: ref"):
        SLURM.start(bench.job)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"launcher=slurm: sbatch .* dry=true"):
        SLURM.check(bench.job)


# ---- the same command again

ELEMENTS = {"pretrain": 4, "sweep": 6, "probe": 4, "final": 4}


EVERYTHING = sorted((run, index) for run, count in ELEMENTS.items() for index in range(count))


def queued(slurm):
    """[(run, index)] of what waits."""
    found = (line.split(" ") for line in lines(slurm / "queue.txt"))
    return sorted((name.split("-")[-2], int(index)) for _, index, name in found)


def test_nothing_is_submitted_twice_while_it_is_in_the_queue(bench, slurm):
    SLURM.start(bench.job)
    assert queued(slurm) == EVERYTHING
    again = SLURM.start(replace(bench.job, slurm="--clusters=a,b"))
    assert again.submitted == {} and queued(slurm) == EVERYTHING
    first, second = lines(slurm / "squeue.txt")
    assert second == f"{first} --clusters=a,b"  # which sbatch is given too
    # of some only parts are left: two have ended without a result, and one with it
    left = {("pretrain", 1), ("sweep", 0), ("sweep", 5)}
    kept = [
        line
        for line in lines(slurm / "queue.txt")
        if (line.split("-")[-2], int(line.split()[1])) not in left
    ]
    (slurm / "queue.txt").write_text("".join(f"{line}\n" for line in kept))
    done = [name for name, task in bench.job.tasks.items() if task.run == "sweep"][5]
    (bench.runs / done).mkdir()
    (bench.runs / done / "result.json").touch()
    (slurm / "calls.txt").unlink()
    SLURM.start(bench.job)
    found = {run: options for run, (options, _) in calls(slurm).items()}
    assert {run: one["--array"] for run, one in found.items()} == {"pretrain": "1", "sweep": "0"}
    # of what it needs both what waited and what was submitted now
    assert found["sweep"]["--dependency"] == "afterany:101:101"
    assert queued(slurm) == [one for one in EVERYTHING if one != ("sweep", 5)]


def test_a_submission_says_what_was_submitted_and_not_that_it_has_finished(tmp_path, slurm, capsys):
    """The report of nothing was the next step after `finished 0 of 18 tasks`."""
    words = ["name=gap", f"out={tmp_path}", "launcher=slurm"]
    probe = GAP["runs"]["probe"] | {"options": {"recipe": "evaluate", "init": "{pretrain}"}}
    content = GAP | {"runs": GAP["runs"] | {"probe": probe}, "options": {"data": "shapes"}}
    assert len(tool.study(Arguments(words), content).submitted) == 18
    text = capsys.readouterr().out
    assert "18 tasks in 4 jobs" in text and "\nfinished" not in text
    assert text.index("the same command") < text.index("\nnext ")
    # a second time it was "submitted 0 tasks in 0 jobs"
    assert not tool.study(Arguments(words), content).submitted
    text = capsys.readouterr().out
    assert "18 of 18 tasks have no result" in text and "submitted   " not in text


def test_a_study_that_is_given_again_with_more_submits_what_is_new(bench, slurm):
    """What is in the queue keeps its index, though others stand before it now."""
    few = bench.only("pretrain-mpp-1", "probe-mpp-1")
    SLURM.start(replace(bench.job, tasks=few))
    assert queued(slurm) == [("pretrain", 0), ("probe", 0)]
    before = lines(slurm / "queue.txt")
    SLURM.start(bench.job)
    assert lines(slurm / "queue.txt")[:2] == before
    assert queued(slurm) == EVERYTHING
    for run, (_, words) in calls(slurm).items():
        names = words[-1].removeprefix("only=").split("/")
        planned = [name for name, task in bench.job.tasks.items() if task.run == run]
        assert sorted(names) == sorted(planned)
        assert run not in ("pretrain", "probe") or names[0] == f"{run}-mpp-1"
    # what it no longer asks for is not submitted, and keeps its index from others
    (slurm / "queue.txt").unlink()
    SLURM.start(replace(bench.job, tasks=bench.only("pretrain-mpp-0", "pretrain-mpp-1")))
    assert queued(slurm) == [("pretrain", 0), ("pretrain", 3)]


def test_another_folders_study_of_the_same_name_is_another(bench, slurm, tmp_path):
    SLURM.start(bench.job)
    other = replace(bench.job, folder=tmp_path / "other" / "gap")
    assert SLURM.start(other).submitted.keys() == {*other.tasks}


SUBMIT = """
import pickle
from pathlib import Path
from ssl_vit.lab.study.slurm import Slurm
Slurm().start(pickle.loads(Path({job!r}).read_bytes()))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_submission_that_is_killed_goes_on(call, moment, bench, slurm):
    """Before or after a call of sbatch."""
    path = bench.notes / "job.pickle"
    path.write_bytes(pickle.dumps(bench.job))
    killed = launch("-c", SUBMIT.format(job=str(path)), KILL_AT=f"{call} {moment}")
    printed = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, printed
    until_there = call if moment == "after" else call - 1
    assert len({line.split()[0] for line in lines(slurm / "queue.txt")}) == until_there
    SLURM.start(bench.job)
    assert queued(slurm) == EVERYTHING
    jobs = {name.split("-")[-2]: job for job, _, name in map(str.split, lines(slurm / "queue.txt"))}
    for run, (options, _) in calls(slurm).items():
        found = options.get("--dependency", "afterany:").removeprefix("afterany:")
        assert {*found.split(":")} - {""} == {jobs[need] for need in NEEDS.get(run, ())}


# ---- the script runs


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_fine():
    subprocess.run(["shellcheck", launcher.SCRIPT], check=True)


@pytest.fixture
def submitted(tmp_path, slurm, monkeypatch):
    """A study of six tasks whose arrays run as they are submitted."""
    monkeypatch.setenv("RUNS", "1")
    folder = tmp_path / "with 'quotes' and %a"
    folder.mkdir()
    made = Bench(folder, ONE_ARM)
    of_tasks = [
        {
            "name": task.name,
            "needs": task.needs,
            "command": task_command(task, made.job.tasks, made.runs),
        }
        for task in made.job.tasks.values()
    ]
    (made.notes / "tasks.json").write_text(json.dumps(of_tasks))
    stands_in(made, monkeypatch)
    return made


def test_a_study_runs_as_submitted(submitted, slurm):
    """Each array when it is submitted, so that an order that is wrong finds nothing to start from.
    One task is killed once, and one each time."""
    submitted.behave({"pretrain-mpp-0": "end 137 0", "sweep-mpp-0-lr=0.01": "end 137"})
    SLURM.start(submitted.job)
    assert {*lines(slurm / "srun.txt")} == {"--export=ALL", "--kill-on-bad-exit=0", "--wait=120"}
    statuses = lines(slurm / "statuses.txt")
    assert [line for line in statuses if "pretrain" in line] == ["pretrain 0 0"] * 2
    # requeued by a status of 0, which is scontrol's, eight times; then it has failed
    ended = [line for line in statuses if "sweep 0" in line]
    assert ended == ["sweep 0 0"] * 8 + ["sweep 0 137"]
    requeued = lines(slurm / "requeued.txt")
    assert requeued[0] == "requeue Incomplete 101_0" and len(requeued) == 9
    assert submitted.finished() == {*submitted.job.tasks} - {"sweep-mpp-0-lr=0.01"}
    logs = submitted.runs / "slurm"
    assert {path.name for path in logs.iterdir()} == {
        *("pretrain-0.txt", "probe-0.txt", "sweep-0.txt", "sweep-1.txt", "sweep-2.txt"),
        *("pretrain.tasks", "probe.tasks", "sweep.tasks"),
    }
    words = submitted.words("probe-mpp-0")
    assert str(formatting.ROOT) in words["PYTHONPATH"].split(":")
    assert words["RANK"] is None and words["WORLD_SIZE"] is None
    (slurm / "calls.txt").unlink()
    submitted.behave({"sweep-mpp-0-lr=0.01": "fail"})
    SLURM.start(submitted.job)
    assert [options["--array"] for options, _ in calls(slurm).values()] == ["0%2"]
    assert lines(slurm / "statuses.txt")[-1] == "sweep 0 1"
    assert len(lines(slurm / "requeued.txt")) == 9
    assert "error: it cannot be" in (logs / "sweep-0.txt").read_text()


def test_a_task_whose_need_has_failed_ends_with_one_line(submitted, slurm):
    submitted.behave({"pretrain-mpp-0": "fail"})
    SLURM.start(submitted.job)
    assert lines(slurm / "statuses.txt") == ["pretrain 0 1"] + [
        f"{run} {index} 1"
        for run, index in (("sweep", 0), ("sweep", 1), ("sweep", 2), ("probe", 0))
    ]
    log = (submitted.runs / "slurm" / "probe-0.txt").read_text()
    assert log == "error: pretrain-mpp-0 is not finished\n"
    assert submitted.starts() == ["pretrain-mpp-0"]


def test_a_task_may_be_killed_eight_times_between_two_time_limits(submitted, slurm):
    """Time limits counted as well, so that one kill ended a task that had been through eight."""
    ends = [*["75"] * 8, *["137", "69"] * 4, "75", "137", "0"]
    submitted.behave({"pretrain-mpp-0": f"end {' '.join(ends)}"})
    SLURM.start(replace(submitted.job, tasks=submitted.only("pretrain-mpp-0")))
    assert submitted.finished() == {"pretrain-mpp-0"}
    assert submitted.starts().count("pretrain-mpp-0") == len(ends)
    assert not list((submitted.runs / "slurm").glob("*.failures"))


def test_a_task_that_is_signalled_before_it_can_train_ends(submitted, slurm, monkeypatch):
    """With a time limit of four minutes it was started again for ever."""
    monkeypatch.setenv("SECONDS", "60")
    submitted.behave({"pretrain-mpp-0": "end 75"})
    SLURM.start(replace(submitted.job, tasks=submitted.only("pretrain-mpp-0")))
    assert submitted.starts() == ["pretrain-mpp-0"] * 9
    assert lines(slurm / "statuses.txt")[-1] == "pretrain 0 75"


def test_processes_find_one_another(submitted, slurm):
    one = submitted.only("pretrain-mpp-0")
    given = "--gpus=2 --cpus-per-task=3"
    SLURM.start(replace(submitted.job, tasks=one, slurm=given))
    assert "--cpus-per-task=3" in lines(slurm / "srun.txt")
    both = [submitted.words("pretrain-mpp-0", rank) for rank in (0, 1)]
    for rank, words in enumerate(both):
        keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        assert [words[key] for key in keys] == [str(rank), str(rank), "2", "2", "127.0.0.1"]
    assert 20_000 <= int(both[0]["MASTER_PORT"]) == int(both[1]["MASTER_PORT"]) < 40_000


# ---- the real tools

DRIVER = """
import sys
from ssl_vit import formatting
formatting.PROGRAM[:] = {program!r}
if sys.argv[1] == "study":
    from ssl_vit.errors import report_errors
    from ssl_vit.lab.study import tool
    with report_errors():
        sys.exit(tool.main(sys.argv[2:]))
if sys.argv[1] == "pretrain":
    exec({holds!r})
from ssl_vit.__main__ import main
main(sys.argv[1:])
"""


def test_two_processes_are_signalled_go_on_and_are_measured(tmp_path, slurm, monkeypatch):
    """A pre-training on two processes gets the signal before the time limit, saves, comes back and
    ends; the evaluation that waits for it runs on two processes too."""
    program = [formatting.PROGRAM[0], str(tmp_path / "driver.py")]
    (tmp_path / "driver.py").write_text(DRIVER.format(program=program, holds=HOLDS))
    monkeypatch.setattr(formatting, "PROGRAM", program)
    monkeypatch.setenv("RUNS", "1")
    monkeypatch.setenv("SIGNAL_AT", f"{tmp_path}/small/pretrain-0/metrics.jsonl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own = {"optim.steps": 20, "eval.every": 20, "log.every": 1}
    trained = from_words(TINY).values | own
    probed = from_words(PROBE).values | {"init": "{pretrain}", "data.share": 0.02}
    runs = {
        "probe": {"tool": "evaluate", "options": probed},
        "pretrain": {"tool": "pretrain", "options": trained},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"title": "t", "runs": runs}))
    words = [f"recipe={tmp_path}/small.yaml", f"out={tmp_path}", "launcher=slurm"]
    assert tool.main([*words, "slurm=--gpus=2"]) == 0
    folder = tmp_path / "small"
    printed = {run: (folder / "slurm" / f"{run}-0.txt").read_text() for run in runs}
    assert lines(slurm / "requeued.txt") == ["requeue Incomplete 101_0"], printed
    assert lines(slurm / "statuses.txt") == ["pretrain 0 0", "pretrain 0 0", "probe 0 0"], printed
    assert "by SIGUSR1 on process" in printed["pretrain"]
    assert printed["pretrain"].count("task        pretrain-0\n") == 2  # a line a start
    assert [row["step"] for row in rows(folder / "pretrain-0")] == list(range(1, 21))
    for name in ("pretrain-0", "probe-0"):
        assert json.loads((folder / name / "environment.json").read_text())["processes"] == 2
        assert (folder / name / "result.json").exists()
