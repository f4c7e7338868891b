"""Pages: their tables, and what a browser reads."""

import json
from html.parser import HTMLParser

VOID = ("meta", "img", "source", "input", "br", "wbr")


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
    """A page as a browser reads it: tags, links, tables, data and the rest of its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.linked, self.tables = [], set(), [], []
        self.data, self.scripts, self.styles, self.text, self.policy = [], [], [], "", ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.add(tag)
        self.open += [] if tag in VOID else [tag]
        self.linked += [given[key] for key in ("src", "srcset", "href") if key in given]
        assert not [key for key in given if key.startswith("on")]
        if tag == "meta" and given.get("http-equiv"):
            self.policy = given["content"]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("script", "style"):
            is_data = given.get("type") == "application/json"
            self.into = self.data if is_data else self.scripts if tag == "script" else self.styles
            self.into.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.into[-1] += data
        else:
            self.text += data
            if {"td", "th"} & {*self.open}:
                self.tables[-1][-1][-1] += data

    def table(self, head):
        """The rows below the head that begins so."""
        return next(rows for rows in self.tables if rows[0][: len(head)] == list(head))[1:]

    def chart(self, title):
        found = [json.loads(text) for text in self.data]
        return next(one for one in found if one.get("title") == title)
