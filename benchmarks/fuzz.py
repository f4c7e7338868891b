"""Wrong command lines for every tool: each must be answered in one line, or be right.

    python benchmarks/fuzz.py count=3000 processes=60 seed=0

Every case is a valid command line of one of tools/ with up to three mistakes in it: typos, values
of other types, nested lists, NaN, infinities, huge and negative numbers, blanks, other alphabets,
bytes that are no UTF-8, names too long. It runs in a forked child in which the work that accepted
words would begin is taken out; `processes` of them run again as real processes, whose tools must
answer the same. What was accepted is held against a list of what nobody can mean. One JSON object
comes out; tests/test_fuzz.py does a few hundred.
"""

import dataclasses
import json
import os
import random
import re
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from forked import ACCEPTED, ANSWERED, HANG, TRACEBACK, Accepted, outcome

from ssl_vit.config.parsing import flatten
from ssl_vit.config.values import KEYS
from ssl_vit.errors import report_errors
from ssl_vit.hub import pull, push
from ssl_vit.jobs import cli, make_shards
from ssl_vit.models import interop
from ssl_vit.planning import plan
from ssl_vit.reports import command as report
from ssl_vit.studies import command

TOOLS = Path(__file__).resolve().parent.parent / "tools"
NUMBERS = [
    "0",
    "-1",
    "-0.0",
    "017",
    "0x10",
    "1e3",
    "1e-3",
    "1e-30",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "-inf",
    ".inf",
    "1_0",
]
NUMBERS += [
    "1000000000",
    "9223372036854775808",
    "1" + "0" * 400,
    "1e308",
    "-1e308",
    "1" * 5000,
    "٣",
    "½",
    "1,5",
    "12:30:45",
]
TEXTS = [
    "",
    " ",
    "   ",
    "\t",
    "null",
    "none",
    "~",
    "true",
    "false",
    "yes",
    "off",
    "True",
    "''",
    '""',
    "a b",
    "../x",
    "/abs/x",
]
TEXTS += [
    "..",
    ".",
    "x/../../y",
    "x/",
    "//",
    "-",
    "--",
    "*",
    "a\nb",
    "a\rb",
    "\u2028",
    "日本",
    "é" * 130,
    "x" * 300,
]
TEXTS += [
    "x" * 90_000,
    "\udcff\udc80",
    "a\udce9",
    "\u202egnp",
    "🦙",
    "\x1b[31m",
    "%s",
    "{x}",
    "{",
    "}",
    "{}{",
    "${oc.env:HOME}",
    "$HOME",
    "???",
    "@",
    "#",
    "&a",
    "!!x",
]
TEXTS += ["2024-01-01", "=", "==", "a=b", ":", "a: b", "\\", "`", "|", ">", "'", '"', "con", "\x7f"]
LISTS = [
    "[]",
    "[1,[2],3]",
    "[[[]]]",
    "[null]",
    "[a,b]",
    "[1,2",
    "1]",
    "[1,,2]",
    "[true]",
    "[1e400]",
    "[nan]",
    "[-1]",
    "[1.5]",
]
LISTS += [
    "{}",
    "{a:1}",
    "{1:2}",
    "[{a:1}]",
    "[" * 200 + "]" * 200,
    "[" * 5000,
    "{a:" * 300,
    "[1,[2,[3,[4]]]]",
    "[" + "1," * 9000 + "1]",
]
LISTS += ["[0.5,0.5,[0.5]]", "[0.9,nan]", "['',' ']", "[1,2,3]extra", "[5,5]", "[0.5,0.5,0.5]"]
WORDS = [
    "",
    "=",
    "=x",
    "x",
    "--json",
    "--help",
    "-h",
    "recipe",
    "sweep",
    "--probe",
    "--quiet",
    "optim",
    "optim=1",
    "data={}",
    "model=",
]
WORDS += [
    "corruption={rate:0.5}",
    "optim.lr.x=1",
    "optim.=1",
    ".=1",
    "data.name=x",
    "model.name=x",
    "=" * 50,
    "__class__=1",
    "\udcff=1",
]
TRAIN = ["recipe=mpp", "optim.lr=1e-3", "optim.batch=64", "corruption.rate=0.3", "out=runs"]
BASES: dict[str, list[list[str]]] = {
    "pretrain": [
        TRAIN,
        ["recipe=mpp", "data.path=own", "data.size=32", "model.patch=8", "name=x"],
        ["recipe=joint", "data=cifar10", "data.path=own", "joint.mpp=0.5"],
        [
            "recipe=supervised",
            "data.path=own",
            "supervised.loss=sigmoid",
            "eval.test=true",
            "hub.repo=a/b",
        ],
        [
            "recipe=mpp",
            "probe.every=10",
            "probe.shots=[1,2]",
            "optim.betas=[0.9,0.95]",
            "data.mean=[0.5,0.5,0.5]",
        ],
        [
            "recipe=mpp",
            "seed=3",
            "resume=true",
            "compute.workers=0",
            "compute.precision=float32",
            "log.tensorboard=false",
        ],
    ],
    "finetune": [
        ["recipe=finetune", "init=scratch", "data.path=own", "data.validation=0.1", "optim.lr=0.01"]
    ],
    "evaluate": [
        [
            "recipe=evaluate",
            "init=run/export",
            "probe.shots=[1,5]",
            "probe.rates=[0.1,1]",
            "probe.measures=[knn]",
        ]
    ],
    "plan": [
        ["recipe=mpp", "device=h100", "processes=8", "price=2.5", "zero=1"],
        ["recipe=finetune", "init=scratch", "epochs=3", "images=1000", "efficiency=0.4", "--json"],
        ["recipe=study/gap", "device=h100"],
    ],
    "study": [
        ["recipe=study/masking_rate", "name=s", "seeds=2", "optim.steps=10"],
        ["recipe=mpp", "sweep", "corruption.rate=0.15,0.5", "seeds=0,1", "parallel=2"],
        ["recipe=study/gap", "optim.steps=10", "optim.warmup=1", "probe.shots=[1,5]"],
        ["recipe=study/masking_rate", "launcher=slurm", "slurm.time=4:00:00", "slurm.gpus=1"],
        ["recipe=study/masking_rate", "only=pretrain", "index=1"],
    ],
    "report": [["study"], ["study", "--json"]],
    "export": [
        ["run", "format=transformers", "out=there"],
        ["run/export", "format=onnx", "out=there.onnx"],
    ],
    "push": [
        ["run", "hub.repo=a/b", "hub.private=true"],
        ["run", "hub.repo=a/b", "hub.state=false", "--quiet"],
    ],
    "pull": [["hf-hub:a/b", "out=runs", "name=y"]],
    "shards": [
        [
            "data.path=own",
            "out=there",
            "size=32",
            "rows=10",
            "format=jpeg",
            "quality=90",
            "workers=1",
        ]
    ],
}
OTHER = {  # keys of the tools' own that a base may lack
    "study": [
        "match",
        "seeds",
        "parallel",
        "launcher",
        "only",
        "index",
        "slurm.time",
        "slurm.gpus",
        "name",
        "out",
    ],
    "plan": ["device", "processes", "price", "zero", "efficiency", "epochs", "images"],
    "shards": [
        "size",
        "rows",
        "quality",
        "workers",
        "format",
        "out",
        "data.image_column",
        "data.window",
        "data.path",
    ],
    "push": ["hub.repo", "hub.private", "hub.state"],
    "pull": ["out", "name"],
    "export": ["out", "format"],
    "report": [],
}


