"""Studies on SLURM: what is asked of it, scripts that run under stand-ins for its commands, signals
and requeues."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from helpers.options import PROBE, TINY
from helpers.runs import rows
from helpers.slurm import HOLDS, stand_ins
from helpers.studies import GAP, Bench
from ssl_vit import formatting
from ssl_vit.errors import UserError
from ssl_vit.lab import study_tool
from ssl_vit.lab.lab_tools import Slurm, is_time_limit
from ssl_vit.lab.studies import slurm_script
from ssl_vit.lab.study_tool import main

ON_SLURM = "launcher=slurm"
PARTS = ("pretrain", "sweep", "probe", "final")
NEEDS = {"sweep": {"pretrain"}, "probe": {"pretrain"}, "final": {"sweep", "pretrain"}}
SUBMITTED = re.compile(r"--parsable (?:--dependency=afterany:(\S+) )?\S+/(\w+)\.sh")


def one_arm():
    """GAP with one arm and one seed: six tasks."""
    study = copy.deepcopy(GAP)
    del study["arms"]["scratch"], study["parts"]["pretrain"]["by_arm"]["scratch"]
    return study | {"seeds": [0], "report": {}}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, GAP)
    monkeypatch.setattr(formatting, "PROGRAM", [formatting.PROGRAM[0], *made.program[1:]])
    # stand-in tools leave no recipe to compare
    monkeypatch.setattr(study_tool, "check_finished", lambda task, plan, folder: [])
    return made


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


def heads(path):
    """sbatch's options in a script, as it reads them."""
    words = [shlex.split(line[8:]) for line in lines(path) if line.startswith("#SBATCH ")]
    return {head: value for (word,) in words for head, _, value in [word.partition("=")]}


def check_shell(path):
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)


# ---- what is asked of SLURM


def test_a_job_array_for_each_part(bench, slurm, capsys):
    words = [ON_SLURM, "slurm.time=4:00:00", "slurm.gpus=1", "eval.every=7", "parallel=2"]
    assert main([*bench.words, *words]) == 0
    scripts = bench.runs / "slurm"
    calls = [SUBMITTED.fullmatch(line) for line in lines(slurm / "calls.txt")]
    order = [call[2] for call in calls]
    assert sorted(order) == sorted(PARTS)
    assert order[0] == "pretrain" and order.index("sweep") < order.index("final")
    numbers = {part: str(101 + place) for place, part in enumerate(order)}
    waits = {call[2]: set((call[1] or "").split(":")) - {""} for call in calls}
    assert waits == {part: {numbers[need] for need in NEEDS.get(part, ())} for part in PARTS}
    assert "submitted   pretrain: job 101" in capsys.readouterr().out
    arrays = dict.fromkeys(PARTS, "0,1,2,3%2") | {"sweep": "0,1,2,3,4,5%2"}
    for part, array in arrays.items():
        path = scripts / f"{part}.sh"
        check_shell(path)
        assert heads(path) == {
            "--job-name": f"gap-{part}",
            "--array": array,
            "--nodes": "1",
            "--ntasks": "1",
            "--time": "4:00:00",
            "--gpus-per-node": "1",
            "--signal": "USR1@120",
            "--requeue": "",
            "--open-mode": "append",
            "--output": f"{scripts}/{part}-%a.txt",
        }
        text = path.read_text()
        assert "eval.every=7" in text and "launcher" not in text and "parallel" not in text
    assert bench.started() == []


