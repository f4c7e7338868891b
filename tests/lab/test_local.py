"""The local launcher: order, memory, GPUs, failures, kills of tasks and of the study, what it prints;
with stand-in tools, and a tiny study with the real ones."""

import ctypes
import json
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from helpers.launchers import GAP, RECIPE, Bench, is_alive
from helpers.launching import launch
from helpers.options import TINY
from ssl_vit.errors import UserError
from ssl_vit.lab import engine
from ssl_vit.lab.study import local as launcher
from ssl_vit.lab.study.launch import Job, best_values
from ssl_vit.lab.study.tasks import Task
from ssl_vit.recipe.load import resolve

FIRST = ("pretrain-scratch-0", "pretrain-scratch-1", "pretrain-mpp-0", "pretrain-mpp-1")
NEED = engine.memory_need(RECIPE, gpu=False)
ALONE = "pretrain-scratch-0"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the tasks of an undisturbed study measure."""
    other = Bench(tmp_path_factory.mktemp("undisturbed"))
    assert not other.run().failed
    return other.made()


def until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- order


def test_each_task_runs_once_after_those_that_it_needs(bench, capsys):
    outcome = bench.run()
    tasks, starts = bench.job.tasks, bench.starts()
    assert sorted(starts) == sorted(tasks) and outcome.finished == [*tasks]
    assert (outcome.failed, outcome.submitted) == ({}, {})
    # a tool itself refuses an init that is not finished
    for task in tasks.values():
        assert all(starts.index(need) < starts.index(task.name) for need in task.needs)
    chosen = {seed: bench.words(f"final-scratch-{seed}")["optim.lr"] for seed in (0, 1)}
    assert chosen == {0: "0.03", 1: "0.03"}
    words = bench.words("final-mpp-1")
    assert (words["optim.lr"], words["seed"], words["name"]) == ("0.1", "1", "final-mpp-1")
    assert words["init"] == str(bench.runs / "pretrain-mpp-1")
    assert int(words["compute.threads"]) >= 1 and "compute.workers" not in words
    log = (bench.runs / "logs" / "final-mpp-1.txt").read_text()
    assert log.startswith("$ ") and "name=final-mpp-1" in log
    shown = capsys.readouterr().out
    assert f"tasks       {len(tasks)}, of which 0 are finished; up to 2 at once\n" in shown
    assert "\nstarted     final-mpp-1\n" in shown
    found = r"^finished    sweep-mpp-0-lr=0.03 in \d+ s: accuracy 93.0% \(validation\)$"
    assert re.search(found, shown, re.MULTILINE)

    again = bench.run()
    assert again.finished == [*tasks] and len(bench.starts()) == len(tasks)


def test_a_preview_starts_nothing(bench):
    lines = launcher.Local().preview(bench.job)
    count = len(bench.job.tasks)
    assert lines[0] == f"tasks       {count}, of which 0 are finished; up to 2 at once"
    assert len(lines) == count + 1
    text = f"would run   final-mpp-1: finetune recipe=finetune init={bench.runs}/pretrain-mpp-1"
    own = f"seed=1 out={bench.runs} name=final-mpp-1 optim.lr=?"
    assert lines[-1] == f"{text} optim.steps=20 optim.warmup=2 {own}"
    assert not bench.runs.exists()


def test_options_of_slurm_are_not_ignored(bench):
    job = replace(bench.job, slurm="--time=60")
    for ask in (launcher.Local().check, launcher.Local().preview):
        with pytest.raises(UserError, match="slurm=--time=60: has no effect without launcher=slu"):
            ask(job)


def test_no_more_at_once_than_asked_for(bench):
    bench.behave(dict.fromkeys(FIRST, "meet 2"))
    bench.run(tasks=bench.only(*FIRST), parallel=2)
    assert max(map(len, bench.at_once())) == 2


def test_without_a_number_as_many_as_there_are_cores(bench, monkeypatch):
    monkeypatch.setattr(engine, "cores", lambda: 3)
    bench.behave(dict.fromkeys(FIRST, "meet 3"))
    bench.run(tasks=bench.only(*FIRST), parallel=None)
    assert max(map(len, bench.at_once())) == 3


def test_no_gpu_has_two_tasks_while_another_has_none(bench, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    bench.behave(dict.fromkeys(FIRST, "meet 2"))
    assert not bench.run(parallel=None).failed  # as many as there are GPUs
    assert all(len({*gpus}) == len(gpus) for gpus in bench.at_once())
    assert ["4", "7"] in map(sorted, bench.at_once())
    assert int(bench.words(FIRST[0])["compute.workers"]) >= 1


def test_threads_and_workers_that_are_given_stay(bench, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    tasks = bench.only(ALONE)
    tasks[ALONE].options.update({"compute.workers": "3", "compute.threads": "5"})
    bench.run(tasks=tasks)
    words = bench.words(ALONE)
    assert (words["compute.workers"], words["compute.threads"]) == ("3", "5")


# ---- memory


@pytest.mark.parametrize(("room", "most"), [(2.5, 2), (1.5, 1), (0, 1)])
def test_no_more_run_at_once_than_fit_into_memory(bench, monkeypatch, room, most):
    """A task larger than the machine may try alone."""
    monkeypatch.setattr(engine, "cores", lambda: 3)
    bench.behave(dict.fromkeys(FIRST, f"meet {most}"))
    memory = int(room * NEED)
    outcome = bench.run(memory=memory, tasks=bench.only(*FIRST), parallel=None)
    assert outcome.finished == [*FIRST] and max(map(len, bench.at_once())) == most


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/job/step", "job/memory.max"),
        ("0::/", "memory.max"),
        ("4:memory:/job/step", "memory/job/memory.limit_in_bytes"),
        ("4:memory:/elsewhere", "memory/memory.limit_in_bytes"),
    ],
)
def test_the_limit_of_a_control_group_counts(line, file, tmp_path, monkeypatch):
    """Of one around this process's own too, of either version; in a container the place may be that
    of the machine outside."""
    monkeypatch.setattr(launcher, "GROUPS", tmp_path)
    monkeypatch.setattr(launcher, "OWN_GROUPS", tmp_path / "own")
    free = launcher.memory()
    assert free > 1 << 20
    (tmp_path / "own").write_text(f"9:cpu,cpuacct:/elsewhere\n{line}\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("max\n")
    assert launcher.memory() > 1 << 20
    (tmp_path / file).write_text("10000\n")
    assert launcher.memory() == 10000


def test_a_larger_batch_and_an_evaluations_features_need_more_memory():
    small, large = (resolve(["recipe=mpp", f"optim.batch={batch}"]) for batch in (128, 512))
    assert engine.WITHOUT_GPU < engine.memory_need(small, False) < engine.memory_need(large, False)
    # its tensors are not here
    assert engine.memory_need(small, gpu=True) == engine.memory_need(large, gpu=True)
    words = ["recipe=evaluate", "init=scratch", "model=vit_n8"]
    narrow, wide = (resolve([*words, *more]) for more in ([], ["model.width=1280"]))
    kept = engine.memory_need(wide, gpu=False) - engine.memory_need(narrow, gpu=False)
    assert kept > 2 * 4 * (1280 - 128) * 50_000


# ---- tasks that fail


def test_a_failed_task_leaves_out_only_what_needs_it(bench, capsys):
    bench.behave({"pretrain-mpp-0": "fail"})
    failed = bench.run().failed
    assert bench.finished() == {*bench.job.tasks} - failed.keys()
    assert bench.finished() == {
        *(name for name in bench.job.tasks if "scratch" in name),
        *("pretrain-mpp-1", "probe-mpp-1"),
    }
    assert re.fullmatch(r"it cannot be \(.*logs/pretrain-mpp-0\.txt\)", failed["pretrain-mpp-0"])
    assert failed["probe-mpp-0"] == "needs pretrain-mpp-0"
    assert failed["final-mpp-1"] == "needs sweep-mpp-0-lr=0.01"
    shown = capsys.readouterr().out
    assert "\nfailed      pretrain-mpp-0: it cannot be (" in shown
    assert "\nleft out    sweep-mpp-0-lr=0.1: needs pretrain-mpp-0\n" in shown
    bench.behave()
    assert not bench.run().failed
    again = {name for name in bench.job.tasks if bench.starts().count(name) > 1}
    assert again == {"pretrain-mpp-0"}


def test_a_rate_that_diverges_costs_its_arm_nothing_else(bench):
    sweep = [name for name in bench.job.tasks if name.startswith("sweep-mpp")]
    bench.behave(dict.fromkeys((sweep[0], sweep[2]), "fail"))
    assert bench.run().failed.keys() == {sweep[0], sweep[2]}
    assert bench.words("final-mpp-1")["optim.lr"] == "0.03"
    bench.behave(dict.fromkeys(sweep, "fail"))
    for path in bench.runs.glob("*-mpp-*/result.json"):
        path.unlink()
    assert bench.run().failed["final-mpp-0"].startswith("needs sweep-mpp-0")


def test_a_task_that_is_killed_is_started_once_more(bench, capsys):
    """Also one that lost a process that it depends on, which it says by its status."""
    bench.behave(
        {
            "pretrain-scratch-0": "end 137 0",
            "pretrain-scratch-1": "end 69 0",
            "pretrain-mpp-0": "end 137",
        }
    )
    failed = bench.run(tasks=bench.only(*FIRST)).failed
    assert [bench.starts().count(name) for name in FIRST] == [2, 2, 2, 1]
    assert failed["pretrain-mpp-0"].startswith("killed by signal 9; its last line: no output (")
    assert {"pretrain-scratch-0", "pretrain-scratch-1"} <= bench.finished()
    assert "\nagain       pretrain-scratch-1: no output\n" in capsys.readouterr().out


def test_a_task_that_leaves_no_result_has_failed(bench):
    bench.behave({ALONE: "leave"})
    failed = bench.run(tasks=bench.only(ALONE)).failed
    assert failed[ALONE].startswith("it ended without a result; its last line: no output (")


def test_a_setting_whose_worst_seed_has_failed_is_not_chosen(tmp_path):
    """Its average was of the seeds that were left."""
    sweep = GAP["runs"]["sweep"] | {"seeds": [0, 1]}
    bench = Bench(tmp_path, GAP | {"runs": GAP["runs"] | {"sweep": sweep}})
    bench.behave({"sweep-mpp-1-lr=0.1": "fail"})
    assert bench.run().failed.keys() == {"sweep-mpp-1-lr=0.1"}
    assert bench.words("final-mpp-0")["optim.lr"] == "0.03"
    final = bench.job.tasks["final-mpp-0"]
    chosen = best_values(final, bench.job.tasks, bench.runs)
    assert chosen == ({"optim.lr": 0.03}, 2, [])
    bench.behave()
    assert not bench.run().failed
    chosen = best_values(final, bench.job.tasks, bench.runs)
    assert chosen == ({"optim.lr": 0.1}, 3, ["optim.lr"])


def test_a_measure_that_is_not_there_fails_what_asks_for_it(tmp_path):
    runs = GAP["runs"] | {"final": GAP["runs"]["final"] | {"best": {"of": "sweep", "by": "loss"}}}
    bench = Bench(tmp_path, GAP | {"runs": runs})
    failed = bench.run().failed
    assert failed["final-mpp-0"].endswith("best: by=loss: sweep-mpp-0-lr=0.01 has accuracy")
    assert len(failed) == 4


# ---- the study is killed


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends the children of a killed process"
)
def test_a_study_that_is_killed_again_and_again_ends_as_an_undisturbed_one(bench, undisturbed):
    """After every second start of a task, which it has hardly begun or ends just then. No process
    runs on unseen, and none that has finished runs again."""
    kills, done = 0, False
    while not done:
        finished, before = bench.finished(), len(bench.starts())
        slow = next((name for name in bench.job.tasks if name not in finished), "")
        bench.behave({slow: "sleep"} if kills % 3 == 0 else {})
        study = bench.start()
        while len(bench.starts()) < before + 2 and study.poll() is None:
            time.sleep(0.02)
        done = study.poll() is not None
        study.kill()
        _, errors = study.communicate(timeout=60)
        kills += 1
        until(lambda: not any(map(is_alive, bench.runs.glob("*-*"))), 5)
        assert not {*bench.starts()[before:]} & finished
        assert finished <= bench.finished() and kills < 50
    assert study.returncode == 0, errors
    assert kills > 5 and bench.made() == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_study_goes_on_after_it(bench, undisturbed, number):
    bench.behave({ALONE: "sleep"})
    study = bench.start(parallel=1)
    until((bench.runs / ALONE / "asleep").exists)
    study.send_signal(number)
    output, errors = study.communicate(timeout=60)
    assert study.returncode == 130 and "the same command goes on" in errors
    assert "\nstopping    what runs has two minutes to save" in output
    assert not is_alive(bench.runs / ALONE) and bench.starts() == [ALONE]
    bench.behave()
    assert not bench.run().failed
    assert bench.made() == undisturbed


def test_a_second_signal_kills_what_does_not_end(bench):
    bench.behave({ALONE: "deaf"})
    study = bench.start(parallel=1)
    until((bench.runs / ALONE / "asleep").exists)
    study.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert study.poll() is None and is_alive(bench.runs / ALONE)
    study.send_signal(signal.SIGINT)
    study.communicate(timeout=60)
    assert study.returncode == 130 and not is_alive(bench.runs / ALONE)


@pytest.mark.parametrize("after", [False, True])
def test_a_signal_as_a_task_starts_reaches_it_too(bench, monkeypatch, after):
    """`after`: one that comes when the task has ended, but is not known to have."""
    bench.behave({ALONE: "brief" if after else "sleep"})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores it
    known = subprocess.Popen

    def start(*given, **how):
        process = known(*given, **how)
        if after:
            process.wait()
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(launcher.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.finished() == ({ALONE} if after else set())
    assert len(bench.starts()) <= 1
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_no_task_outlives_a_study_that_breaks(bench, monkeypatch):
    bench.behave({ALONE: "sleep"})

    def breaks(folder):
        if folder.name != ALONE:
            until((bench.runs / ALONE / "asleep").exists)
            raise RuntimeError("it broke")

    monkeypatch.setattr(engine, "is_written", breaks)
    with pytest.raises(RuntimeError, match="it broke"):
        bench.run()
    assert not is_alive(bench.runs / ALONE) and not bench.finished()


def test_a_folder_that_a_dying_process_holds_is_waited_for(bench):
    folder = bench.runs / ALONE
    folder.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    named = {"host": socket.gethostname(), "pid": holder.pid}
    (folder / "lock").write_text(json.dumps(named))

    def end():
        until(lambda: len(bench.finished()) == 3, 10)
        holder.communicate()

    thread, _ = in_thread(end)
    assert not bench.run(tasks=bench.only(*FIRST)).failed
    thread.join()
    # all others went first
    assert bench.starts()[-1] == ALONE and len(bench.starts()) == len(FIRST)


# ---- in a thread


def in_thread(function):
    """Call a function in a thread; the thread, and what it raised."""
    raised = []

    def call():
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, raised


def test_a_study_in_a_thread(bench, undisturbed):
    thread, raised = in_thread(bench.run)
    thread.join(60)
    assert not thread.is_alive() and raised == [] and bench.made() == undisturbed


def test_an_exception_in_its_thread_ends_a_study(bench, undisturbed):
    bench.behave({ALONE: "sleep"})
    thread, raised = in_thread(lambda: bench.run(parallel=1))
    until((bench.runs / ALONE / "asleep").exists)
    exception = ctypes.py_object(KeyboardInterrupt)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)
    thread.join(30)
    assert not thread.is_alive() and [type(error) for error in raised] == [KeyboardInterrupt]
    assert not is_alive(bench.runs / ALONE) and not bench.finished()
    bench.behave()
    assert not bench.run().failed and bench.made() == undisturbed


# ---- what is shown


def test_the_last_line_of_a_log_is_that_of_its_own_process(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("$ old\nerror: old\n")
    start = log.stat().st_size
    assert launcher.last_line(log, start) == "no output"
    log.write_text(log.read_text() + "x" * 20_000 + "\nstep 1\rstep 2 \r\n\n")
    assert launcher.last_line(log, start) == "step 2"


def test_lines_now_and_then_of_what_runs_and_how_long_it_will_take(bench, monkeypatch, capsys):
    """Two of four have taken 1e6 s each, as their results say."""
    monkeypatch.setattr(launcher, "QUIET", 0.0)
    monkeypatch.setattr(launcher, "SHARE", 0.0)
    bench.run(tasks=bench.only(*FIRST[:2]))
    assert "left about" not in capsys.readouterr().out.split("finished    ")[0]
    bench.behave(dict.fromkeys(FIRST, "brief"))
    bench.run(tasks=bench.only(*FIRST), parallel=1)
    shown = capsys.readouterr().out
    assert "\nrunning     pretrain-mpp-0: step 5/5  loss 1.500\n" in shown
    assert "no output" not in shown  # of a run that has just started
    assert "\nso far      2 of 4 finished; left about 555 h 33 min\n" in shown
    bench.behave({"probe-scratch-0": "brief"})
    bench.run(tasks=bench.only(*FIRST, "probe-scratch-0"))  # of a run that none has finished of
    assert "\nso far      4 of 5 finished\n" in capsys.readouterr().out


# ---- the real tools

REAL = """
import pickle, sys
from pathlib import Path
from ssl_vit.errors import report_errors
from ssl_vit.lab.study.local import Local
with report_errors():
    sys.exit(1 if Local().start(pickle.loads(Path(sys.argv[1]).read_bytes())).failed else 0)