def cases(seed: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Tools and words; the same for the same seed."""
    draw = random.Random(seed)
    tools = [
        tool for tool in BASES for _ in range({"pretrain": 6, "study": 4, "plan": 2}.get(tool, 1))
    ]
    for number in range(count):
        tool = tools[number % len(tools)]
        words = list(draw.choice(BASES[tool]))
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            words = _mistaken(words, tool, draw)
        yield tool, words


def _mistaken(words: list[str], tool: str, draw: random.Random) -> list[str]:
    """The words with one mistake more."""
    at = draw.randrange(len(words)) if words else 0
    kind = draw.random()
    if kind < 0.35 and words:
        key, equals, value = words[at].partition("=")
        new = f"{key}={_value(draw, value)}" if equals else _value(draw, key)
        return [*words[:at], new, *words[at + 1 :]]
    if kind < 0.7:
        keys = OTHER.get(tool) or [*KEYS, "data", "model", "recipe"]
        if tool in ("study", "plan") and draw.random() < 0.6:
            keys = [*KEYS]
        key = draw.choice(keys) if keys else "x"
        return [
            *(word for word in words if not word.startswith(f"{key}=")),
            f"{key}={_value(draw, 'text')}",
        ]
    if kind < 0.8 and words:
        return [*words[:at], _typo(words[at], draw), *words[at + 1 :]]
    if kind < 0.87:
        return [*words, draw.choice(WORDS)]
    if kind < 0.93 and words:
        return words[:at] + words[at + 1 :]
    return [*words, words[at]] if words else [_value(draw, "x")]


def _value(draw: random.Random, was: str) -> str:
    kind = draw.random()
    if kind < 0.3:
        return draw.choice(NUMBERS)
    if kind < 0.65:
        return draw.choice(TEXTS)
    if kind < 0.85:
        return draw.choice(LISTS)
    if kind < 0.95:
        return _typo(was, draw)
    return "".join(
        chr(draw.choice([draw.randrange(1, 128), draw.randrange(128, 0xD800)]))
        for _ in range(draw.randrange(40))
    )


def _typo(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word) + 1)
    kind = draw.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + draw.choice(string.printable) + word[at:]
    if kind == 2 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word.upper() if draw.random() < 0.5 else word + word


def nonsense(recipe: dict[str, Any], words: list[str]) -> str | None:
    """What of an accepted recipe nobody can mean; None where nothing is."""
    for key, value in recipe.items():
        for one in value if isinstance(value, list) else [value]:
            if (
                isinstance(one, float | int)
                and not isinstance(one, bool)
                and not abs(one) < 2**63 + 1
            ):
                return f"{key}={value}: not finite, or of more than 64 bits"
            if isinstance(one, list | dict):
                return f"{key}={value}: nested"
            if (
                isinstance(one, str)
                and (one != one.strip() or not one.isprintable())
                and key != "data.path"
            ):
                return f"{key}={one!r}: blanks, or what cannot be printed"
            if isinstance(one, str) and any(
                len(part.encode(errors="replace")) > 255 for part in one.split("/")
            ):
                return f"{key}=...: longer than a file's name can be"
    for key in ("out", "data.train", "data.test", "target", "objective"):
        if not str(recipe[key]).strip():
            return f"{key} is blank"
    for key in ("data.train", "data.test", "data.validation"):
        if isinstance(recipe[key], str) and re.fullmatch(
            r"[-+]?[\d._]+(e[-+]?\d+)?|nan|[-+]?inf", recipe[key].lower()
        ):
            return f"{key}={recipe[key]}: a split called by a number"
    if ".." in str(recipe["name"]).split("/") or str(recipe["name"]).startswith("/"):
        return f"name={recipe['name']} leads out of out="
    most = {
        "optim.batch": 2**22,
        "data.size": 2**14,
        "optim.lr": 1e4,
        "optim.weight_decay": 1e4,
        "compute.workers": 4096,
    }
    most |= {
        "compute.threads": 2**20,
        "probe.batch": 2**24,
        "probe.neighbors": 2**24,
        "data.classes": 2**24,
        "optim.steps": 2**40,
    }
    for key, limit in most.items():
        if recipe[key] is not None and recipe[key] > limit:
            return f"{key}={recipe[key]}: above {limit}"
    if recipe["data.eval_crop"] < 0.1:
        return (
            f"data.eval_crop={recipe['data.eval_crop']}: would resize to "
            f"{recipe['data.size'] / recipe['data.eval_crop']:g} px"
        )
    for word in words:
        key, _, text = word.partition("=")
        if (
            key in KEYS
            and "bool" in str(KEYS[key])
            and text.lower() not in ("true", "false", "null", "none")
        ):
            return f"{word}: a bool"
    return None


def prepared(folder: Path) -> None:
    """What the words name: images (`own`), a run (`run`) and a study (`study`); small, and none of
    them trained."""
    import numpy as np
    from PIL import Image

    for split in ("train", "validation"):
        for label in ("cat", "dog"):
            (folder / "own" / split / label).mkdir(parents=True)
            for number in range(3):
                pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "own" / split / label / f"{number}.png")
    (folder / "run" / "export").mkdir(parents=True)
    (folder / "run" / "recipe.yaml").write_text("objective: mpp\n")
    (folder / "run" / "export" / "config.json").write_text(
        '{"architecture": "vit_base_patch16_224", "num_classes": 0}'
    )
    (folder / "run" / "export" / "model.safetensors").write_bytes(b"")
    (folder / "study").mkdir()
    (folder / "study" / "study.json").write_text("{}")


def _accept(*_: Any, **__: Any) -> Any:
    raise Accepted


def _accept_run(run: Any, *_: Any) -> Any:
    raise Accepted(flatten(dataclasses.asdict(run.recipe)))


def _plain(main: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    def call(words: list[str]) -> Any:
        with report_errors():
            return main(words)

    return call


MAINS: dict[str, Callable[[list[str]], Any]] = {
    "pretrain": cli.pretrain,
    "finetune": cli.finetune,
    "evaluate": cli.evaluate,
    "plan": _plain(plan.main),
    "study": _plain(command.main),
    "report": _plain(report.main),
    "export": _plain(interop.main),
    "push": _plain(push.main),
    "pull": _plain(pull.main),
    "shards": _plain(make_shards.main),
}


def disarm() -> None:
    """Take out what accepted words would begin."""
    cli._train = cli._probe = _accept_run  # type: ignore[assignment]
    command.run_all = command.submit_all = _accept  # type: ignore[assignment]
    command.os.execve = _accept  # type: ignore[assignment]
    make_shards._make = _accept  # type: ignore[assignment]
    push.push = _accept  # type: ignore[assignment]
    from ssl_vit.planning import forecast

    forecast.measure = _accept  # type: ignore[assignment]


def fuzz(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Run the cases in forked children; counts, and what failed."""
    disarm()
    summary: dict[str, Any] = {
        "command lines": 0,
        ANSWERED: 0,
        ACCEPTED: 0,
        TRACEBACK: 0,
        HANG: 0,
        "nonsense accepted": 0,
    }
    found: list[dict[str, Any]] = []
    cwd = folder / "one" / "two"
    cwd.mkdir(parents=True)
    prepared(cwd)
    for tool, words in cases(seed, count):
        came = outcome(lambda tool=tool, words=words: MAINS[tool](words), cwd)  # type: ignore[misc]
        summary["command lines"] += 1
        summary[came.kind] += 1
        why = (
            nonsense(came.value, words)
            if came.kind == ACCEPTED and isinstance(came.value, dict)
            else None
        )
        summary["nonsense accepted"] += why is not None
        if came.kind in (TRACEBACK, HANG) or why:
            found.append(
                {
                    "tool": tool,
                    "words": [word[:200] for word in words],
                    "what": why or came.err[-1500:] or came.kind,
                }
            )
    if outside := sorted(
        str(path)
        for path in [*folder.glob("*"), *folder.glob("one/*")]
        if path.name not in ("one", "two")
    ):
        found.append({"what": f"written outside: {outside}"})
    return summary | {"found": found}


def processes(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Some of the cases as a user would start them, none of which is accepted: tools themselves
    must answer in one line."""
    disarm()
    summary = {"processes": 0, ANSWERED: 0, "otherwise": []}
    cwd = folder / "three" / "four"
    cwd.mkdir(parents=True)
    prepared(cwd)
    for tool, words in cases(seed, 100 * count):
        if summary["processes"] == count:
            break
        if outcome(lambda tool=tool, words=words: MAINS[tool](words), cwd).kind != ANSWERED or any(
            len(w) > 80_000 for w in words
        ):  # type: ignore[misc]
            continue
        line = [sys.executable, os.fsencode(TOOLS / f"{tool}.py"), *map(os.fsencode, words)]
        done = subprocess.run(line, cwd=cwd, capture_output=True, timeout=300)
        summary["processes"] += 1
        if (
            done.returncode > 0
            and done.stderr.count(b"\n") == 1
            and done.stderr.startswith(b"error: ")
        ):
            summary[ANSWERED] += 1
        else:
            summary["otherwise"].append(
                [tool, words, done.returncode, done.stderr.decode(errors="replace")[-500:]]
            )
    return summary


def main() -> None:
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    seed, count = int(words.get("seed", 0)), int(words.get("count", 3000))
    with tempfile.TemporaryDirectory() as folder:
        summary = {"seed": seed} | fuzz(seed, count, Path(folder))
        if wanted := int(words.get("processes", 0)):
            summary["as processes"] = processes(seed + 1, wanted, Path(folder))
    print(json.dumps(summary, indent=2, default=str))


if __name__ == "__main__":
    main()