def test_everything_that_can_be_asked(bench, slurm):
    words = [
        "slurm.time=2-0",
        "slurm.partition=gpu",
        "slurm.qos=high",
        "slurm.account=me",
        "slurm.constraint=a100&(ib|eth)",
        "slurm.gpus=a100:4",
        "slurm.cpus=8",
        "slurm.memory=64G",
        'slurm.options={exclusive: true, mail-type: "END,FAIL", begin: 16:00, nice: 010,'
        ' comment: "it\'s $(touch gone) # `touch gone`"}',
        "optim.batch=64",
    ]
    assert main([*bench.words, ON_SLURM, *words]) == 0
    path = bench.runs / "slurm" / "pretrain.sh"
    check_shell(path)
    found = heads(path)
    assert found.keys() - {"--job-name", "--array", "--output", "--open-mode"} == {
        *("--nodes", "--ntasks", "--time", "--partition", "--qos", "--account", "--constraint"),
        *("--gpus-per-node", "--cpus-per-task", "--mem", "--signal", "--requeue"),
        *("--exclusive", "--mail-type", "--begin", "--nice", "--comment"),
    }
    assert (found["--time"], found["--partition"]) == ("2-0", "gpu")
    assert (found["--qos"], found["--account"]) == ("high", "me")
    assert found["--constraint"] == "a100&(ib|eth)"
    assert (found["--gpus-per-node"], found["--ntasks"], found["--nodes"]) == ("a100:4", "4", "1")
    assert (found["--cpus-per-task"], found["--mem"]) == ("8", "64G")
    assert (found["--exclusive"], found["--mail-type"]) == ("", "END,FAIL")
    assert (found["--begin"], found["--nice"]) == ("16:00", "010")  # not as YAML reads them
    assert found["--comment"] == "it's $(touch gone) # `touch gone`"
    assert "--cpus-per-task=8 bash -c" in path.read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("slurm.time=4h", "slurm.time=4h: expected a time limit of sbatch, of 5 minutes or more"),
        ("slurm.time=2", "slurm.time=2: expected a time limit"),
        ("slurm.gpus=100", "slurm.gpus=100: expected how many on one machine, from 0 to 99"),
        ("slurm.gpus=4:a100", "slurm.gpus=4:a100: expected how many"),
        ("slurm.cpus=0", "slurm.cpus=0: expected a whole number: at least 1"),
        ("slurm.memory=64GB", "slurm.memory=64GB: expected a size, as in 64G"),
        ("slurm.account=a\\b", "slurm.account='a\\\\b': sbatch takes no such characters"),
        ("slurm.options=exclusive", "slurm.options=exclusive: not a mapping; expected {NAME"),
        ("slurm.options={a", "slurm.options={a: while parsing a flow mapping; expected {NAME"),
        ("slurm.options={nice: [1]}", "{nice: [1]}: the value of nice is no text; expected {NAME"),
        ("slurm.options={nice: {a: 1}}", "the value of nice is no text; expected {NAME"),
        ("slurm.options={nice: 1, nice: 2}", "'nice' is given twice"),
        ("slurm.options={nice:1}", "slurm.options={nice:1: }: expected a long option of sbatch"),
        ("slurm.options={mail-type: END,FAIL}", "{FAIL: }: expected a long option of sbatch"),
        ("slurm.options={exclude: n1,n2}", "{n2: }: choices: its value, or true for an option"),
        ("slurm.options={hold: false}", "{hold: false}: choices: its value, or true"),
        ("slurm.options={time: 5}", "{time: 5}: slurm.time= sets it; choices: slurm.time="),
        ("slurm.options={mem: 5}", "{mem: 5}: slurm.memory= sets it; choices: slurm.memory="),
        ("slurm.options={array: 0-9}", "{array: 0-9}: parallel= sets it; choices: parallel="),
        ("slurm.options={requeue: true}", "{requeue: true}: the launcher sets it; choices: other"),
        ("slurm.options={gres: gpu:2}", "{gres: gpu:2}: slurm.gpus= sets it"),
        ("slurm.options={gres: 'ssd,gres/gpu'}", "gres/gpu}: slurm.gpus= sets it"),
        ("slurm.options={comment: a\\b}", "slurm.options: comment='a\\\\b': sbatch takes no such"),
        ("slurm.gpus=7", "slurm.gpus=7: pretrain-scratch-0: optim.batch=64: not divisible by 7"),
    ],
)
def test_what_slurm_is_not_asked(given, says, bench, slurm):
    with pytest.raises(UserError) as caught:
        main([*bench.words, "optim.batch=64", ON_SLURM, given])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not bench.runs.exists() and not (slurm / "calls.txt").exists()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        *((text, True) for text in ("0", "5", "5:00", "0:05:00", "0-0:5", "1-0", "1-12:30:00")),
        *((text, True) for text in ("4:59:59", "0:300", "0-0:0:300", "1440")),
        *((text, False) for text in ("4", "4:59", "0:04:59", "0-0:4", "0-0:4:59", "0:299")),
        *((text, False) for text in ("", "1-", "-1", "1:2:3:4", "1-1:1:1:1", "5m", "5 ", "\u0665")),
    ],
)
def test_time_limits_of_five_minutes_or_more(text, fits):
    assert is_time_limit(text) is fits


