"""A tool's options: a model, and what comes of it."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import ConfigDict

from helpers.hub_runs import refused
from ssl_vit.__main__ import TOOLS
from ssl_vit.recipe import schema
from ssl_vit.recipe.given import Arguments
from ssl_vit.recipe.help import tool_help
from ssl_vit.recipe.keys import FLAG, WORD, key
from ssl_vit.recipe.tool import RecipeKeys, ToolOptions, parse
from ssl_vit.recipe.tools import EmbedOptions


class CutOptions(ToolOptions):
    """Cut
    paper.

    Examples:
        python tools/cut.py FOLDER size=3

    Attributes:
        size: Of a piece: what is
            not twice.
        twice: Again.
    """

    positional = "folder"
    uses = (RecipeKeys(("data", "data.*", "seed"), "Of the paper."),)
    folder: Path = key(..., "The paper's.", form=WORD, metavar="FOLDER")
    size: int = key(2, ge=1, le=9)
    angle: float | None = key(None, "Degrees.", gt=0, lt=90, metavar="NUMBER")
    form: Literal["square", "round"] = key("square", "Of a piece.")
    marks: list[Literal["a", "b"]] | None = key(None, "On it.", metavar="NAME,...")
    twice: bool = key(False)
    quiet: bool = key(False, "Say nothing.", form=FLAG)


def cut(*arguments: str) -> CutOptions:
    return parse(CutOptions, Arguments([*arguments]))


def test_texts_become_values() -> None:
    assert cut("a/b") == CutOptions(folder=Path("a/b"))
    made = cut(
        *("size=3", "angle=45", "form=round", "marks=b,a", "twice=true", "--quiet"),
        *("folder=x", "data=cifar10", "data.path=here", "seed=1"),
    )
    assert made.model_dump() == {
        "folder": Path("x"),
        "size": 3,
        "angle": 45.0,
        "form": "round",
        "marks": ["b", "a"],
        "twice": True,
        "quiet": True,
    }
    assert made.given.values == {"data": "cifar10", "data.path": "here", "seed": 1}
    assert cut("x", "marks=[a,b]").marks == ["a", "b"]


def test_a_path_of_a_list_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    def images(text: str) -> list[str] | None:
        return parse(EmbedOptions, Arguments(["init=x", f"query={text}"])).query

    (tmp_path / "a,b").touch()
    assert images(f"{tmp_path}/a,b") == [f"{tmp_path}/a,b"]
    assert images(f"{tmp_path}/a,c") == [f"{tmp_path}/a", "c"]
    assert images(f"['{tmp_path}/a,b', 010]") == [f"{tmp_path}/a,b", "010"]
    for text in ("[", "[]", "a,", "[{a: b}]"):
        assert "expected a value, or several" in refused(images, text)


def test_a_path_with_an_equals_sign_is_a_word(tmp_path: Path, monkeypatch) -> None:
    assert cut("runs/mpp-lr=1").folder == Path("runs/mpp-lr=1")
    monkeypatch.chdir(tmp_path)
    assert "lr=1: unknown" in refused(cut, "lr=1")
    (tmp_path / "lr=1").mkdir()
    assert cut("lr=1").folder == Path("lr=1")


MISTAKES = """
 -> expected a single FOLDER, as in python tools/cut.py FOLDER size=3
a b -> a b: expected a single FOLDER, as in
a folder=b -> folder is given twice: b and a
a size=3 size=4 -> size is given twice: 3 and 4
a size=0 -> size=0: expected a whole number at least 1 and at most 9
a size=x -> size=x: expected a whole number at least 1 and at most 9
a angle=nan -> angle=nan: expected a number above 0 and below 90
a twice=yes -> twice=yes: expected true or false
a form=rund -> form=rund: did you mean round?
a marks=a,c -> choices: a, b
a marks=a, -> marks=a,:
a sise=1 -> sise=1: unknown option, did you mean size?
a quiet=true -> quiet=true: unknown option, did you mean --quiet?
a --size=1 -> --size=1: unknown option, did you mean size?
a --quit -> --quit: unknown option, did you mean --quiet?
a optim.lr=1 -> choices: folder, size
a data.pth=1 -> unknown key data.pth; did you mean data.path?
"""


@pytest.mark.parametrize("line", MISTAKES.split("\n")[1:-1])
def test_a_mistake_is_one_line(line: str) -> None:
    arguments, _, says = line.partition(" -> ")
    assert says in refused(cut, *arguments.split())


def test_keys_can_be_left_to_others() -> None:
    pairs = [("probe", True), ("seeds", 2)]
    given = Arguments(["price=2", "images=a", "sweep", "optim.lr=1,2", "--probe"], pairs)
    own, rest = given.split(["price", "probe"])
    assert own == Arguments(["price=2", "--probe"], [("probe", True)])
    assert rest == Arguments(["images=a", "sweep", "optim.lr=1,2"], [("seeds", 2)])


def test_help_shows_how_each_option_is_typed() -> None:
    shown = tool_help(CutOptions)
    assert shown.startswith("Cut paper.\n")
    assert "      Of a piece: what is not twice.\n" in shown  # as its docstring says
    headings = [line for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert headings[1:] == [
        "  FOLDER",
        "  data=NAME, data.KEY=VALUE, seed=",
        "  size=2   (a whole number at least 1 and at most 9)",
        "  angle=NUMBER   (a number above 0 and below 90)",
        "  form=square   (square, round)",
        "  marks=NAME,...   (a list in brackets: some of a, b)",
        "  twice=false   (true or false)",
        "  --quiet",
    ]


@pytest.mark.parametrize("tool", ["finetune", "evaluate", "figures", "embed", "export"])
def test_tools_that_load_an_encoder_take_it_with_and_without_init(tool: str) -> None:
    for word in ("runs/mpp", "init=runs/mpp"):
        found = parse(
            TOOLS[tool], Arguments([word, *({"export": ["format=onnx", "out=x"]}.get(tool, []))])
        )
        assert getattr(found, "init", found.unread.texts.get("init")) == "runs/mpp"


@pytest.mark.parametrize("name", TOOLS)
def test_every_option_is_sound(name: str) -> None:
    """A meaning, a default within bounds, keys of recipes that there are; a key that may be left
    out has a word for its value."""
    tool = TOOLS[name]
    changeable = type("Changeable", (tool,), {"model_config": ConfigDict(frozen=False)})
    for name_, one in tool.options().items():
        assert one.help.endswith("."), name_
        if not one.required:
            given = changeable.model_construct()
            changeable.__pydantic_validator__.validate_assignment(given, one.field, one.default)
        assert one.default is not None or one.metavar, name_
    assert tool.positional in ("", "init", *tool.options())
    known = {*schema.all_keys(), "recipe", "data", "model", "PLACE"}
    groups = {f"{key.partition('.')[0]}.*" for key in known}
    assert {key for keys in tool.uses for key in keys.names} <= known | groups
