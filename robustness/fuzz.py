"""Wrong command lines for every tool, and altered files of a run: each must be answered in one line,
or accepted.

    python robustness/fuzz.py count=1000 seed=0 tools=pretrain,plan

A command line is an example of its tool with up to three mistakes, made of the tool's own options
and, where it takes them, those of recipes: values of other types, nested lists, NaN, huge numbers,
blanks, other alphabets, bytes that are no UTF-8, typos. An altered file is one of a finished run or
of one that goes on: torn, emptied, a bit flipped, bytes that are no UTF-8, another value somewhere in
it; then a tool reads the run. Each runs in a forked child. Right are exit status 0, and 2 with one
line on standard error; a traceback is not, nor what takes too long. One JSON object comes out.
"""

import copy
import json
import os
import random
import shlex
import shutil
import signal
import string
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import yaml
from PIL import Image

from ssl_vit.__main__ import TOOLS, main
from ssl_vit.jobs import cli
from ssl_vit.recipe.schema import all_keys
from ssl_vit.runs.folder import Run

SECONDS = 120  # a tool that takes longer hangs; more where others want the same cores
NUMBERS = ["0", "2", "0.5", "-1", "017", "1e3", "1.5", "1e400", "nan", "-inf", "1_0", "٣", "12:30"]
NUMBERS += ["1" * 5000]
TEXTS = ["", " ", "\t", "null", "true", "yes", "''", "a b", "../x", "/x", "a\nb", "日本", "é" * 130]
TEXTS += ["\udcff", "\u202egnp", "\x1b[31m", "${oc.env:HOME}", "???", "&a", "a: b", "x" * 90_000]
LISTS = ["[]", "[1,[2],3]", "[null]", "[1,2", "[true]", "[nan]", "{a: 1}", "[" * 5000, "{a:" * 300]
WORDS = ["=", "=x", "x", "--x", "optim", "optim=1", "optim.=1", "data.name=x", "\udcff=1", "[=]"]
STRANGE = [None, True, -1, 1.5, float("inf"), float("nan"), 10**400, "", "../x", "\ud800"]
STRANGE += ["/dev/zero", "é" * 300, [], {}, [[]], {"a": {}}, {"": None}, ["x"] * 3]
WEIGHTS = "runs/run/export/model.safetensors"
ACCEPTED, ANSWERED = "accepted", "answered in one line"
PLACES = {"runs/mpp": "runs/run", "=IMAGES": "=own", "=PATH": "=own"}  # of examples
SMALL = "model.patch=4 model.width=32 model.depth=1 model.heads=2 model.mlp=64 data.size=16"
RUN = ["recipe=mpp", *SMALL.split(), "optim.steps=4", "optim.warmup=1", "optim.batch=8", "name=run"]
RUN += ["checkpoint.every=2", "eval.images=8", "compute.precision=float32", "compute.threads=1"]
READERS = [
    ["pretrain", *RUN],
    ["plan", "recipe=runs/run/recipe.yaml"],
    ["report", "runs/run"],
    ["runs", "runs"],
    ["evaluate", "recipe=evaluate", "init=runs/run", "probe.measures=[knn]", "compute.threads=1"],
    ["export", "init=runs/run", "format=transformers", "out=there"],
]


def command_line(tool: str, draw: random.Random) -> list[str]:
    """An example of the tool with mistakes in it."""
    kind = TOOLS[tool]
    example = draw.choice(kind.examples()).partition(f"tools/{tool}.py")[2]
    for place, here in PLACES.items():
        example = example.replace(place, here)
    words = [word for word in shlex.split(example) if not word.startswith("--")]
    used = [name for keys in kind.uses for name in keys.names]
    every = [key for key in all_keys() if kind.recipes or any(fnmatchcase(key, n) for n in used)]
    keys = [*kind.options(), *every, *used]
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(len(words) + 1)
        key, value = draw.choice(keys), draw.choice(draw.choice([NUMBERS, TEXTS, LISTS]))
        if draw.random() < 0.5:  # an option more, or another value of one that is there
            words = [word for word in words if not word.startswith(f"{key}=")] + [f"{key}={value}"]
        elif at == len(words):
            words.append(draw.choice(WORDS))
        elif draw.random() < 0.3:
            words[at] = f"{words[at].partition('=')[0]}={value}"
        else:  # a typo
            place = draw.randrange(len(words[at]) + 1)
            put = draw.choice(["", draw.choice(string.printable), words[at]])
            words[at] = words[at][:place] + put + words[at][place + 1 :]
    return [tool, *words]


