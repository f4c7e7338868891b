"""The Ray launcher: what it asks of a cluster, a folder that is still written; nodes that are lost
and Ctrl-C, on clusters of this machine and with stand-in tools."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from filelock import FileLock

from helpers.launchers import RECIPE, Bench, is_alive, until
from ssl_vit.errors import UserError
from ssl_vit.lab import memory
from ssl_vit.lab.study.ray import Ray, RayExecutor, run_task

AT = "import os; os.environ['RAY_ADDRESS'] = '{}'"
FIRST = ("pretrain-scratch-0", "pretrain-scratch-1", "pretrain-mpp-0", "pretrain-mpp-1")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Bench(tmp_path, launcher=Ray)


def test_without_ray_one_line_says_what_to_install(bench, monkeypatch):
    """A preview needs none."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"launcher=ray: .*ssl_vit\[ray\]"):
        Ray().check(bench.job)
    assert len(Ray().preview(bench.job)) == len(bench.job.tasks) + 1 and not bench.runs.exists()


@pytest.mark.parametrize(
    ("nodes", "parallel", "found"),
    [
        ([(8, 0, 99)] * 2, None, (16, 1)),
        ([(8, 0, 99)] * 2, 3, (3, 4)),
        ([(8, 0, 99)] * 2, 99, (99, 1)),
        ([(8, 0, 99), (3, 0, 99)], 2, (2, 4)),
        ([(8, 0, 3.5), (8, 0, 2.5)], None, (5, 2)),
        ([(8, 0, 0.5)], None, (1, 8)),
        ([(64, 0, 99), (16, 4, 99), (16, 4, 99)], None, (8, 4)),
        ([(16, 4, 99), (16, 4, 99)], 2, (2, 16)),
        ([(0, 0, 99)], None, (1, 1)),
    ],
)
def test_a_task_has_a_gpu_and_as_many_cores_as_let_all_run(bench, nodes, parallel, found):
    """Nodes of (cores, GPUs, tasks that fit into memory); 18 tasks."""
    asked = {}
    need = {gpu: memory.memory_need(RECIPE, gpu) for gpu in (False, True)}
    gpu = any(gpus for _, gpus, _ in nodes)
    resources = [
        {"CPU": float(cores), "memory": fit * need[gpu]} | ({"GPU": float(gpus)} if gpus else {})
        for cores, gpus, fit in nodes
    ]
    ray = SimpleNamespace(
        nodes=lambda: [
            *({"Alive": True, "Resources": one} for one in resources),
            {"Alive": False, "Resources": {}},
        ],
        remote=lambda **options: asked.update(options) or (lambda function: function),
    )
    place = RayExecutor(replace(bench.job, parallel=parallel), ray)
    assert (place.parallel, place.cores) == found and place.gpus == gpu
    assert (asked["num_cpus"], asked["num_gpus"]) == (found[1], int(gpu))


def test_a_folder_that_a_lost_node_still_writes_is_waited_for(bench, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log.txt"
    folder.mkdir()
    line = [sys.executable, "-S", "-E", "-c", "import sys; print('it ran'); sys.exit(3)"]
    held, before = threading.Event(), []

    def hold():
        with FileLock(folder / "lock"):
            held.set()
            until(log.exists)
            time.sleep(0.2)
            before.append(log.read_text())

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert run_task(line, {"PATH": ""}, folder, log, tmp_path) == 3
    thread.join()
    assert "it ran" not in before[0] and log.read_text().endswith("it ran\n")


# ---- clusters of this machine


def asleep_all(bench, study, names):
    def holds():
        assert study.poll() is None, study.communicate()
        return all((bench.runs / name / "asleep").exists() for name in names)

    until(holds)


def node_of(task: Path, raylets):
    """The node whose raylet has started what runs a task."""
    parents = {parent.pid for parent in psutil.Process(int((task / "pid").read_text())).parents()}
    return next(node for node, pid in raylets.items() if pid in parents)


@pytest.mark.slow
def test_tasks_of_lost_nodes_go_on_elsewhere_with_the_same_results(bench, tmp_path):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    from ray.cluster_utils import Cluster

    sweep = [name for name in bench.job.tasks if name.startswith("sweep")]
    tasks = bench.only(*FIRST, *sweep, "final-scratch-0", "final-mpp-0")
    assert len(tasks) == 12
    (tmp_path / "local").mkdir()
    undisturbed = Bench(tmp_path / "local")
    assert not undisturbed.run(tasks=tasks).failed

    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        nodes = {
            node: node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()
        }
        bench.behave(dict.fromkeys(FIRST[:3], "sleep"))
        study = bench.start(AT.format(cluster.address), tasks=tasks, parallel=3)
        asleep_all(bench, study, FIRST[:3])
        places = {name: node_of(bench.runs / name, nodes) for name in FIRST[:3]}
        assert len({*places.values()}) == 3
        bench.behave()
        for name, node in places.items():
            if node is cluster.head_node:
                os.kill(int((bench.runs / name / "pid").read_text()), signal.SIGKILL)
            else:
                cluster.remove_node(node, allow_graceful=False)
        printed, errors = study.communicate(timeout=300)
    finally:
        cluster.shutdown()
    assert study.returncode == 0, printed + errors
    assert bench.made() == undisturbed.made()
    assert [bench.starts().count(name) for name in tasks] == [2] * 3 + [1] * 9


@pytest.mark.slow
def test_ctrl_c_ends_all_tasks(bench):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    bench.behave({FIRST[0]: "sleep", FIRST[1]: "deaf"})
    # as under nohup, where Ray's processes inherit that it is ignored; on any number of cores
    first = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    first += "from ssl_vit.lab.study import ray as launcher; launcher.cores = lambda: 2\n"
    study = bench.start(first + AT.format("local"))
    asleep_all(bench, study, FIRST[:2])
    study.send_signal(signal.SIGINT)
    until(lambda: not is_alive(bench.runs / FIRST[0]))
    assert is_alive(bench.runs / FIRST[1])
    study.send_signal(signal.SIGINT)
    printed, errors = study.communicate(timeout=300)
    assert study.returncode == 130, printed + errors
    until(lambda: not is_alive(bench.runs / FIRST[1]))
    assert not bench.finished() and len(bench.starts()) == 2
