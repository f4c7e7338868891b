"""What a Jupyter notebook shows: text that is redrawn in its place, and pages and images inline. Of
IPython, which is there in every kernel, only what a cell's output needs; widgets are not."""

import base64
import html
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEIGHT = 640  # pixels of a page inside a notebook, which scrolls


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def show(content: str) -> Any:
    """Show HTML in the running cell's output; what `redraw` takes."""
    from IPython.display import HTML, display

    return display(HTML(content), display_id=True)


def redraw(shown: Any, content: str) -> None:
    """Show HTML in place of what `show` showed."""
    from IPython.display import HTML

    shown.update(HTML(content))


def progress_html(done: int, total: int, text: str) -> str:
    """A bar and a line of text."""
    bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
    return f"<div>{bar} <code>{html.escape(text)}</code></div>"


def lines_html(lines: Iterable[str]) -> str:
    """Lines as they are."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def inline_page(page: str) -> str:
    """A whole page as an element of another: its styles and scripts stay its own."""
    style = f"width:100%;height:{HEIGHT}px;border:0"
    return f'<div><iframe srcdoc="{html.escape(page)}" style="{style}"></iframe></div>'


def inline_images(images: Iterable[Path]) -> str:
    """PNG files as elements of a page, each under its name."""
    found = []
    for image in images:
        data = base64.b64encode(image.read_bytes()).decode()
        name = html.escape(image.stem)
        tag = f'<img alt="{name}" style="max-width:100%" src="data:image/png;base64,{data}">'
        found.append(f"<figure><figcaption>{name}</figcaption>{tag}</figure>")
    return "".join(found)
