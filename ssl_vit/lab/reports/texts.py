"""The English of a report: a template of templates/ with a study's numbers -> blocks of a page. No
torch here.

In a template an empty line ends a paragraph, `- ` begins an item of a list, `! ` a warning, and
`{{ table }}` places a block. Lines break anywhere: the space that a break leaves before `,;:.)` or
after `(` is taken out. None of this touches the values between the words, whatever they look like.
"""

import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...formatting import count_of_images, format_value, visible_text
from ...pages.blocks import Block, Listing, Table, Text
from ...stats import RESAMPLES
from . import formats
from .axes import CURVE_OF, arm_label
from .results import StudyResults, setting_text
from .statistics import Numbers, Pair

TEMPLATES = Path(__file__).with_name("templates")
# Characters that no value has, as `visible_text` replaces them: before a value, for a space in one,
# before a block
VALUE, SPACE, BLOCK = "\0\1\2"


Values = dict[str, Any]  # what a template knows by name: values, blocks, lists of blocks


def blocks(name: str, study: StudyResults, numbers: Numbers, values: Values) -> list[Block]:
    """The blocks of a template, which knows the study, its numbers and these values."""
    placed = {str(id(one)): one for value in values.values() for one in _blocks_of(value)}
    found: list[Block] = []
    for paragraph in re.split(r"\n\s*\n", _rendered(name, study, numbers, values)):
        text = paragraph.strip()
        if text.startswith(BLOCK):
            found += [placed[one] for one in text.removeprefix(BLOCK).split(BLOCK)]
        elif text.startswith("- "):
            found.append(Listing([_plain(item) for item in re.split(r"^- ", text, flags=re.M)[1:]]))
        elif text:
            found.append(Text(_plain(text.removeprefix("! ")), warning=text.startswith("! ")))
    return found


def sentences(name: str, study: StudyResults, numbers: Numbers, values: Values) -> str:
    """A template of one paragraph, as text."""
    return _plain(_rendered(name, study, numbers, values))


def captioned(
    table: Table, name: str, study: StudyResults, numbers: Numbers, label: str = "", **values: Any
) -> Table:
    """The table with its caption for a paper, that of templates/table_captions.j2, which knows the
    head and the values too; `label` names the table where several have one caption's `name`."""
    known = {"table": name, "head": table.head, **values}
    caption = sentences("table_captions", study, numbers, known)
    return table._replace(name=label or name, caption=caption)


def minus(pair: Pair, numbers: Numbers) -> str:
    """The label of a difference: positive where the first arm is better."""
    first, second = (arm_label(arm, numbers.settings) for arm in (pair.arm, pair.other))
    return f"{first} minus {second}"


def _rendered(name: str, study: StudyResults, numbers: Numbers, values: Values) -> str:
    return (
        _environment()
        .get_template(f"{name}.j2")
        .render(
            study=study,
            numbers=numbers,
            arm=lambda arm: arm_label(arm, numbers.settings),
            minus=lambda pair: minus(pair, numbers),
            **values,
        )
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # makes macros Markup; blocks escape for Markdown and HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_written,
    )
    environment.filters |= {
        "number": formats.number,
        "amount": formats.amount,
        "points": formats.points,
        "span": formats.span,
        "deviation": formats.deviation,
        "shown_interval": formats.shown_interval,
        "difference_of": formats.difference_of,
        "unit": formats.unit,
        "place": formats.format_place,
        "two_digits": formats.two_digits,
        "three_figures": formats.three_figures,
        "whole": formats.whole,
        "images": count_of_images,
        "value": format_value,
        "setting": setting_text,
    }
    environment.globals |= {
        "BOTH": formats.BOTH,
        "CURVE_OF": CURVE_OF,
        "RESAMPLES": RESAMPLES,
        "factor": formats.factor,
        "short_place": formats.short_place,
    }
    return environment


def _written(value: Any) -> Markup:
    """What an expression of a template leaves in the text."""
    if isinstance(value, Markup):  # of a macro, which is part of a paragraph
        return Markup(" ".join(value.split()))
    if isinstance(value, Block | list):
        return Markup("".join(f"{BLOCK}{id(one)}" for one in _blocks_of(value)))
    return Markup(VALUE + re.sub(r"\s", SPACE, visible_text(value)))


def _blocks_of(value: Any) -> list[Block]:
    if isinstance(value, Block):
        return [value]
    return [one for one in value if isinstance(one, Block)] if isinstance(value, list) else []


def _plain(text: str) -> str:
    """A part of what was rendered as it is read."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" (?=[,;:.)])|(?<=\() ", "", text)
    return text.replace(VALUE, "").replace(SPACE, " ")
