"""Files are written whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.disk import full_disk
from ssl_vit.runs import files


@settings(max_examples=10)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")))
def test_a_text_is_written_whole(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("text") / "text"
    files.write_atomically(path, "something longer that was there before " * 3)
    files.write_atomically(path, text)
    assert path.read_text() == text and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*values: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "text"
    files.write_atomically(path, "old\n")
    monkeypatch.setattr(files.os if fails == "fsync" else Path, fails, fail)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(path, "new\n")
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_and_what_others_put_there_stays(tmp_path: Path) -> None:
    """But for a file of the old one that the new one lacks: it would pass for the new one's."""
    path = tmp_path / "export"
    for text in ("old", "new"):
        with files.replacing(path, ("weights", "heads")) as beside:
            beside.mkdir()
            (beside / "weights").write_text(text)
            if text == "old":
                (beside / "heads").touch()
            else:
                assert (path / "weights").read_text() == "old"
        (path / "own.txt").touch()
    assert (path / "weights").read_text() == "new"
    assert {one.name for one in path.iterdir()} == {"weights", "own.txt"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path, long = tmp_path / "text", "new\n" * 1000
    files.write_atomically(path, "old\n")
    with full_disk(), pytest.raises(OSError, match="too large") as caught:
        files.write_atomically(path, long)
    assert caught.value.filename == str(path)
    with full_disk(), pytest.raises(OSError, match="too large"), files.replacing(path) as beside:
        beside.mkdir()
        (beside / "part").write_text(long)
    with full_disk(), pytest.raises(OSError, match="No space"):
        files.append(path, long.encode())
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]
