"""Show output in a Jupyter notebook: text that is redrawn, and pages and images inline.

All output goes to the output of a cell, which every kernel supports. Widgets are not used.
"""

import base64
import html
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEIGHT = 640  # height of a page in a notebook, in pixels; longer pages scroll


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def show(content: str) -> Any:
    """Show HTML in the output of the running cell, and return a handle for `redraw`."""
    from IPython.display import HTML, display

    return display(HTML(content), display_id=True)


def redraw(shown: Any, content: str) -> None:
    """Replace the HTML of a handle from `show`."""
    from IPython.display import HTML

    shown.update(HTML(content))


def progress_html(done: int, total: int, text: str) -> str:
    """Return a progress bar and a line of text as HTML."""
    bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
    return f"<div>{bar} <code>{html.escape(text)}</code></div>"


def lines_html(lines: Iterable[str]) -> str:
    """Return lines as preformatted HTML."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def inline_page(page: str) -> str:
    """Embed an HTML page in another page, in an iframe with separate styles and scripts."""
    style = f"width:100%;height:{HEIGHT}px;border:0"
    return f'<div><iframe srcdoc="{html.escape(page)}" style="{style}"></iframe></div>'


def inline_images(images: Iterable[Path]) -> str:
    """Embed PNG files in an HTML page, each under the name of the file."""
    tags = []
    for image in images:
        data = base64.b64encode(image.read_bytes()).decode()
        name = html.escape(image.stem)
        tag = f'<img alt="{name}" style="max-width:100%" src="data:image/png;base64,{data}">'
        tags.append(f"<figure><figcaption>{name}</figcaption>{tag}</figure>")
    return "".join(tags)