"""


def test_real_runs_that_are_stopped_and_killed_end_as_undisturbed_ones(tmp_path, monkeypatch):
    """A pre-training is stopped as it runs, a fine-tuning from it is killed with the study."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own = {"optim.steps": "12", "eval.every": "4", "log.every": "1", "checkpoint.every": "4"}
    first = dict(word.split("=", 1) for word in TINY) | own
    labels = {"recipe": "finetune", "init": "{first}", "data.share": "0.02", "eval.test": "false"}
    second = {key: text for key, text in first.items() if not key.startswith(("model", "recipe"))}
    tasks = {
        "first": Task("first", "first", "pretrain", {}, 0, first),
        "second": Task("second", "second", "finetune", {}, 0, second | labels, needs=("first",)),
    }
    made = {}
    for folder in (tmp_path / "disturbed", tmp_path / "undisturbed"):
        job = Job("study", folder, tasks, dict.fromkeys(tasks, RECIPE), parallel=1)
        path = tmp_path / "job.pickle"
        path.write_bytes(pickle.dumps(job))
        for name in tasks if folder.name == "disturbed" else ():
            study = launch("-c", REAL, str(path), stderr=True)
            rows = folder / name / "metrics.jsonl"
            until(lambda rows=rows: rows.exists() and rows.stat().st_size, 120)
            study.send_signal(signal.SIGTERM if name == "first" else signal.SIGKILL)
            study.communicate(timeout=120)
            assert not (folder / name / "result.json").exists(), "it was too fast"
        study = launch("-c", REAL, str(path), stderr=True)
        output, errors = study.communicate(timeout=300)
        assert study.returncode == 0, output + errors
        for name in tasks:
            result = json.loads((folder / name / "result.json").read_text())
            made[folder.name, name] = result["metrics"]
    for name in tasks:
        assert made["disturbed", name] == made["undisturbed", name]
