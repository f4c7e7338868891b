"""The command lines of robustness/fuzz.py: valid ones of every tool, with mistakes in them; and
what of an accepted one nobody can mean."""

import random
import re
import string
from collections.abc import Iterator
from typing import Any

from ssl_vit.config.schema import options

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
        [
            "recipe=study/masking_rate",
            "launcher=slurm",
            "slurm.memory=64G",
            "slurm.options={nice: 10, exclusive: true}",
            "dry=true",
        ],
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
        "slurm.options",
        "dry",
        "name",
        "out",
    ],
    "plan": [
        "device",
        "processes",
        "nodes",
        "network",
        "price",
        "zero",
        "efficiency",
        "epochs",
        "images",
    ],
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


SPLITS = ("data.train", "data.test", "data.validation")
NAMED = ("out", "data.train", "data.test", "target", "objective")  # never blank
NUMERIC = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|nan|[-+]?inf")
MOST = {  # above these nobody can mean it
    "optim.batch": 2**22,
    "data.size": 2**14,
    "optim.lr": 1e4,
    "optim.weight_decay": 1e4,
    "compute.workers": 4096,
    "compute.threads": 2**20,
    "probe.batch": 2**24,
    "probe.neighbors": 2**24,
    "data.classes": 2**24,
    "optim.steps": 2**40,
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
        keys = OTHER.get(tool) or [*options(), "data", "model", "recipe"]
        if tool in ("study", "plan") and draw.random() < 0.6:
            keys = [*options()]
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
        for element in value if isinstance(value, list) else [value]:
            if reason := _strange(key, element):
                return f"{key}={str(value)[:200]}: {reason}"
    for key, limit in MOST.items():
        if recipe[key] is not None and recipe[key] > limit:
            return f"{key}={recipe[key]}: above {limit}"
    if ".." in str(recipe["name"]).split("/") or str(recipe["name"]).startswith("/"):
        return f"name={recipe['name']}: leads out of out="
    if recipe["data.eval_crop"] < 0.1:
        pixels = recipe["data.size"] / recipe["data.eval_crop"]
        return f"data.eval_crop={recipe['data.eval_crop']}: would resize to {pixels:g} px"
    for word in words:
        key, _, text = word.partition("=")
        is_bool = key in options() and "bool" in str(options()[key].kind)
        if is_bool and text.lower() not in ("true", "false", "null", "none"):
            return f"{word}: a bool"
    return None


def _strange(key: str, value: Any) -> str | None:
    """What no value of this key can be."""
    if isinstance(value, list | dict):
        return "nested"
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float | int):
        return None if abs(value) < 2**63 + 1 else "not finite, or of more than 64 bits"
    if key != "data.path" and (value != value.strip() or not value.isprintable()):
        return "blanks, or what cannot be printed"
    if any(len(part.encode(errors="replace")) > 255 for part in value.split("/")):
        return "longer than a file's name can be"
    if key in NAMED and not value.strip():
        return "blank"
    if key in SPLITS and NUMERIC.fullmatch(value.lower()):
        return "a split with a number for a name"
    return None
