"""The package has nothing that only a test uses, or nobody: vulture finds by name what no file
reads. What something else reads is listed with the reason in robustness/vulture_allowed.py."""

from pathlib import Path

from vulture import Vulture

from helpers.options import ROOT
from ssl_vit.config import declaration

PACKAGE = ROOT / "ssl_vit"
ALLOWED = ROOT / "robustness" / "vulture_allowed.py"


def unused(*paths: Path) -> set[str]:
    """What no file uses, nor a declaration that names it as its network."""
    found = Vulture()
    found.scavenge(paths)
    declared = [*declaration.objectives().values(), *declaration.targets().values()]
    found.scan("\n".join(one.network.rpartition(":")[2] for one in declared))
    return {
        f"{Path(one.filename).name}:{one.first_lineno} {one.typ} {one.name}"
        for one in found.get_unused_code(min_confidence=60)
    }


def test_the_package_uses_all_that_it_defines() -> None:
    assert not unused(PACKAGE, ALLOWED)


def test_every_exception_is_needed() -> None:
    names = {text.rpartition(" ")[2] for text in unused(PACKAGE)}
    lines = ALLOWED.read_text().rpartition('"""')[2].splitlines()
    listed = [line.removeprefix("_.") for line in lines if line and not line.startswith("#")]
    assert len(listed) == len({*listed}) and {*listed} == names


def test_what_only_a_test_uses_is_found(tmp_path: Path) -> None:
    path = tmp_path / "more.py"
    path.write_text(
        "def used_function(): ...\nused_function()\n"
        "def dead_function(): ...\nclass DeadRecord:\n    dead_field: int\n"
    )
    assert unused(PACKAGE, ALLOWED, path) == {
        "more.py:3 function dead_function",
        "more.py:4 class DeadRecord",
        "more.py:5 variable dead_field",
    }
