"""Format text for people: Markdown escaping, commands to paste, durations.

The names of arms, data sets, runs and studies may come from other people's folders and files. The
functions escape names, so that no name becomes a tag, a link, emphasis or a heading. This module
does not import torch.
"""

import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Characters to escape. A backslash has no meaning before a letter or a space, nor an underscore
# inside a word.
INLINE = re.compile(r"(\\(?=[^\w\s]|$)|[`*$~\[\]]|(?<!\w)_|_(?!\w))")
# the start of a heading, a quote, a list or a rule
OPENING = re.compile(r"^([#>]|[-+](?=\s|$)|-(?=--)|=+$|\d+(?=[.)](\s|$)))")
ENTITIES = {"&": re.compile(r"&(?=#|\w)"), "<": re.compile(r"<(?=[A-Za-z/!?])")}

NOT_COUNTED = "not counted"
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def visible_text(text: Any) -> str:
    """Replace unprintable characters, such as control characters and direction marks, by U+FFFD.

    White space is kept.
    """
    characters = str(text)
    if characters.isprintable():
        return characters
    return "".join(
        character if character.isprintable() or character.isspace() else "\ufffd"
        for character in characters
    )


def text_line(text: Any) -> str:
    """Return `visible_text` as one line."""
    return " ".join(visible_text(text).split())


