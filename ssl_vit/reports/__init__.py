"""Pages of runs, of studies and of folders of runs, from what lies in them. A study: `load` reads
and checks its finished runs, `numbers` computes, `sections` lists what is shown. A run:
`run_record` reads it, `run_sections` lists what is shown. `pages` writes Markdown and HTML."""

from .numbers import Numbers, plain
from .study_page import Report, write

__all__ = ["Numbers", "Report", "plain", "write"]
