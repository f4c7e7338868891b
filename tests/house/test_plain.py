"""The project stays as plainly written as it is: rates of habits at which readers stop, per 1,000
words. tests/helpers/wording.py says what is counted, and lists the passages."""

import pytest

from helpers import wording
from helpers.options import ROOT

PATHS = [ROOT / name for name in ("ssl_vit", "docs", "README.md", "CONTRIBUTING.md")]
# {kind of text: the most pronouns without a near noun, private idioms and semicolons}
MOST = {
    wording.prose: (20.0, 1.0, 2.0),
    wording.docstrings: (15.0, 1.0, 2.0),
    wording.messages: (15.0, 1.0, 2.0),
}
WITHOUT_VERB = 0.12  # share of docstrings


@pytest.mark.parametrize("kind", MOST, ids=lambda kind: kind.__name__)
def test_habits_that_stop_readers_stay_rare(kind) -> None:
    rates = wording.rates(kind(PATHS))
    assert all(rate <= most for rate, most in zip(rates[:3], MOST[kind], strict=True))


def test_docstrings_begin_with_a_verb() -> None:
    assert wording.rates(wording.docstrings(PATHS)).no_verb <= WITHOUT_VERB


def test_rates_count_by_hand() -> None:
    """Of ten words one pronoun, one idiom and one semicolon; the second text opens without verb."""
    passages = [
        wording.Passage("a", "Read it beside the file; then close"),
        wording.Passage("b", "The last line"),
    ]
    assert wording.rates(passages) == (100.0, 100.0, 100.0, 0.5)


def test_texts_are_listed_with_slots_and_without_docstrings(tmp_path) -> None:
    file = tmp_path / "one.py"
    file.write_text(
        '"""A docstring of words."""\nx = f"there are {1 + 1} files " + "in the folder"\n'
    )
    assert [text for _, text in wording.texts([file])] == ["there are {} files in the folder"]
