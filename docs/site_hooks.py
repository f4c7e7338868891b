"""What `mkdocs build` does besides: links to files of the repository outside docs/ become their
names, as a site without the repository has no place for them."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The page with such links as text; a link to a file that is not there is left for mkdocs to
    complain of."""

    def named(found: re.Match[str]) -> str:
        if not (DOCS / found["path"]).exists():
            return found[0]
        text = found["text"].strip("`")
        path = found["path"].removeprefix("../").rstrip("/")
        return f"`{path}`" if text.rstrip("/") in path else f"{found['text']} (`{path}`)"

    return OUTSIDE.sub(named, markdown)
