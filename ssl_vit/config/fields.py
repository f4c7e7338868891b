"""The one description of a config key: its help, bounds, choices and roles, as metadata of a
dataclass field. No torch here."""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 255  # bytes of a file's name, on every common file system
LONGEST_PATH = 4095
LONGEST_LIST = 100  # values of a list
# of a model: neither a path nor a place that timm would fetch from
PLAIN_NAME = re.compile(rf"[\w.-]{{1,{LONGEST_NAME}}}", re.ASCII)
# What tools write beside runs, in a folder of runs or of a study
BESIDE_RUNS = frozenset(
    (
        *("index.html", "report.html", "report.md", "results.csv", "tables.tex", "differences.csv"),
        *("study.json", "looks.json", "worth.json", "figures", "logs", "slurm", "lock"),
    )
)
NOT_BESIDE = "and no name that tools write beside runs, such as index.html or report.html"
# How an option is typed: key=VALUE, VALUE alone (key=VALUE is accepted too), --key, --key=VALUE
KEY, WORD, FLAG = "key", "word", "flag"
REQUIRED: Any = object()  # in place of a default
Values = dict[str, Any]  # {dotted key: value} of a recipe


@dataclass(frozen=True)
class Option:
    """A config key.

    Bounds hold for a number, and for each number of a list; null is never out of bounds. A maximum
    lies far above what anybody trains with: what exceeds it is a slip that would fill the memory.
    """

    key: str  # dotted
    kind: Any  # its type
    default: Any
    help: str
    choices: Collection[str] | None = None  # of the value, or of each value of a list
    above: float | None = None  # lower bound, itself not allowed
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None  # upper bound, itself not allowed
    length: int | None = None  # of a list; default: 1 to LONGEST_LIST values
    check: Callable[[Any], bool] | None = None  # for what is no range
    expected: str = ""  # the allowed values in words; default: from the bounds
    identity: bool = True  # changes what is computed: runs that differ in it are different runs
    in_result: bool = False  # not computed, but decides what the result says
    private: bool = False  # of one machine or one person: not published, not taken from others
    training: bool = False  # objective=probe does not use it
    place: bool = False  # says where the images are, and with what preset
    splits: Collection[str] = ()  # whose images and labels it chooses
    reading: bool = False  # how they are read, on which their fingerprint may depend
    subset: bool = False  # which part of the training images a run takes
    preprocessing: bool = False  # how images are cropped and normalised, whichever they are
    brought: str = ""  # what first weights bring: "always", or "evaluation": where it is left out
    per_process: bool = False  # may differ between the processes of a run
    pace: bool = True  # changes the time of a step
    requires: tuple[str, Any] | None = None  # (key, value) without which it has no effect
    metavar: str = ""  # of a tool's option: stands in --help for a value without a default
    form: str = KEY  # how it is typed; a recipe's keys have this one form

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def is_list(self) -> bool:
        return any(
            typing.get_origin(kind) is list for kind in (self.kind, *typing.get_args(self.kind))
        )

    @property
    def is_mapping(self) -> bool:
        """Whether it is {text: text}, which a tool's option may be."""
        return any(
            typing.get_origin(kind) is dict for kind in (self.kind, *typing.get_args(self.kind))
        )

    @property
    def is_optional(self) -> bool:
        return type(None) in typing.get_args(self.kind)

    def allows(self, value: Any) -> bool:
        """Whether a value of the key's type is within bounds."""
        if value is None:
            return True
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not self._has_length(value):
            return False
        if self.choices is not None and not all(one in self.choices for one in values):
            return False
        if not all(self._in_range(one) for one in values if isinstance(one, int | float)):
            return False
        return self.check is None or self.check(value)

    def _has_length(self, values: list[Any]) -> bool:
        if self.length is not None:
            return len(values) == self.length
        return 0 < len(values) <= LONGEST_LIST

    def _in_range(self, value: float) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            (self.above is None or value > self.above)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.expected:
            return self.expected
        if self.choices is not None and not self.is_list:
            return ", ".join(self.choices)
        bounds = (
            ("above", self.above),
            ("at least", self.minimum),
            ("at most", self.maximum),
            ("below", self.below),
        )
        limits = [f"{word} {_number(bound)}" for word, bound in bounds if bound is not None]
        text = " and ".join(limits)
        if not self.is_list:
            return f"a number {text}".strip() if self.has_bounds else ""
        if self.choices is not None:
            return f"some of {', '.join(self.choices)}"
        return f"{self.length or f'1 to {LONGEST_LIST}'} numbers {text}".strip()

    @property
    def has_bounds(self) -> bool:
        bounds = (self.above, self.minimum, self.maximum, self.below)
        return any(bound is not None for bound in bounds)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "None": "null",
    "Path": "a path",
}


