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

import ssl_vit
from helpers.launchers import GAP, RECIPE, Bench, is_alive, until
from helpers.launching import launch
from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.lab import memory
from ssl_vit.lab.study import local
from ssl_vit.lab.study import local as launcher
from ssl_vit.lab.study.launch import StudyJob, best_values
from ssl_vit.lab.study.ray import Ray
from ssl_vit.lab.study.tasks import Task
from ssl_vit.recipe.given import from_words

FIRST = ("pretrain-scratch-0", "pretrain-scratch-1", "pretrain-mpp-0", "pretrain-mpp-1")
NEED = memory.memory_need(RECIPE, gpu=False)
ALONE = "pretrain-scratch-0"
ONE_ARM = GAP | {"axes": {"arm": {"scratch": GAP["axes"]["arm"]["scratch"]}}}


WARM = {False: "processes", True: "forks"}


@pytest.fixture(params=WARM, ids=WARM.get)
def bench(tmp_path, monkeypatch, request):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Bench(tmp_path, warm=request.param)


@pytest.fixture(params=WARM, ids=WARM.get)
def small(tmp_path, monkeypatch, request):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Bench(tmp_path, ONE_ARM, warm=request.param)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the tasks of an undisturbed study of one arm measure."""
    other = Bench(tmp_path_factory.mktemp("undisturbed"), ONE_ARM)
    assert not other.run().failed
    return other.made()


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
    assert re.search(r"^finished .*-lr=0.03 in .*: accuracy 93.0% \(validation\)$", shown, re.M)
    again = bench.run()
    assert again.finished == [*tasks] and len(bench.starts()) == len(tasks)


def test_a_preview_starts_nothing(bench):
    """Values that are not chosen yet are told as such."""
    lines = launcher.Local().preview(bench.job)
    assert len(lines) == len(bench.job.tasks) + 1 and not bench.runs.exists()
    words = lines[-1].split()
    assert {f"init={bench.runs}/pretrain-mpp-1", "optim.lr=?", "seed=1"} < {*words}


def test_options_of_slurm_are_not_ignored(bench):
    for ask in (each for one in (launcher.Local(), Ray()) for each in (one.check, one.preview)):
        with pytest.raises(UserError, match=r"^slurm=--time=60: "):
            ask(replace(bench.job, slurm="--time=60"))


@pytest.mark.parametrize(
    ("parallel", "room", "most"),
    [(2, 99, 2), (None, 99, 3), (None, 2.5, 2), (None, 1.5, 1), (None, 0, 1)],
)
def test_as_many_run_at_once_as_are_asked_for_or_have_a_core_and_memory(
    bench, monkeypatch, parallel, room, most
):
    """A task larger than the machine may try alone."""
    monkeypatch.setattr(local, "cores", lambda: 3)
    bench.behave(dict.fromkeys(FIRST, f"meet {most}"))
    outcome = bench.run(memory=int(room * NEED), tasks=bench.only(*FIRST), parallel=parallel)
    assert outcome.finished == [*FIRST] and max(map(len, bench.at_once())) == most


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
    tasks[ALONE].options.update({"compute.workers": 3, "compute.threads": 5})
    bench.run(tasks=tasks)
    words = bench.words(ALONE)
    assert (words["compute.workers"], words["compute.threads"]) == ("3", "5")


# ---- memory


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
    monkeypatch.setattr(launcher, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(launcher, "OWN_CGROUPS", tmp_path / "own")
    free = launcher.usable_memory()
    assert free > 1 << 20
    (tmp_path / "own").write_text(f"9:cpu,cpuacct:/elsewhere\n{line}\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("max\n")
    assert launcher.usable_memory() > 1 << 20
    (tmp_path / file).write_text("10000\n")
    assert launcher.usable_memory() == 10000


def test_a_larger_batch_and_an_evaluations_features_need_more_memory():
    small, large = (resolve(["recipe=mpp", f"optim.batch={batch}"]) for batch in (128, 512))
    assert (
        memory.LIBRARY_BYTES_ON_CPU
        < memory.memory_need(small, False)
        < memory.memory_need(large, False)
    )
    # its tensors are not here
    assert memory.memory_need(small, gpu=True) == memory.memory_need(large, gpu=True)
    words = ["recipe=evaluate", "init=scratch", "model=vit_n8"]
    narrow, wide = (resolve([*words, *more]) for more in ([], ["model.width=1280"]))
    kept = memory.memory_need(wide, gpu=False) - memory.memory_need(narrow, gpu=False)
    assert kept > 2 * 4 * (1280 - 128) * 50_000


# ---- tasks that fail


def test_a_failed_task_leaves_out_only_what_needs_it(bench):
    bench.behave({"pretrain-mpp-0": "fail"})
    failed = bench.run().failed
    assert bench.finished() == {*bench.job.tasks} - failed.keys()
    scratch = {name for name in bench.job.tasks if "scratch" in name}
    assert bench.finished() == scratch | {"pretrain-mpp-1", "probe-mpp-1"}
    assert re.fullmatch(r"it cannot be \(.*logs/pretrain-mpp-0\.txt\)", failed["pretrain-mpp-0"])
    assert bench.starts().count("pretrain-mpp-0") == 1  # only what was killed starts once more
    assert failed["probe-mpp-0"] == "needs pretrain-mpp-0"
    assert failed["final-mpp-1"] == "needs sweep-mpp-0-lr=0.01"
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


def test_a_task_that_is_killed_is_started_once_more(bench):
    """Also one that lost a process that it depends on, which it says by its status."""
    bench.behave(dict(zip(FIRST[:3], ("end 137 0", "end 69 0", "end 137"), strict=True)))
    failed = bench.run(tasks=bench.only(*FIRST[:3])).failed
    assert [bench.starts().count(name) for name in FIRST[:3]] == [2, 2, 2]
    assert failed["pretrain-mpp-0"].startswith("killed by signal 9. ")
    assert bench.finished() == {"pretrain-scratch-0", "pretrain-scratch-1"}


def test_a_task_that_leaves_no_result_has_failed(bench):
    bench.behave({ALONE: "leave"})
    failed = bench.run(tasks=bench.only(ALONE)).failed
    assert failed[ALONE].startswith("ended without a result. ")


def test_a_setting_whose_worst_seed_has_failed_is_not_chosen(tmp_path):
    """Its average was of the seeds that were left."""
    sweep = GAP["runs"]["sweep"] | {"seeds": [0, 1]}
    bench = Bench(tmp_path, GAP | {"runs": GAP["runs"] | {"sweep": sweep}})
    bench.behave({"sweep-mpp-1-lr=0.1": "fail"})
    assert bench.run().failed.keys() == {"sweep-mpp-1-lr=0.1"}
    final = bench.job.tasks["final-mpp-0"]
    chosen = best_values(final, bench.job.tasks, bench.runs)
    assert chosen == ({"optim.lr": 0.03}, 2, [])
    bench.behave()
    assert not bench.run().failed
    chosen = best_values(final, bench.job.tasks, bench.runs)
    assert chosen == ({"optim.lr": 0.1}, 3, ["optim.lr"])


def test_a_try_that_measured_nothing_is_named(tmp_path):
    """The sentence ended in nothing: "did not measure accuracy, only"."""
    bench = Bench(tmp_path)
    final = bench.job.tasks["final-mpp-0"]
    for name in final.tries:
        (bench.runs / name).mkdir(parents=True)
        (bench.runs / name / "result.json").write_text('{"measurements": []}')
    with pytest.raises(UserError, match=r"sweep-mpp-0-lr=\S+ did not measure .+ no metric\.$"):
        best_values(final, bench.job.tasks, bench.runs)


def test_a_measure_that_is_not_there_fails_what_asks_for_it(tmp_path):
    runs = GAP["runs"] | {"final": GAP["runs"]["final"] | {"best": {"of": "sweep", "by": "loss"}}}
    bench = Bench(tmp_path, GAP | {"runs": runs})
    failed = bench.run().failed
    assert failed["final-mpp-0"].startswith("run final: best: by=loss: ")
    assert len(failed) == 4


# ---- the study is killed


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends the children of a killed process"
)
def test_a_study_that_is_killed_again_and_again_ends_as_an_undisturbed_one(small, undisturbed):
    """After every second start of a task, which it has hardly begun or ends just then. No process
    runs on unseen, and none that has finished runs again."""
    kills, done = 0, False
    while not done:
        finished, before = small.finished(), len(small.starts())
        slow = next((name for name in small.job.tasks if name not in finished), "")
        small.behave({slow: "sleep"} if kills % 3 == 0 else {})
        study = small.start()
        while len(small.starts()) < before + 2 and study.poll() is None:
            time.sleep(0.02)
        done = study.poll() is not None
        study.kill()
        _, errors = study.communicate(timeout=60)
        kills += 1
        until(lambda: not any(map(is_alive, small.runs.glob("*-*"))), 5)
        assert not {*small.starts()[before:]} & finished
        assert finished <= small.finished() and kills < 50
    assert study.returncode == 0, errors
    assert kills > 3 and small.made() == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_study_goes_on_after_it(small, undisturbed, number):
    small.behave({ALONE: "sleep"})
    study = small.start(parallel=1)
    until((small.runs / ALONE / "asleep").exists)
    study.send_signal(number)
    _, errors = study.communicate(timeout=60)
    assert study.returncode == 130 and "interrupted. " in errors
    assert not is_alive(small.runs / ALONE) and small.starts() == [ALONE]
    small.behave()
    assert not small.run().failed
    assert small.made() == undisturbed


def test_a_second_signal_kills_what_does_not_end(small):
    small.behave({ALONE: "deaf"})
    study = small.start(parallel=1)
    until((small.runs / ALONE / "asleep").exists)
    study.send_signal(signal.SIGTERM)
    assert any(line.startswith("stopping") for line in study.stdout)  # as it comes
    assert study.poll() is None and is_alive(small.runs / ALONE)
    study.send_signal(signal.SIGINT)
    study.communicate(timeout=60)
    assert study.returncode == 130 and not is_alive(small.runs / ALONE)


@pytest.mark.parametrize("after", [False, True])
def test_a_signal_as_a_task_starts_reaches_it_too(bench, monkeypatch, after):
    """`after`: one that comes when the task has ended, but is not known to have."""
    bench.behave({ALONE: "brief" if after else "sleep"})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores it
    known = launcher.LocalExecutor.start

    def start(*given):
        child = known(*given)
        if after:
            until(lambda: child.poll() is not None)
        signal.raise_signal(signal.SIGINT)
        return child

    monkeypatch.setattr(launcher.LocalExecutor, "start", start)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.finished() == ({ALONE} if after else set())
    assert len(bench.starts()) <= 1
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_the_page_of_a_stopped_study_shows_every_finished_task(tmp_path, monkeypatch):
    """A task ends while the page is being written, then the study is stopped."""
    bench = Bench(tmp_path, ONE_ARM)
    begin, report, page = launcher.start_process, launcher._Processes._report, bench.notes / "page"
    tasks = bench.only(*FIRST[:2])

    def stand_in(command, environment, log):
        if str(bench.runs) in command:
            names = " ".join(bench.finished())
            seconds = 0 if page.exists() else 3
            line = f"import time; time.sleep({seconds}); open({str(page)!r}, 'w').write({names!r})"
            command = [sys.executable, "-c", line]
        return begin(command, environment, log)

    def stop(processes):
        report(processes)
        if len(processes.took) == 2 and not processes.signals:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(launcher, "start_process", stand_in)
    monkeypatch.setattr(launcher._Processes, "_report", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.run(tasks=tasks, page_of=tasks[ALONE].run, parallel=1)
    signal.signal(signal.SIGINT, before)
    assert {*page.read_text().split()} == {*tasks}


def test_no_task_outlives_a_study_that_breaks(small, monkeypatch):
    small.behave({ALONE: "sleep"})

    def breaks(folder):
        if folder.name != ALONE:
            until((small.runs / ALONE / "asleep").exists)
            raise RuntimeError("it broke")

    monkeypatch.setattr(local, "is_held", breaks)
    with pytest.raises(RuntimeError, match="it broke"):
        small.run()
    assert not is_alive(small.runs / ALONE) and not small.finished()


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


def test_an_exception_in_its_thread_ends_a_study(small, undisturbed):
    """And a study that runs in another thread ends as any other."""
    small.behave({ALONE: "sleep"})
    thread, raised = in_thread(lambda: small.run(parallel=1))
    until((small.runs / ALONE / "asleep").exists)
    exception = ctypes.py_object(KeyboardInterrupt)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)
    thread.join(30)
    assert not thread.is_alive() and [type(error) for error in raised] == [KeyboardInterrupt]
    assert not is_alive(small.runs / ALONE) and not small.finished()
    small.behave()
    thread, raised = in_thread(small.run)
    thread.join(60)
    assert not thread.is_alive() and raised == [] and small.made() == undisturbed


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
    assert " left\n" not in capsys.readouterr().out.split("finished    ")[0]
    bench.behave(dict.fromkeys(FIRST, "brief"))
    bench.run(tasks=bench.only(*FIRST), parallel=1)
    shown = capsys.readouterr().out
    assert "pretrain-mpp-0: step 5/5  loss 1.500\n" in shown
    assert "no output" not in shown  # of a run that has just started
    assert "2 of 4 finished, about 555 h 33 min left\n" in shown
    bench.behave({"probe-scratch-0": "brief"})
    bench.run(tasks=bench.only(*FIRST, "probe-scratch-0"))  # of a run that none has finished of
    assert "4 of 5 finished\n" in capsys.readouterr().out


def test_no_time_is_told_while_a_task_takes_longer_than_those_before(bench, monkeypatch, capsys):
    """It was told that 0 s are left."""
    monkeypatch.setattr(launcher, "QUIET", 0.0)
    monkeypatch.setattr(launcher, "SHARE", 0.0)
    bench.run(tasks=bench.only(*FIRST[:3]))
    for name in FIRST[:3]:
        path = bench.runs / name / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 0}))
    capsys.readouterr()
    bench.behave({FIRST[3]: "brief"})
    bench.run(tasks=bench.only(*FIRST))
    shown = capsys.readouterr().out
    assert "3 of 4 finished\n" in shown and " left\n" not in shown


# ---- the real tools

REAL = """
import pickle, sys
from pathlib import Path
from ssl_vit.errors import report_errors
from ssl_vit.lab.study.local import Local
with report_errors():
    sys.exit(1 if Local().start(pickle.loads(Path(sys.argv[1]).read_bytes())).failed else 0)
"""


def test_a_real_run_that_is_stopped_and_killed_ends_as_an_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = altered(TINY, "optim.steps=30", "eval.every=10", "log.every=1", "checkpoint.every=5")
    tasks = {"run": Task("run", "run", "pretrain", {}, 0, from_words(words).values)}
    path, run = tmp_path / "job.pickle", tmp_path / "study" / "run"
    path.write_bytes(
        pickle.dumps(StudyJob("study", run.parent, tasks, {"run": RECIPE}, parallel=1))
    )
    rows = run / "metrics.jsonl"
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = rows.stat().st_size if rows.exists() else 0
        study = launch("-c", REAL, str(path), stderr=True)
        until(lambda before=before: rows.exists() and rows.stat().st_size > before, 120)
        study.send_signal(number)
        study.communicate(timeout=120)
        assert not (run / "result.json").exists(), "it was too fast"
    study = launch("-c", REAL, str(path), stderr=True)
    printed = study.communicate(timeout=300)
    assert study.returncode == 0, printed
    undisturbed = ssl_vit.pretrain([*words, f"out={tmp_path}", "name=undisturbed", "seed=0"])
    found = json.loads((run / "result.json").read_text())["measurements"]
    assert found == undisturbed.content()["measurements"]