def alter(path: Path, draw: random.Random) -> None:
    """Write a file of JSON or YAML with one thing in it that is not as it was."""
    data = path.read_bytes()
    at = draw.randrange(len(data) + 1)
    way = draw.randrange(8)
    if way == 0:
        data = data[:at]
    elif way == 1:
        more = draw.choice([b"\xff\xfe", b"\xe9", b"\0", b"[" * 200_000, b'{"a":' * 2000])
        data = data[:at] + more + data[at:]
    elif path.suffix == ".yaml":
        tree = other(yaml.safe_load(data), draw)
        data = yaml.safe_dump(tree).encode(errors="surrogatepass")
    else:
        lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
        line = draw.randrange(len(lines))
        lines[line] = json.dumps(other(json.loads(lines[line]), draw))
        data = "\n".join([*lines, ""]).encode()
    path.write_bytes(data)


def other(tree: Any, draw: random.Random) -> Any:
    """The same with one value gone, renamed or another."""
    tree = copy.deepcopy(tree)
    places = list(inside(tree))
    if not places:
        return draw.choice(STRANGE)
    node, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.3:
        del node[key]
    elif kind < 0.45 and isinstance(node, dict):
        node[draw.choice(["", "x", "../x", "a.b"])] = node.pop(key)
    else:
        node[key] = draw.choice(STRANGE)
    return tree


def inside(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(node, key) of every value in a tree."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from inside(tree[key])


def answer(words: list[str], cwd: Path, works: bool) -> str:
    """ACCEPTED, ANSWERED, or what is wrong with what a tool said; without `works` it does not begin
    to train what it accepts."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            _run(words, cwd, errors.fileno(), works)
        begun = time.monotonic()
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() - begun > SECONDS * max(1, os.getloadavg()[0]):
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hangs"
            time.sleep(0.002)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(ended[1])
    lines = text.strip().splitlines()
    if status == 0 and "Traceback" not in text:
        return ACCEPTED
    one = status == 2 and len(lines) == 1 and lines[0].startswith("error: ")
    return ANSWERED if one else f"status {status}: {text[-1500:]}"


def _run(words: list[str], cwd: Path, errors: int, works: bool) -> None:
    """In the child: the tool, to the end of the process."""
    status = 1
    try:
        os.setsid()  # what it leaves behind ends with it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors, 2)
        os.chdir(cwd)
        if not works:
            cli._train = cli._probe = Run.lock = lambda *_: os._exit(0)
        main(words)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def fuzz(seed: int, count: int, folder: Path, tools: list[str]) -> dict[str, Any]:
    """So many command lines and a tenth as many altered files: how many were what, and what is
    wrong with the others."""
    draw = random.Random(seed)
    for number in range(3):
        image = folder / "whole" / "own" / "train" / "ab"[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (80 * number,) * 3).save(image)
    assert answer(["pretrain", *RUN], folder / "whole", works=True) == ACCEPTED
    counts: Counter[str] = Counter()
    found = []
    case = folder / "case"
    weights = (folder / "whole" / WEIGHTS).read_bytes()
    for number in range(count + count // 10):
        shutil.copytree(folder / "whole", case)
        run = case / "runs" / "run"
        altered = ""
        if number < count:
            words = command_line(tools[number % len(tools)], draw)
        else:
            words = draw.choice(READERS)
            if words[0] == "pretrain" and draw.random() < 0.7:  # goes on
                shutil.rmtree(run / "checkpoints" / "step-000000004")
                (run / "result.json").unlink()
            names = (".json", ".jsonl", ".yaml")
            path = draw.choice(sorted(one for one in run.rglob("*") if one.suffix in names))
            altered = str(path.relative_to(case))
            alter(path, draw)
        said = answer(words, case, works=number >= count)
        trains = altered and words[0] == "pretrain" and said == ACCEPTED
        if trains and (case / WEIGHTS).read_bytes() != weights:
            said = "accepted, and other weights come out"
        counts[said if said in (ACCEPTED, ANSWERED) else "wrong"] += 1
        if said not in (ACCEPTED, ANSWERED):
            found.append({"words": [w[:200] for w in words], "altered": altered, "said": said})
        shutil.rmtree(case)
    return {"seed": seed, **counts, "found": found}


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    chosen = given.get("tools", ",".join(TOOLS)).split(",")
    with tempfile.TemporaryDirectory() as place:
        numbers = int(given.get("seed", 0)), int(given.get("count", 1000))
        print(json.dumps(fuzz(*numbers, Path(place), chosen), indent=2))