def test_each_option_has_its_head_and_none_of_both_can_be_given_twice():
    assert {*slurm_script.OPTIONS, "options"} == set(Slurm.__dataclass_fields__)
    made = slurm_script.heads("gap", "probe", "0", Path("runs"), Slurm(gpus="2", time="60"))
    assert made.keys() <= slurm_script.TAKEN.keys()


def test_without_gpus_none_are_asked_for():
    made = slurm_script.heads("gap", "probe", "0", Path("runs"), Slurm(gpus="0"))
    assert made["ntasks"] == "1" and "gpus-per-node" not in made


@pytest.mark.parametrize("given", ["slurm.time=4:00:00", "slurm.options={hold: true}", "dry=true"])
def test_what_only_slurm_has_is_not_ignored(given, bench):
    with pytest.raises(UserError, match="has no effect with launcher=local; choices: slurm"):
        main([*bench.words, given])
    assert not bench.runs.exists()


@pytest.mark.parametrize(
    ("variable", "value", "given", "refused"),
    [
        ("SBATCH_PARTITION", "cpu", ["slurm.partition=gpu"], True),
        ("SBATCH_PARTITION", "gpu", ["slurm.partition=gpu"], False),
        ("SBATCH_PARTITION", "cpu", [], False),
        ("SBATCH_TIMELIMIT", "1:00", ["slurm.time=60"], True),
        ("SBATCH_NO_REQUEUE", "1", [], True),
        ("SBATCH_ARRAY_INX", "0", [], True),
    ],
)
def test_variables_that_sbatch_would_take_first(
    variable, value, given, refused, bench, slurm, monkeypatch
):
    monkeypatch.setenv(variable, value)
    words = [*bench.words, ON_SLURM, *given]
    if not refused:
        assert main(words) == 0
        return
    with pytest.raises(UserError, match=f"^{variable}={value}: sbatch would take it in place of"):
        main(words)
    assert main([*words, "dry=true"]) == 0  # on another machine, perhaps


def test_sbatch_that_refuses_or_is_not_there(bench, slurm, monkeypatch):
    monkeypatch.setenv("REFUSE", "1")
    says = r"sbatch rejects \S+pretrain\.sh: sbatch: error: invalid partition specified: gpu; .* no such"
    with pytest.raises(UserError, match=says):
        main([*bench.words, ON_SLURM])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"launcher=slurm: there is no sbatch here; .* dry=true"):
        main([*bench.words, ON_SLURM])


# ---- dry=true


def test_a_dry_run_writes_and_shows_the_scripts_alone(bench, slurm, monkeypatch, capsys):
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    words = [*bench.words, ON_SLURM, "slurm.gpus=2", "dry=true", "slurm.options={comment: a b}"]
    assert main([*words, "optim.steps=10", "optim.warmup=1"]) == 0
    shown = capsys.readouterr().out
    scripts = bench.runs / "slurm"
    for part in PARTS:
        assert f"script      {scripts}/{part}.sh\n{(scripts / f'{part}.sh').read_text()}" in shown
    assert f"scripts     4 in {scripts}; nothing is submitted" in shown
    (again,) = re.findall(r"^next        (.*)", shown, re.MULTILINE)
    given = shlex.split(again)[2:]
    assert "dry=true" not in given and "slurm.options={comment: a b}" in given
    assert bench.started() == [] and not (slurm / "calls.txt").exists()
    monkeypatch.setenv("PATH", path)
    # what it has left keeps no study of other options from its folder
    assert main([word for word in words if word != "dry=true"]) == 0
    calls = lines(slurm / "calls.txt")
    # and the commands that it showed are those that were given now
    (slurm / "calls.txt").unlink()
    submit = "\n".join(re.findall(r"^submit      (.*)", shown, re.MULTILINE))
    subprocess.run(["bash", "-euc", submit], check=True)
    assert lines(slurm / "calls.txt") == calls and len(calls) == 4


