"""Somebody's text in Markdown, where it means nothing but itself. No torch here.

Names of arms, data sets, runs and studies come from folders and files that others made: none of them becomes a tag, a link,
an emphasis or a heading.
"""

import re
from typing import Any

# A backslash means nothing before a letter or a space, an underscore nothing inside a word.
INLINE = re.compile(r"(\\(?=[^\w\s]|$)|[`*$~\[\]]|(?<!\w)_|_(?!\w))")
OPENING = re.compile(r"^([#>]|[-+](?=\s|$)|-(?=--)|=+$|\d+(?=[.)](\s|$)))")  # what makes a heading, a list or a line of a text
ENTITIES = {"&": re.compile(r"&(?=#|\w)"), "<": re.compile(r"<(?=[A-Za-z/!?])")}


def visible(text: Any) -> str:
    """Without characters that control, or turn round, what stands beside them."""
    return "".join(one if one.isprintable() or one.isspace() else "\ufffd" for one in str(text))


def line(text: Any) -> str:
    """The same in one line."""
    return " ".join(visible(text).split())


def plain(text: Any) -> str:
    """As a part of a line, or of a table's cell."""
    found = INLINE.sub(r"\\\1", line(text))
    found = ENTITIES["&"].sub("&amp;", found)
    return ENTITIES["<"].sub("&lt;", found).replace("|", "&#124;")


def opening(text: Any) -> str:
    """As the beginning of a paragraph, a list's item or a heading."""
    found = plain(text)
    if number := re.match(r"\d+(?=[.)](\s|$))", found):
        return f"{number[0]}\\{found[number.end() :]}"
    return f"\\{found}" if OPENING.match(found) else found


def code(text: Any) -> str:
    """In letters of one width."""
    found = line(text)
    return f"<code>{plain(found)}</code>" if re.search(r"[`|\\]", found) else f"`{found}`"


def fenced(lines: list[str], language: str) -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for text in lines for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
