"""The warm process that forks a study's tasks: the same results as plain processes, what it imports
and starts, and what happens when it, its tasks or its parent are killed."""

import json
import os
import random
import signal
import sys
import time

import psutil
import pytest

from helpers.launchers import GAP, RECIPE, Bench, is_alive, until
from helpers.launching import ROOT, python
from helpers.options import TINY, altered
from ssl_vit import formatting
from ssl_vit.lab.study import local, warm
from ssl_vit.lab.study.launch import StudyJob
from ssl_vit.lab.study.tasks import Task
from ssl_vit.recipe.given import from_words

if not warm.is_possible():
    pytest.skip("tasks are forked on Linux only", allow_module_level=True)

ONE_ARM = GAP | {"axes": {"arm": {"scratch": GAP["axes"]["arm"]["scratch"]}}}
# Python imports it when it starts: it notes what a forked process imports until it ends
NOTE_IMPORTS = """
import atexit, os, sys
def note(before):
    with open({path!r} + str(os.getpid()), "w") as file:
        file.write(" ".join(sys.modules.keys() - before))
os.register_at_fork(after_in_child=lambda: atexit.register(note, {{*sys.modules}}))
"""
# It starts a thread in a warm process while that imports
START_THREAD = """
import sys, threading, time
def hook(event, arguments):
    if event == "import" and arguments[0] == "matplotlib" and "ssl_vit.lab.study.warm" in sys.orig_argv:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.addaudithook(hook)
"""
PLAIN = """
import json, sys
import ssl_vit
for words in json.loads(sys.argv[1]):
    ssl_vit.pretrain(words)
"""


@pytest.fixture
def real_program(monkeypatch):
    """Tasks are started by the interpreter itself, as they are outside of tests."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = [*formatting.PROGRAM]
    formatting.PROGRAM[0] = sys.executable
    yield
    formatting.PROGRAM[:] = before


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Bench(tmp_path, ONE_ARM, warm=True)


def job_of(folder, *options):
    """A job of tasks `t0`, `t1`, ... with these options each."""
    tasks = {
        f"t{i}": Task(f"t{i}", "run", "pretrain", {}, 0, from_words(words).values)
        for i, words in enumerate(options)
    }
    return StudyJob("study", folder / "study", tasks, dict.fromkeys(tasks, RECIPE), parallel=1)


def site(folder, text, monkeypatch):
    """Let Python processes run a text when they start."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)