def test_a_dry_run_of_a_study_that_is_there(bench, slurm, capsys):
    """It leaves the plan as it is, shows what has not finished, and finds another plan."""
    assert main([*bench.words, ON_SLURM]) == 0
    plan = (bench.runs / "study.json").read_text()
    for task in json.loads(plan)["tasks"]:
        if task["name"] != "probe-mpp-1":
            (bench.runs / task["name"]).mkdir()
            (bench.runs / task["name"] / "result.json").write_text("{}")
    capsys.readouterr()
    assert main([*bench.words, ON_SLURM, "dry=true", "seeds=3"]) == 0
    shown = capsys.readouterr().out
    # mpp's tasks follow those of scratch, the third seed is new
    assert "--array=2,4,5\n" in (bench.runs / "slurm" / "probe.sh").read_text()
    assert "sweep.sh" not in shown and (bench.runs / "study.json").read_text() == plan
    with pytest.raises(UserError, match="holds another plan: "):
        main([*bench.words, ON_SLURM, "dry=true", "optim.steps=30"])


# ---- the scripts run


def element(bench, part, index):
    """Run an array's element by hand."""
    names = {"ARRAY_TASK_ID": index, "ARRAY_JOB_ID": 7, "JOB_ID": 9, "NTASKS": 1}
    env = os.environ | {f"SLURM_{name}": str(value) for name, value in names.items()}
    command = ["bash", bench.runs / "slurm" / f"{part}.sh"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_an_arrays_element_runs_its_task(bench, slurm):
    OmegaConf.save(OmegaConf.create(one_arm()), bench.folder / "gap.yaml")
    assert main([*bench.words, ON_SLURM]) == 0
    early = element(bench, "final", 0)
    assert early.returncode == 2 and "not finished" in early.stderr
    for part, index in (("pretrain", 0), ("sweep", 0), ("sweep", 1), ("sweep", 2), ("final", 0)):
        output = element(bench, part, index)
        assert output.returncode == 0, output.stderr
    assert bench.task_options("final-mpp-0")["optim.lr"] == "0.1"
    assert "compute.threads" not in bench.task_options("final-mpp-0")
    (slurm / "calls.txt").unlink()
    # only the probes are left, and what they need is finished
    assert main([*bench.words, ON_SLURM]) == 0
    assert lines(slurm / "calls.txt") == [f"--parsable {bench.runs}/slurm/probe.sh"]
    bench.behave(probe_mpp_0="fail")
    assert element(bench, "probe", 0).returncode == 1
    assert not (slurm / "requeued.txt").exists()


def test_a_task_may_be_killed_eight_times_between_two_time_limits(bench, slurm, monkeypatch):
    """Time limits counted as well, so that one kill ended a task that had been through eight."""
    OmegaConf.save(OmegaConf.create(one_arm()), bench.folder / "gap.yaml")
    ends = [*["75"] * 9, *["137"] * 8, "75", *["137"] * 8, "0"]
    bench.behave(pretrain_mpp_0=f"end {' '.join(ends)}")
    monkeypatch.setenv("RUNS", "1")
    assert main([*bench.words, ON_SLURM, "parallel=1"]) == 0
    assert "pretrain-mpp-0" in bench.finished()
    assert bench.started().count("pretrain-mpp-0") == len(ends)
    assert not list((bench.runs / "slurm").glob("*.failures"))


def test_a_study_runs_as_submitted(bench, slurm, monkeypatch):
    """Each array when it is submitted, so that an order that is wrong finds nothing to start from.
    One task is killed once, and one each time."""
    OmegaConf.save(OmegaConf.create(one_arm()), bench.folder / "gap.yaml")
    bench.behave(**{"pretrain_mpp_0": "die once", "sweep_mpp_0_lr=0.01": "die"})
    monkeypatch.setenv("RUNS", "1")
    assert main([*bench.words, ON_SLURM, "parallel=1"]) == 0
    assert set(lines(slurm / "srun.txt")) == {
        *("--export=ALL", "--kill-on-bad-exit=0", "--wait=120")
    }
    statuses = lines(slurm / "statuses.txt")
    assert [line for line in statuses if "pretrain" in line] == ["pretrain 0 0"] * 2
    # requeued by a status of 0, which is scontrol's, eight times; then it has failed
    ended = [line for line in statuses if "sweep 0" in line]
    assert ended == ["sweep 0 0"] * 8 + ["sweep 0 137"]
    requeued = lines(slurm / "requeued.txt")
    assert requeued[0] == "requeue Incomplete 101_0" and len(requeued) == 9
    assert bench.finished() == [
        *("final-mpp-0", "pretrain-mpp-0", "probe-mpp-0"),
        *(f"sweep-mpp-0-lr={lr}" for lr in (0.03, 0.1)),
    ]
    assert bench.task_options("final-mpp-0")["optim.lr"] == "0.1"


DRIVER = """
import sys
from ssl_vit import formatting
formatting.PROGRAM[:] = {program!r}
if sys.argv[1] == "pretrain":
    exec({holds!r})
from ssl_vit.__main__ import main
main(sys.argv[1:])
"""


def test_two_processes_are_signalled_go_on_and_are_measured(tmp_path, slurm, monkeypatch):
    """With the real tools: a pre-training on two processes gets the signal before the time limit,
    saves, comes back and ends; the evaluation that waits for it runs on two processes too."""
    program = [formatting.PROGRAM[0], str(tmp_path / "driver.py")]
    (tmp_path / "driver.py").write_text(DRIVER.format(program=program, holds=HOLDS))
    monkeypatch.setattr(formatting, "PROGRAM", program)
    monkeypatch.setenv("RUNS", "1")
    monkeypatch.setenv("SIGNAL_AT", f"{tmp_path}/small/pretrain-mpp-0/metrics.jsonl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own = {"optim.steps": 20, "eval.every": 20, "log.every": 1}
    trained = dict(word.split("=") for word in TINY) | own
    probed = dict(word.split("=") for word in PROBE) | {"init": "{pretrain}", "data.share": 0.02}
    parts = {
        "probe": {"tool": "evaluate", "options": probed},
        "pretrain": {"tool": "pretrain", "options": trained},
    }
    study = {"title": "t", "arms": {"mpp": "patches"}, "parts": parts}
    OmegaConf.save(OmegaConf.create(study), tmp_path / "small.yaml")
    words = [f"recipe={tmp_path}/small.yaml", f"out={tmp_path}", ON_SLURM, "slurm.gpus=2"]
    assert main(words) == 0
    folder = tmp_path / "small"
    printed = {part: (folder / "slurm" / f"{part}-0.txt").read_text() for part in parts}
    assert lines(slurm / "requeued.txt") == ["requeue Incomplete 101_0"], printed
    assert lines(slurm / "statuses.txt") == ["pretrain 0 0", "pretrain 0 0", "probe 0 0"], printed
    assert "by SIGUSR1 on process" in printed["pretrain"]
    assert printed["pretrain"].count("task        pretrain-mpp-0\n") == 2  # a line a start
    assert [row["step"] for row in rows(folder / "pretrain-mpp-0")] == list(range(1, 21))
    for name in ("pretrain-mpp-0", "probe-mpp-0"):
        assert json.loads((folder / name / "environment.json").read_text())["processes"] == 2
        assert (folder / name / "result.json").exists()
