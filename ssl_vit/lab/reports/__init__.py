"""Pages of studies, from what lies in their folders: `load` reads and checks the finished runs,
`statistics` computes, `sections` lists what is shown."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .statistics import Numbers
    from .study_page import Report, export, render, write

__all__ = ["Numbers", "Report", "export", "render", "write"]


def __getattr__(name: str) -> Any:
    """Names of reports, imported when first used: the list of runs and their index import
    `comparable` alone, without matplotlib (0.3 s)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "statistics" if name == "Numbers" else "study_page"
    return getattr(import_module(f"{__name__}.{module}"), name)
