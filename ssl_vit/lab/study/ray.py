"""Launch tasks on a Ray cluster.

The launcher works like the local launcher, but each task runs as a Ray task on a node with cores
and a GPU of its own. All nodes share the storage of the folders. If a node is lost, Ray starts its
task on another node, and the run continues from its folder.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import LostError, UserError, one_line
from ...extras import require
from ...formatting import PACKAGE, process_environment
from ...runs.environment import cores
from ...runs.lock import is_held, wait_until_free
from .launch import LaunchOutcome, StudyJob
from .local import Local, TaskProcess, largest_need, preview, run, start_process


class Ray:
    """Launcher that runs tasks on the nodes of a Ray cluster."""

    def check(self, job: StudyJob) -> None:
        """Check the study as `Local` does, and that Ray is installed.

        Raises:
            UserError: `Local` refuses the study, or Ray is not installed.
        """
        Local().check(job)
        require("ray", "launcher=ray")

    def preview(self, job: StudyJob) -> list[str]:
        """Return what `Local` would print, without using Ray."""
        Local().check(job)
        return preview(job)

    def start(self, job: StudyJob) -> LaunchOutcome:
        """Run the tasks on a cluster.

        The environment variable RAY_ADDRESS names the cluster. Without it, Ray uses a cluster that
        already runs on this machine, or else starts a cluster on this machine alone.

        Raises:
            KeyboardInterrupt: The user stopped the study; see `Local.start`.
            UserError: The cluster cannot be used.
        """
        ray = require("ray", "launcher=ray")
        try:
            description = _connect(ray)
            print(f"cluster     {description}, nodes: {len(ray.nodes())}", flush=True)
            return run(job, RayExecutor(job, ray))
        finally:
            ray.shutdown()


class RayExecutor:
    """Executor that runs tasks on the nodes of a Ray cluster.

    By default, each GPU runs one task. Without GPUs, each core runs one task. Fewer tasks run at
    once if the memory does not suffice. If the cluster has GPUs, each task gets one GPU. Each task
    gets the same number of cores: the largest number with which all these tasks run at once.
    """

    def __init__(self, job: StudyJob, ray: Any) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.gpus = any("GPU" in node for node in nodes)
        gpu = {"GPU": 1} if self.gpus else {}

        def count_fitting(**resources: float) -> int:
            """Return how many tasks fit on all nodes if each task needs these resources."""
            needed = (gpu | resources).items()
            return sum(
                min(int(node.get(key, 0) // amount) for key, amount in needed) for node in nodes
            )

        parallel = job.parallel
        if parallel is None:
            fitting = count_fitting(CPU=1, memory=largest_need(job, self.gpus))
            parallel = max(1, min(fitting, len(job.tasks)))
        self.parallel = parallel
        most = int(max(node.get("CPU", 0) for node in nodes))
        # numbers of cores per task with which `parallel` tasks fit at once, the largest first
        fitting_cores = (n for n in range(most, 1, -1) if count_fitting(CPU=n) >= parallel)
        self.cores = next(fitting_cores, 1)
        options = {"num_cpus": self.cores, "num_gpus": len(gpu), "max_retries": 3}
        self.ray, self.task = ray, ray.remote(**options)(run_task)

    def start(self, line: Sequence[str], folder: Path, log: Path) -> TaskProcess:
        paths = folder.resolve(), log.resolve(), Path.cwd()
        reference = self.task.remote(line, process_environment(), *paths)
        return _RemoteProcess(self.ray, reference, log)


class _RemoteProcess:
    """Process of a task on a node of the cluster, with the methods of `TaskProcess`."""

    def __init__(self, ray: Any, reference: Any, log: Path) -> None:
        self.ray, self.reference, self.log = ray, reference, log
        self.status: int | None = None

    def poll(self) -> int | None:
        if self.status is None and self.ray.wait([self.reference], timeout=0)[0]:
            try:
                self.status = self.ray.get(self.reference)
            except self.ray.exceptions.RayError as error:
                with self.log.open("a") as file:
                    file.write(f"error: Ray: {one_line(getattr(error, 'cause', error))}\n")
                self.status = LostError.status
        return self.status

    def terminate(self) -> None:
        self.ray.cancel(self.reference)

    def kill(self) -> None:  # Ray ignores this call while `terminate` is still under way
        self.ray.cancel(self.reference, force=True)


def _connect(ray: Any) -> str:
    """Connect to a cluster and return a description of the cluster."""
    # ssl_vit may not be installed on the nodes, so the processes there import it from this folder
    job_config = ray.job_config.JobConfig(_py_driver_sys_path=[str(PACKAGE.parent)])
    options = {"log_to_driver": False, "logging_level": "ERROR", "job_config": job_config}
    try:
        try:
            ray.init(num_cpus=cores(), include_dashboard=False, **options)
            return "started on this machine"
        except ValueError:  # a cluster exists, which has set its cores and so refuses num_cpus
            ray.init(**options)
            return f"at {os.environ.get('RAY_ADDRESS', 'this machine')}"
    except Exception as error:  # Ray raises errors of its own and plain Python errors
        raise UserError(
            f"launcher=ray: {one_line(error).rstrip('.')}. Set RAY_ADDRESS=HOST:PORT, or"
            " RAY_ADDRESS=local to start a cluster here."
        ) from None


def run_task(
    line: Sequence[str], environment: dict[str, str], folder: Path, log: Path, cwd: Path
) -> int:
    """Run a task's process on this node of the Ray cluster and return the exit status.

    Ray runs a task again if Ray loses the connection to the task's node. Then the earlier process
    of the task may still be writing the run's folder. So this function first waits until no process
    writes the folder.

    Args:
        line: Command line of the task.
        environment: Environment variables of the task, except variables that name its GPUs.
        folder: Folder of the run.
        log: File that the task's output is appended to.
        cwd: Working directory of the task.
    """
    # `terminate` stops this function by SIGINT, which raises KeyboardInterrupt. Without this line,
    # a process that nohup or & started would ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    doing = "waits for the process that writes the run" if is_held(folder) else "starts"
    with log.open("a") as file:
        file.write(f"on {socket.gethostname()}: {doing}\n")
    wait_until_free(folder)
    # Ray names the GPUs of this task in variables such as CUDA_VISIBLE_DEVICES
    devices = {key: text for key, text in os.environ.items() if key.endswith("_VISIBLE_DEVICES")}
    process = start_process(line, environment | devices, log, cwd)
    try:
        while process.poll() is None:
            time.sleep(0.05)
    except KeyboardInterrupt:  # raised by `terminate`
        process.terminate()
    return process.wait()
