"""tools/prepare.py: what is there is compared with what is asked for, one writes at a time, and what
was killed is completed."""

import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from helpers.launching import launch
from ssl_vit.errors import UserError
from ssl_vit.evaluation import prepare_vtab
from ssl_vit.runs import output_folder

OWN = re.compile("dtd")


def images(grey: int) -> list[dict]:
    png = prepare_vtab.square(np.full((2, 3, 3), grey, np.uint8), 2)
    return [{"image": {"bytes": png, "path": None}, "label": i % 47} for i in range(800)]


def write_source(folder: Path, grey: int = 7) -> Path:
    """All that prepare reads of dtd: images of one colour, wider than high."""
    (folder / "dtd").mkdir(parents=True, exist_ok=True)
    rows = images(grey)
    for split, count in (("train", 800), ("validation", 200), ("test", 50)):
        table = pyarrow.Table.from_pylist(rows[:count])
        pyarrow.parquet.write_table(table, folder / "dtd" / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def prepared(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a call that nothing interrupted; read only."""
    out = tmp_path_factory.mktemp("whole")
    assert prepare_vtab.main(words(source, out)) == 0
    return out


def words(source: Path, out: Path, *more: str) -> list[str]:
    return [f"source={source}", f"out={out}", "tasks=dtd", "size=2", *more]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        prepare_vtab.main(list(arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_size_or_source_is_refused_and_not_there_already(
    source: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    shutil.copytree(prepared, out)
    before = contents(out)
    given = words(source, out)[:-1]
    text = refusal(*given, "size=1")
    assert text.startswith(f"size=1: {out}/dtd was made with size=2; remove it, or give another")
    text = refusal(*words(write_source(tmp_path / "other", grey=8), out))
    assert text.startswith(f"source={tmp_path}/other: {out}/dtd was made of other files than ")
    assert contents(out) == before
    # the same files elsewhere, or none any more
    shutil.copytree(source, tmp_path / "moved")
    (tmp_path / "none").mkdir()
    capsys.readouterr()
    for place, says in (
        ("moved", "there already\n"),
        ("none", "is not here, and was not compared"),
    ):
        assert prepare_vtab.main(words(tmp_path / place, out)) == 0
        assert says in capsys.readouterr().out
    assert contents(out) == before


def test_what_is_not_whole_is_not_there_already(
    source: Path, prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "dtd").mkdir(parents=True)
    assert prepare_vtab.main(words(source, out)) == 0  # an empty folder
    assert contents(out) == contents(prepared)
    test = out / "dtd" / "final" / "test.parquet"
    whole = test.read_bytes()
    for damaged in (whole[:-100], whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], None):
        test.unlink() if damaged is None else test.write_bytes(damaged)
        text = refusal(*words(source, out))
        assert text.startswith(f"{test} is not the file that was written; remove {out}/dtd, and")
    (out / "dtd" / "prepare.json").write_text("{")
    text = refusal(*words(source, out))
    assert "prepare.json is damaged (" in text and f"; remove {out}/dtd, or give" in text
    shutil.rmtree(out / "dtd")
    (out / "dtd").write_text("mine")
    assert f"{out}/dtd is no folder; remove it" in refusal(*words(source, out))
    (out / "dtd").unlink()
    (out / "dtd").symlink_to(tmp_path / "nowhere")
    assert f"{out}/dtd is a link to nothing; remove it" in refusal(*words(source, out))
    (out / "dtd").unlink()
    assert prepare_vtab.main(words(source, out)) == 0
    assert contents(out) == contents(prepared)


def test_images_without_a_record_are_taken_if_they_are_whole_and_that_is_said(
    source: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Written by an earlier version, or by hand."""
    shutil.copytree(prepared, tmp_path / "out")
    (tmp_path / "out" / "dtd" / "prepare.json").unlink()
    assert prepare_vtab.main(words(source, tmp_path / "out")) == 0
    assert "of which size= and source= is not known" in capsys.readouterr().out
    test = tmp_path / "out" / "dtd" / "final" / "test.parquet"
    test.write_bytes(test.read_bytes()[:-100])
    assert "test.parquet: cannot be read as parquet" in refusal(*words(source, tmp_path / "out"))
    test.unlink()
    assert "dtd is not whole: no test.parquet in " in refusal(*words(source, tmp_path / "out"))


def test_two_at_once_are_refused_in_one_line(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    study = ["recipe=study/vtab", "init=scratch", f"data={out}", f"source={source}"]
    with output_folder.OutputFolder("out", out, OWN).hold():
        for tool, given in (
            ("prepare", words(source, out)),
            ("study", [*study, f"out={tmp_path}/runs"]),
        ):
            process = launch(f"tools/{tool}.py", *given)
            printed = process.communicate(120)[0]
            assert process.returncode == 2 and printed.count("\n") == 1, printed
            assert printed.startswith(f"error: out={out}: {out} is being written by process ")
    assert contents(tmp_path) == {} and not (tmp_path / "runs").exists()
    assert prepare_vtab.main(words(source, out)) == 0


def test_what_was_killed_is_completed_by_the_same_command(
    source: Path, prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed = launch("tools/prepare.py", *words(source, out))
    while not list(out.glob(".dtd.*/*")) and killed.poll() is None:
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(60)
    assert prepare_vtab.main(words(source, out)) == 0
    assert contents(out) == contents(prepared)
    assert sorted(path.name for path in out.iterdir()) == ["dtd", "lock"]


def test_a_link_with_the_name_of_what_is_written_is_not_followed(
    source: Path, prepared: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("theirs")
    out = tmp_path / "out"
    out.mkdir()
    for name in (".dtd.part", ".dtd.4711.part", ".dtd.mine.part"):
        (out / name).symlink_to(theirs)
    (out / ".svhn.json.1").write_text("mine")
    assert prepare_vtab.main(words(source, out)) == 0
    assert contents(theirs) == {"thesis.txt": b"theirs"}
    assert contents(out / "dtd") == contents(prepared / "dtd")
    assert {path.name for path in out.iterdir()} == {
        *("dtd", "lock", ".dtd.part", ".dtd.mine.part", ".svhn.json.1"),
    }


def test_a_full_disk_is_one_line_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare_vtab, "sync", full)
    out = tmp_path / "out"
    assert refusal(*words(source, out)) == f"out={out}: No space left on device"
    assert [path.name for path in out.iterdir()] == ["lock"]