def without_times(run):
    """The rows of metrics.jsonl without what depends on the machine's speed and memory."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = {"images_per_s", "memory_gib", "data_wait", "seconds"}
    return [{key: row[key] for key in row.keys() - measured} for row in rows]


# ---- the real tools


def test_forked_runs_have_the_bits_of_plain_ones_and_import_next_to_nothing(
    tmp_path, monkeypatch, real_program
):
    site(tmp_path, NOTE_IMPORTS.format(path=f"{tmp_path}/imported-"), monkeypatch)
    kinds = [(precision, n) for precision in ("float32", "bfloat16") for n in (0, 2)]
    options = [
        altered(TINY, f"compute.precision={precision}", f"compute.workers={workers}", "seed=0")
        for precision, workers in kinds
    ]
    job = job_of(tmp_path, *options, ["recipe=nosuch"])
    outcome = local.Local().start(job)
    assert outcome.finished == ["t0", "t1", "t2", "t3"] and [*outcome.failed] == ["t4"]
    for name in outcome.finished:
        run = job.folder / name
        log = (job.folder / "logs" / f"{name}.txt").read_text().splitlines()
        assert log[0].startswith(f"$ {sys.executable} -P -m ssl_vit pretrain recipe=mpp ")
        assert log[1].split() == ["run", str(run)] and log[-1].startswith("next ")
        assert json.loads((run / "environment.json").read_text())
    log = (job.folder / "logs" / "t4.txt").read_text().splitlines()
    assert len(log) == 2 and log[1].startswith("error: recipe=nosuch: ")
    imported = [path.read_text().split() for path in tmp_path.glob("imported-*")]
    assert len(imported) >= 5  # data workers too, where they end in this way
    assert max(map(len, imported)) <= 5, imported
    plain = [[*words, f"out={tmp_path}", f"name=t{i}"] for i, words in enumerate(options)]
    python("-c", PLAIN, json.dumps(plain))
    for name in outcome.finished:
        forked, plain = job.folder / name, tmp_path / name
        assert without_times(forked) == without_times(plain) != []
        files = [(run / "export" / "model.safetensors").read_bytes() for run in (forked, plain)]
        assert files[0] == files[1]


def test_tasks_start_as_processes_where_an_import_has_started_a_thread(
    tmp_path, monkeypatch, real_program, capsys
):
    site(tmp_path, START_THREAD, monkeypatch)
    outcome = local.Local().start(job_of(tmp_path, ["recipe=nosuch"], ["recipe=nosuch"]))
    assert [why.startswith("recipe=nosuch: ") for why in outcome.failed.values()] == [True] * 2
    shown = capsys.readouterr().out
    assert "an import started the thread python" in shown
    assert shown.count("\nforking ") == 1


# ---- kills, with a stand-in tool of milliseconds


def test_a_warm_process_that_is_killed_again_and_again_costs_no_task_its_second_start(bench):
    """The tasks that died with it start again: from a new one, in the end as processes. A task that
    a signal itself ended has one more start all the same."""
    first = next(iter(bench.job.tasks))

    def started(times):
        return bench.starts().count(first) == times

    bench.behave({first: "sleep"})
    study = bench.start(parallel=1)
    for number in range(1, local.WARM_ATTEMPTS + 1):
        until(lambda number=number: started(number) and asleep(bench, first))
        parent = psutil.Process(int((bench.runs / first / "pid").read_text())).parent()
        for file in ("asleep", "state.json"):  # it sleeps again
            (bench.runs / first / file).unlink()
        parent.kill()
    until(lambda: asleep(bench, first) and started(local.WARM_ATTEMPTS + 1))
    bench.behave()
    os.kill(int((bench.runs / first / "pid").read_text()), signal.SIGKILL)
    output, errors = study.communicate(timeout=120)
    assert study.returncode == 0, (output, errors)
    assert started(local.WARM_ATTEMPTS + 2)
    assert output.count("\nforking ") == local.WARM_ATTEMPTS
    assert output.count("\nagain ") == local.WARM_ATTEMPTS + 1
    assert bench.finished() == {*bench.job.tasks}


def asleep(bench, task):
    """Whether a task that sleeps has begun to."""
    return (bench.runs / task / "asleep").exists() and is_alive(bench.runs / task)


@pytest.mark.parametrize("stopped", [False, True])
def test_tasks_die_with_the_studys_process(bench, stopped):
    """Also while their warm process is stopped."""
    first, second, *_ = bench.job.tasks
    bench.behave({first: "sleep", second: "sleep"})
    study = bench.start(parallel=2)
    until(lambda: asleep(bench, first) and asleep(bench, second))
    parent = psutil.Process(int((bench.runs / first / "pid").read_text())).parent()
    if stopped:
        parent.suspend()
    study.kill()
    study.communicate(timeout=60)
    until(lambda: not parent.is_running() or parent.status() == "zombie", 30)
    until(lambda: not any(map(is_alive, (bench.runs / first, bench.runs / second))), 30)


def test_the_first_signal_lets_tasks_save_and_the_second_kills_even_a_stopped_warm_process(bench):
    first, *_ = bench.job.tasks
    bench.behave({first: "deaf"})
    study = bench.start(parallel=1)
    until(lambda: asleep(bench, first))
    parent = psutil.Process(int((bench.runs / first / "pid").read_text())).parent()
    parent.send_signal(signal.SIGTERM)  # as a service manager sends it to every process
    study.send_signal(signal.SIGTERM)
    assert any(line.startswith("stopping") for line in study.stdout)
    assert study.poll() is None and is_alive(bench.runs / first) and parent.is_running()
    parent.suspend()
    study.send_signal(signal.SIGINT)
    study.communicate(timeout=60)
    assert study.returncode == 130 and not is_alive(bench.runs / first)
    assert not parent.is_running()


def test_random_kills_leave_the_same_results_and_nothing_behind(tmp_path, monkeypatch):
    """Tasks, the warm process and the study are killed at random moments; then it runs to its end."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for folder in ("undisturbed", "killed"):
        (tmp_path / folder).mkdir()
    undisturbed = Bench(tmp_path / "undisturbed", GAP, warm=True)
    assert not undisturbed.run().failed
    bench = Bench(tmp_path / "killed", GAP, warm=True)
    chance = random.Random(0)
    for victim in (*("task", "warm") * 3, "study", "study"):
        study = bench.start()
        time.sleep(chance.uniform(0.5, 2))  # what runs then is another thing on each machine
        forked = [p for p in psutil.process_iter() if is_of(p, bench)]
        warms = [p for p in forked if p.ppid() not in {q.pid for q in forked}]
        tasks = [p for p in forked if p not in warms]
        for process in {"task": tasks, "warm": warms}.get(victim, []):
            process.kill()
        if victim == "study":
            study.kill()
        study.communicate(timeout=120)
        until(lambda: not any(is_of(p, bench) for p in psutil.process_iter()), 30)
    assert not bench.run().failed
    assert bench.made() == undisturbed.made()


def is_of(process, bench):
    """Whether a process is a warm process or a forked task of the bench, and no zombie."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return str(bench.tool.with_name("driver.py")) in words


def test_thirty_tasks_leave_no_memory_no_descriptor_and_no_zombie(tmp_path, monkeypatch):
    """Neither in the study's process nor in the warm one, measured after 3 and after 30 tasks."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bench = Bench(tmp_path, GAP | {"seeds": [*range(12)]}, warm=True)
    names = [name for name, task in bench.job.tasks.items() if not task.needs][:30]
    before = [*formatting.PROGRAM]
    formatting.PROGRAM[:] = [sys.executable, str(bench.tool.with_name("driver.py")), "ssl_vit"]
    process = warm.WarmProcess()
    measured = []
    try:
        for number, name in enumerate(names):
            log = tmp_path / "log.txt"
            words = [f"out={bench.runs}", f"name={name}", "tool=1"]
            task = process.start(["pretrain", *words], process.environment, log)
            until(lambda task=task: task.poll() is not None)
            assert task.poll() == 0, log.read_text()
            if number in (2, len(names) - 1):
                other = psutil.Process(process.process.pid)
                assert other.children() == []
                measured.append(
                    [(p.num_fds(), p.memory_info().rss) for p in (psutil.Process(), other)]
                )
    finally:
        process.close()
        formatting.PROGRAM[:] = before
    for (fds, memory), (fds_after, memory_after) in zip(*measured, strict=True):
        assert fds_after == fds and memory_after < memory + (8 << 20)
    assert not psutil.pid_exists(process.process.pid)


def test_a_task_with_another_environment_does_not_suit(tmp_path):
    process = warm.WarmProcess.__new__(warm.WarmProcess)
    process.environment = {"HF_HOME": "here", "CUDA_VISIBLE_DEVICES": "0"}
    assert process.suits({"HF_HOME": "here", "CUDA_VISIBLE_DEVICES": "1"})
    assert process.suits({"HF_HOME": "here"})
    assert not process.suits({"HF_HOME": "there"})
    assert not process.suits({"HF_HOME": "here", "OMP_NUM_THREADS": "1"})