def figure_label(text: Any) -> str:
    """Escape text for a label in a matplotlib figure.

    matplotlib reads text between dollar signs as a formula, so dollar signs are escaped. matplotlib
    hides a label that starts with an underscore, so a blank is put in front.
    """
    escaped = text_line(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def escape_markdown(text: Any) -> str:
    """Escape text for Markdown, inside a line or a table cell."""
    escaped = INLINE.sub(r"\\\1", text_line(text))
    escaped = ENTITIES["&"].sub("&amp;", escaped)
    return ENTITIES["<"].sub("&lt;", escaped).replace("|", "&#124;")


def escape_opening(text: Any) -> str:
    """Escape text for Markdown, at the start of a paragraph, a list item or a heading."""
    escaped = escape_markdown(text)
    # "1. a" would begin a numbered list, so escape the dot or bracket after the number
    number = re.match(r"\d+(?=[.)](\s|$))", escaped)
    if number:
        return f"{number[0]}\\{escaped[number.end() :]}"
    return f"\\{escaped}" if OPENING.match(escaped) else escaped


def inline_code(text: Any) -> str:
    """Return text as inline code in Markdown."""
    line = text_line(text)
    if re.search(r"[`|\\]", line):  # Markdown alters these characters between backticks
        return f"<code>{escape_markdown(line)}</code>"
    return f"`{line}`"


def code_block(lines: list[str], language: str) -> str:
    """Return a Markdown code block. The fence is longer than any run of backticks in the code."""
    backticks = re.findall(r"`+", "\n".join(lines))
    longest = max(map(len, backticks), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a plain-text table with two blanks between columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], ruler: Sequence[str] | None = None
) -> str:
    """Return a Markdown table.

    Args:
        head: Headings of the columns, in Markdown.
        rows: Cells of each row, in Markdown.
        ruler: Alignment of each column, such as `---:`. Default: `---` for all columns.
    """
    lines = [head, ruler or ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # folder of a checkout
INSTALLED = (PACKAGE / "recipes").is_dir()  # in a wheel, recipes/ is inside the package
# -P: do not import modules from the working directory in place of a library's modules
PROGRAM = [sys.executable, "-P", "-m", PACKAGE.name]
# Accuracies on fewer images than this are too uncertain: at 50%, the 95% interval of an accuracy on
# 100 images reaches 9.8 points to each side
FEW_IMAGES = 100
TEST_SHARE = 0.2  # share of the images to test on if there is no test split
NAMED = 4  # number of names that `list_names` writes out
# nouns that `format_count` can put into the singular
COUNTED = "image|file|folder|tar|task|job|step|seed|run|row|thread|worker|warning|checkpoint"
COUNTED += "|process|pass|class|shard"
UNSHARDED = "none"  # strategy of a run with one process
# names of splits for readers, in front of the word "images"
SPLIT_NAMES = {"test": "test", "train": "training", "validation": "held-out"}


def shell_command(*words: Any) -> str:
    """Join words to a command line, quoted for a shell."""
    return shlex.join(map(str, words))


def tool_command(name: str, here: Path | None = None) -> list[str]:
    """Return the arguments of `python` or `accelerate launch` that start a tool.

    These are `-m ssl_vit TOOL` for the installed package, and the path of the tool's file in a
    checkout.

    Args:
        name: Name of the tool.
        here: Folder in which the command is typed. Default: the current folder.
    """
    if INSTALLED:
        return ["-m", PACKAGE.name, name]
    path = ROOT / "tools" / f"{name}.py"
    if (here or Path.cwd()) == ROOT:
        path = path.relative_to(ROOT)
    return [str(path)]


def typed_command(tool: str, *words: Any, folder: str = "") -> str:
    """Return the command line that starts a tool in this Python environment.

    If the shell finds this environment's `ssl-vit`, the command is `ssl-vit TOOL ...`. If the shell
    does not find it, the command begins with the path of `ssl-vit`. If this environment has no
    `ssl-vit`, the command begins with the path of the Python interpreter.

    Args:
        tool: Name of the tool.
        words: Arguments of the tool.
        folder: Folder to which paths in `words` are relative. If it exists, and is not the current
            folder, the command line begins with `cd`.
    """
    here = Path(folder).resolve()
    if here != Path.cwd() and here.is_dir():
        return f"{shell_command('cd', here)} && {_typed_command(tool, words, here)}"
    return _typed_command(tool, words, Path.cwd())


def _typed_command(tool: str, words: Sequence[Any], here: Path) -> str:
    """Return the command line of `typed_command`, to be typed in the folder `here`."""
    program = Path(sys.executable).with_name("ssl-vit")
    if not program.exists():
        return shell_command(sys.executable, *tool_command(tool, here), *words)
    if shutil.which(program.name) == str(program):
        return shell_command(program.name, tool, *words)
    path = program.relative_to(here) if program.is_relative_to(here) else program
    return shell_command(path, tool, *words)


def process_command(tool: str, *options: str) -> list[str]:
    """Return the command that runs a tool as a child process."""
    return [*PROGRAM, tool, *options]


def process_environment() -> dict[str, str]:
    """Return the environment variables for `process_command`.

    In a checkout, PYTHONPATH is extended, because the package may not be installed.
    """
    if INSTALLED:
        return dict(os.environ)
    folders = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def option_text(value: Any) -> str:
    """Return a value as typed on the command line: true, null, [0.5,0.5], {layers: [1,1]}."""
    if isinstance(value, Mapping):
        pairs = (f"{name}: {option_text(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(option_text, value))}]"
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def format_value(value: Any) -> str:
    """Return a value as short text for readers: [0.9, 1] for [0.9, 1.0]."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if not isinstance(value, float):
        return option_text(value)
    short = f"{value:g}"
    # :g prints 6 digits. If these are not enough, print all digits, so that different values do not
    # look the same
    return short if float(short) == value else repr(value)


def pixel_text(channels: int, pixel_range: tuple[int, int]) -> str:
    """Describe the channels and the range of pixel values: "1 channel, 0 to 65,535"."""
    lowest, highest = pixel_range
    count = "1 channel" if channels == 1 else f"{channels} channels"
    return f"{count}, {lowest:,} to {highest:,}"


def crop_text(mode: str, crop: float) -> str:
    """Describe how an evaluation makes an image square, such as "centre crop 0.875".

    Args:
        mode: Value of data.eval_mode.
        crop: Value of data.eval_crop.
    """
    return "squashed to a square" if mode == "squash" else f"centre crop {crop:g}"


def feature_text(pool: str, layer: int | None) -> str:
    """Describe the feature that a probe reads, such as "class token, after block 6".

    Args:
        pool: How tokens are pooled (probe.pool), or another text to put in front.
        layer: Number of the block that is read (probe.layer). None: the final norm is read.
    """
    pooled = {"token": "class token", "avg": "mean of the patches"}.get(pool, pool)
    module = f"block {layer}" if layer else "the final norm"
    return f"{pooled}, after {module}"


def format_share(share: float) -> str:
    """Return a share in percent, with at most three digits."""
    return f"{100 * share:.3g}%"


def format_exaflop(value: float | None, precision: int = 3) -> str:
    """Format a number of operations, such as "0.123 exaFLOP" (10^18 operations).

    Args:
        value: Number of exaFLOP. None if the operations were not counted, for example because
            the objective of a plugin reads pixel values.
        precision: Number of significant digits.
    """
    return f"exaFLOP {NOT_COUNTED}" if value is None else f"{value:.{precision}g} exaFLOP"


def format_duration(seconds: float) -> str:
    """Format seconds for readers: 45 s, 4 min 10 s, 3 h 05 min, inf s, nan s."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def format_bytes(size: float) -> str:
    """Format a number of bytes for readers: 14.2 MiB."""
    for unit in BYTES[:-1]:
        if size < 999.5:  # from 999.5, :.3g would print 1e+03
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} {BYTES[-1]}"


def rounded_count(count: int) -> str:
    """Format a count with three digits: 19.3 thousand, 86.6 million."""
    sizes = {"billion": 1e9, "million": 1e6, "thousand": 1e3}
    for name, size in sizes.items():
        # 999,500 would be printed as 1e+03 thousand, so use millions from 0.9995 million
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {name}"
    return str(count)


def format_count(count: int, things: str) -> str:
    """Format a number with a noun: "2 .txt files", "1 .txt file".

    Args:
        count: Number of things.
        things: Noun in the plural, such as "images without labels". For a count of 1, the last
            noun that COUNTED lists becomes singular: "image without labels".
    """
    if count == 1:
        # COUNTED holds the nouns in the singular. Plurals end in "s" or, after "ss", in "es".
        things = re.sub(rf"(.*\b(?:{COUNTED}))e?s\b", r"\1", things)
    return f"{count:,} {things}"


def list_names(names: Sequence[str]) -> str:
    """List names, such as "a, b, c, d and 3 more". At most NAMED names are written out."""
    listed = ", ".join(names[:NAMED])
    num_unlisted = len(names) - NAMED
    return f"{listed} and {num_unlisted:,} more" if num_unlisted > 0 else listed


def format_image_count(count: int) -> str:
    return format_count(count, "images")


def copies_text(copies: Any) -> str:
    """Describe copies among images: ", 40 distinct, 3 with several labels".

    The text is appended to a number of images. It is empty if all images are distinct.

    Args:
        copies: A `Copies`: the number of distinct images (`distinct`), and how many of these have
            copies with several labels (`relabelled`). None if all images are distinct.
    """
    if copies is None:
        return ""
    if not copies.relabelled:
        return f", {copies.distinct:,} distinct"
    return f", {copies.distinct:,} distinct, {copies.relabelled:,} with several labels"


def format_held_out(measured_on: Mapping[str, int] | None) -> str:
    """Return "50 held-out images", or "held-out images" if their number is not known.

    Args:
        measured_on: `{split: number of images}`, or None for runs that did not record the numbers.
    """
    count = (measured_on or {}).get("validation")
    return f"{count:,} held-out images" if count else "held-out images"


def few_images(
    measured_on: Mapping[str, int],
    chosen: Sequence[str] = (),
    remedy: str = "",
    group: str | None = None,
) -> list[str]:
    """Return warnings about few or grouped images, on which accuracies are uncertain.

    Each split with fewer than FEW_IMAGES images gets a warning. If the images are in groups
    (`data.group`), there is also a warning, because the images of a group may be alike.

    Args:
        measured_on: `{split: number of measured images}`, as in environment.json.
        chosen: What is chosen on images outside of the test split, such as "the checkpoint" or "the
            learning rate of the linear probe".
        remedy: Option that would hold out more images, or an empty text.
        group: data.group of the images, or None.
    """
    warnings = []
    if group is not None:
        warnings.append(
            f"data.group={group}: intervals assume independent images and are too narrow if images "
            "of a group are alike"
        )
    for split, count in measured_on.items():
        if count < FEW_IMAGES:
            sentences = [
                f"{SPLIT_NAMES.get(split, split)} images: {count}",
                f"An accuracy on fewer than {FEW_IMAGES} images is uncertain by 10 points or more",
            ]
            if chosen and split != "test":
                sentences.append(f"The choice of {' and '.join(chosen)} depends on these images")
            if remedy and split == "validation":
                sentences.append(f"To hold out more images, use {remedy}")
            warnings.append(". ".join(sentences))
    return warnings


def sharding_text(facts: Mapping[str, Any]) -> str:
    """Describe how weights are sharded, such as "ZeRO-2 (DeepSpeed 0.19.8, 2 machines)".

    Args:
        facts: Record `sharding` of environment.json, with the keys "strategy" and "machines" and,
            for ZeRO, the version "deepspeed".
    """
    strategy = facts["strategy"]
    if strategy == UNSHARDED:
        return "not sharded"
    details = []
    if "deepspeed" in facts:
        details.append(f"DeepSpeed {facts['deepspeed']}")
    if facts["machines"] > 1:
        details.append(f"{facts['machines']} machines")
    return f"{strategy} ({', '.join(details)})" if details else strategy