def type_name(option: Option) -> str:
    """The type of a key in words."""
    if option.is_list and option.choices is not None:
        null = " or null" if option.is_optional else ""
        return f"a list in brackets: some of {', '.join(option.choices)}{null}"
    if option.is_list:
        return "a list of numbers or null" if option.is_optional else "a list of numbers"
    text = str(getattr(option.kind, "__name__", option.kind))
    for short, long in TYPE_NAMES.items():
        text = re.sub(rf"\b{short}\b", long, text)
    return text.replace(" | ", " or ")


def option(default: Any, help: str | Callable[[], str], **facts: Any) -> Any:
    """A dataclass field for a key, keyword-only without a default; `facts` are fields of Option. A
    help that depends on what is declared is called when options are listed."""
    metadata = {"option": {"help": help, **facts}}
    if default is REQUIRED:
        return dataclasses.field(kw_only=True, metadata=metadata)
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: Callable[[], Any], help: str, **facts: Any) -> Any:
    """A dataclass field for a group of keys; `facts` hold for each key that does not say
    otherwise."""
    return dataclasses.field(default_factory=kind, metadata={"group": help, "option": facts})


def options_of(root: type, prefix: str = "", only: str = "") -> dict[str, Option]:
    """Every dotted key of a dataclass and its groups, in the order they are declared in.

    Args:
        root: the dataclass.
        prefix: what the keys begin with.
        only: of this field alone.
    """
    found: dict[str, Option] = {}
    for field in dataclasses.fields(root):
        if only not in ("", field.name) or not field.metadata:
            continue
        if "group" not in field.metadata:
            found[prefix + field.name] = _described(field, prefix + field.name, {})
            continue
        for part in dataclasses.fields(typing.cast(type, field.type)):
            key = f"{field.name}.{part.name}"
            found[key] = _described(part, key, field.metadata["option"])
    return found


def _described(field: dataclasses.Field[Any], key: str, inherited: dict[str, Any]) -> Option:
    default = REQUIRED if field.default is dataclasses.MISSING else field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    facts = inherited | field.metadata["option"]
    if callable(facts["help"]):
        facts["help"] = facts["help"]()
    return Option(key=key, kind=field.type, default=default, **facts)


def is_path(text: str) -> bool:
    """Whether a file or folder can have that path: not blank, no name in it too long."""
    whole = text.encode(errors="surrogatepass")
    names_fit = all(len(name) <= LONGEST_NAME for name in whole.split(b"/"))
    return names_fit and len(whole) <= LONGEST_PATH and bool(text.strip()) and "\0" not in text


def is_new_path(text: str) -> bool:
    """Whether a folder of that path may be made: no name in it has a blank at its ends."""
    return is_path(text) and all(name == name.strip() for name in text.split("/"))


def is_name(text: str) -> bool:
    """Whether a text can be a path that stays inside the folder it is joined to. Control characters
    and marks that turn the direction of the text round would show another name than there is."""
    return is_new_path(text) and text.isprintable() and {"", ".", ".."}.isdisjoint(text.split("/"))


def is_folder_name(text: str) -> bool:
    """Whether a text can be the name of a run's folder, or of another one beside runs."""
    return is_name(text) and BESIDE_RUNS.isdisjoint(text.split("/"))


def is_split(text: str) -> bool:
    """Whether a text can be a split's name: with a letter, no number, and no longer than the name
    of a file or folder of it."""
    try:
        float(text)
    except ValueError:
        return any(map(str.isalpha, text)) and (
            len(text.encode(errors="surrogatepass")) <= LONGEST_NAME
        )
    return False


def is_held_out(value: str | float) -> bool:
    """Whether a value can be data.validation's: a split's name, or a share from 0 to below 1."""
    if isinstance(value, str):
        return is_split(value)
    return 0 <= value < 1


def is_tested(value: str | float) -> bool:
    """Whether a value can be data.test's: a split's name, or a share between 0 and 1."""
    return is_held_out(value) and value != 0
