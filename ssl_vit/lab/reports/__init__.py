"""Pages of studies, from what lies in their folders: `load` reads and checks the finished runs,
`statistics` computes, `sections` lists what is shown."""

from .statistics import Numbers, plain
from .study_page import Report, export, render, write

__all__ = ["Numbers", "Report", "export", "plain", "render", "write"]
