"""Reports of studies: their tables and pages."""

from html.parser import HTMLParser


def table(text, first):
    """The rows of the Markdown table whose head begins with `first`, as lists of cells."""
    lines = text.splitlines()
    start = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("|") and line[1:].split("|")[0].strip() == first
    )
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return [found[0], *found[2:]]


class Page(HTMLParser):
    """What a page opens and closes, asks for from elsewhere, and says in cells."""

    VOID = ("meta", "img", "source", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.linked, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in self.VOID else [tag]
        self.linked += [
            value
            for key, value in attrs
            if key in ("src", "srcset", "href") and not value.startswith("#")
        ]
        self.cells += [""] if tag in ("td", "th") else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
