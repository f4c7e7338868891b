"""What a notebook shows, with a stand-in for IPython: a bar in its place, and pages inline."""

import html
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ssl_vit.runs import console, notebook


class Outputs(list):
    """The elements of a cell's output, each with what it shows now."""

    def display(self, content: str, display_id: bool) -> SimpleNamespace:
        place = len(self)
        self.append(content)
        return SimpleNamespace(update=lambda new: self.__setitem__(place, new))


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    shown = Outputs()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.HTML, display.display = str, shown.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_outside_of_a_kernel_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not notebook.in_notebook()
    for shell in (None, SimpleNamespace()):  # a script; IPython in a terminal
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert not notebook.in_notebook()
        assert isinstance(console.progress(0, 10), console.ProgressLines)
        assert not isinstance(console.progress(0, 10), console.NotebookBar)


def test_a_run_redraws_one_bar(
    outputs: Outputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    bar = console.progress(5, 1000)
    assert 'value="5" max="1000"' in outputs[0]
    for step in range(6, 1001):
        now[0] += 0.1
        bar.on_step(step)
        bar.on_row({"step": step, "loss": 3.0, "lr": 0.1, "images_per_s": 10.0, "data_wait": 0.0})
        if step == 500:
            assert 490 < int(outputs[0].partition('value="')[2].partition('"')[0]) <= 500
    assert len(outputs) == 1 and 'value="1000"' in outputs[0] and "loss 3.000" in outputs[0]
    assert capsys.readouterr().out == ""
    bar.on_row({"step": 1000, "validation/loss": 2.5})
    bar.on_warning("<b>")
    assert capsys.readouterr().out.splitlines()[-1] == "warning: <b>"


def test_lines_stay_as_they_are() -> None:
    assert notebook.lines_html(["a<b  step 3", "2 of 3"]) == "<pre>a&lt;b  step 3\n2 of 3</pre>"


def test_a_page_stays_as_it_is_inside_another() -> None:
    page = """<!doctype html><p class="a">'&amp;' &lt;</p>"""
    inline = notebook.inline_page(page)
    assert html.unescape(inline.partition('srcdoc="')[2].partition('"')[0]) == page
    assert "<p" not in inline
