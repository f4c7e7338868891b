"""Somebody's text in Markdown, where it means nothing but itself. No torch here.

Names of arms, data sets, runs and studies come from folders and files that others made: none of
them becomes a tag, a link, an emphasis or a heading.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A backslash means nothing before a letter or a space, an underscore nothing inside a word.
INLINE = re.compile(r"(\\(?=[^\w\s]|$)|[`*$~\[\]]|(?<!\w)_|_(?!\w))")
# what makes a heading, a list or a line of a text
OPENING = re.compile(r"^([#>]|[-+](?=\s|$)|-(?=--)|=+$|\d+(?=[.)](\s|$)))")
ENTITIES = {"&": re.compile(r"&(?=#|\w)"), "<": re.compile(r"<(?=[A-Za-z/!?])")}


def visible_text(text: Any) -> str:
    """Without characters that control, or turn round, what stands beside them."""
    return "".join(one if one.isprintable() or one.isspace() else "\ufffd" for one in str(text))


def text_line(text: Any) -> str:
    """The same in one line."""
    return " ".join(visible_text(text).split())


def escape_markdown(text: Any) -> str:
    """As a part of a line, or of a table's cell."""
    found = INLINE.sub(r"\\\1", text_line(text))
    found = ENTITIES["&"].sub("&amp;", found)
    return ENTITIES["<"].sub("&lt;", found).replace("|", "&#124;")


def escape_opening(text: Any) -> str:
    """As the beginning of a paragraph, a list's item or a heading."""
    found = escape_markdown(text)
    if number := re.match(r"\d+(?=[.)](\s|$))", found):
        return f"{number[0]}\\{found[number.end() :]}"
    return f"\\{found}" if OPENING.match(found) else found


def inline_code(text: Any) -> str:
    """In letters of one width."""
    found = text_line(text)
    return f"<code>{escape_markdown(found)}</code>" if re.search(r"[`|\\]", found) else f"`{found}`"


def code_block(lines: list[str], language: str) -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for text in lines for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # of a checkout
INSTALLED = (PACKAGE / "recipes").is_dir()  # a wheel holds recipes/ inside the package
# -P: a module in the working directory must not take the place of a library's
PROGRAM = [sys.executable, "-P", "-m", PACKAGE.name]
SHARES = ("accuracy", "accuracy_masked", "accuracy_random", "accuracy_kept", "top1", "top5", "real")
MEASURED = ("loss", *SHARES)
TO_BEAT = {
    "entropy": "loss {:.3f} (entropy of the training colours)",
    "commonest": "accuracy on masked patches {:.1%} (commonest colour)",
    "neighbors": "{:.1%} (neighbours' mean)",
    "variance": "loss {:.3f} (the training mean)",
    "neighbors_error": "{:.3f} (neighbours' mean)",
    "chance_loss": "loss {:.3f} (guessing)",
    "chance": "accuracy {:.1%} (guessing)",
}


def typed(*words: Any) -> str:
    """A command as a shell takes it, whatever characters its words hold."""
    return shlex.join(map(str, words))


def tool_command(name: str) -> list[str]:
    """What follows `python` or `accelerate launch` to start a tool: its file in a checkout (relative
    where the working directory is the checkout), else the installed package."""
    if INSTALLED:
        return ["-m", PACKAGE.name, name]
    path = ROOT / "tools" / f"{name}.py"
    return [str(path.relative_to(ROOT) if Path.cwd() == ROOT else path)]


def process_command(tool: str, *options: str) -> list[str]:
    """The command of a tool as a child process, in a checkout and installed alike."""
    return [*PROGRAM, tool, *options]


def process_environment() -> dict[str, str]:
    """The environment for `process_command`: of a checkout, which may not be installed, the package
    is found through PYTHONPATH."""
    if INSTALLED:
        return dict(os.environ)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([before] if before else [])])
    return os.environ | {"PYTHONPATH": path}


def duration(seconds: float) -> str:
    """Seconds for people: 45 s, 4 min 10 s, 3 h 05 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def format_metrics(values: Mapping[str, float]) -> str:
    """The losses and accuracies among `values`; of an accuracy that is split by kind, the parts.
    Joint ones as mpp/loss."""
    split = [name for name in values if f"{name}_masked" in values and name.endswith("accuracy")]
    shown = [name for name in values if name.rpartition("/")[2] in MEASURED and name not in split]
    return ", ".join(_said(name.replace("_", " "), values[name]) for name in shown)


def _said(name: str, value: float) -> str:
    return (
        f"{name} {value:.1%}"
        if name.split("/")[-1].replace(" ", "_") in SHARES
        else f"{name} {value:.3f}"
    )


def format_baselines(values: Mapping[str, float]) -> str:
    """What they must beat, where `values` says so."""
    known = [(*name.rpartition("/"), value) for name, value in values.items()]
    return ", ".join(
        f"{part}{' ' if part else ''}{TO_BEAT[name].format(v)}"
        for part, _, name, v in known
        if name in TO_BEAT
    )


def sharded(facts: Mapping[str, Any]) -> str:
    """How the weights lie on the processes: "ZeRO-2 (DeepSpeed 0.19.8, 2 machines)"."""
    if facts["strategy"] == "none":
        return "not sharded"
    details = [f"DeepSpeed {facts['deepspeed']}"] if "deepspeed" in facts else []
    details += [f"{what} offloaded to {where}" for what, where in facts.get("offload", {}).items()]
    if facts["machines"] > 1:
        details.append(f"{facts['machines']} machines")
    return f"{facts['strategy']} ({', '.join(details)})" if details else facts["strategy"]
