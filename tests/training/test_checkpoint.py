"""Checkpoints: complete or absent, whenever the process dies; and damage is noticed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs import Killed
from ssl_vit.errors import UserError
from ssl_vit.recipe.operation import Checkpoint
from ssl_vit.runs import files
from ssl_vit.training import checkpoint


def state(step: int) -> dict[str, Any]:
    weights = torch.full((50,), float(step))
    return {"step": step, "weights": weights, "names": ["loss"], "sums": None}


def save(root: Path, step: int, keep: int = 2) -> Path:
    return checkpoint.save(root, step, state(step), keep)


def steps(root: Path) -> list[int]:
    """The steps of the checkpoints found, each checked to be sound and to hold its own state."""
    found = checkpoint.list_checkpoints(root)
    assert all(checkpoint.is_intact(path) for path in found)
    loaded = [checkpoint.load(path) for path in found]
    assert all(torch.equal(some["weights"], state(some["step"])["weights"]) for some in loaded)
    return [some["step"] for some in loaded]


def damage(path: Path) -> None:
    raw = bytearray((path / "state.pt").read_bytes())
    raw[len(raw) // 2] ^= 1
    (path / "state.pt").write_bytes(raw)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = {
        "step": 7,
        "seconds": 1.5,
        "names": ["loss", "accuracy"],
        "nothing": None,
        "nested": {0: {"exp_avg": torch.ones(3, 4), "step": torch.tensor(7.0)}, "betas": (0.9, 1)},
        "low": torch.randn(5).bfloat16(),
        "count": torch.tensor([2**62, -1]),
        "bool": torch.tensor([True, False]),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64),
    }
    path = checkpoint.save(tmp_path / "checkpoints", 7, saved, keep=1)
    assert path == tmp_path / "checkpoints" / "step-000000007" and checkpoint.is_intact(path)
    got = checkpoint.load(path)
    torch.testing.assert_close(got.pop("nested"), saved.pop("nested"), rtol=0, atol=0)
    assert got.keys() == saved.keys()
    for name, value in saved.items():
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype, name
            assert torch.equal(got[name].view(torch.uint8), value.view(torch.uint8)), name
        else:
            assert got[name] == value


@settings(max_examples=10)
@given(
    st.lists(st.integers(0, 999_999_999), min_size=1, max_size=6, unique=True).map(sorted),
    st.integers(1, 4),
)
def test_the_newest_are_kept_in_the_order_of_their_steps(
    tmp_path_factory: pytest.TempPathFactory, at: list[int], keep: int
) -> None:
    root = tmp_path_factory.mktemp("checkpoints")
    assert checkpoint.list_checkpoints(root / "nowhere") == []
    for i, step in enumerate(at, 1):
        save(root, step, keep)
        assert steps(root) == at[:i][-keep:]


def test_that_of_a_stop_takes_no_place_of_one_at_which_others_begin(tmp_path: Path) -> None:
    """As where a trunk is stopped twice: keep=4 is what its first steps need without that. Never
    fewer than `keep` are left."""
    for step in (4, 6, 8, 12, 14, 16):
        checkpoint.save(tmp_path, step, state(step), 4, every=4)
    assert steps(tmp_path) == [4, 8, 12, 16]
    checkpoint.save(tmp_path, 18, state(18), 4, every=4)
    checkpoint.save(tmp_path, 19, state(19), 4, every=4)
    assert steps(tmp_path) == [8, 12, 16, 19]


def test_a_step_that_is_saved_again_is_replaced(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    damage(path)
    assert save(tmp_path, 5) == path
    assert steps(tmp_path) == [5]


def test_what_another_kill_left_is_not_found_and_is_cleared_away(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in (".step-000000002.4711", ".step-000000003.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_bytes(b"half")
    (tmp_path / ".step-000000003.1" / checkpoint.MANIFEST).write_text("{}")
    assert steps(tmp_path) == [1]
    save(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000001", "step-000000004"}


KILLED_AT = [
    *((Path, "mkdir", 2), (torch, "save", 1), (Path, "write_text", 1), (Path, "rename", 1)),
    *((os, "fsync", call) for call in (1, 2, 3, 4)),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name", "call"), KILLED_AT)
def test_a_kill_while_saving_leaves_complete_checkpoints_only(
    tmp_path: Path, owner: Any, name: str, call: int, after: bool
) -> None:
    """Before or after call number `call` of owner.name."""
    real, calls = getattr(owner, name), []

    def dies(*words: Any, **options: Any) -> Any:
        calls.append(words)
        if len(calls) == call and not after:
            raise Killed
        done = real(*words, **options)
        if len(calls) == call:
            raise Killed
        return done

    save(tmp_path, 10, keep=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, dies)
        save(tmp_path, 20, keep=1)
    assert steps(tmp_path) in ([10], [10, 20])
    save(tmp_path, 30, keep=1)
    assert steps(tmp_path) == [30] and not list(tmp_path.glob(".*"))


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path) -> None:
    """Both files and their folder are synced before the rename, and the parent after it."""
    order: list[Any] = []
    sync, rename = os.fsync, Path.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda n: (order.append(os.fstat(n).st_ino), sync(n)))
        patch.setattr(Path, "rename", lambda path, to: (order.append("rename"), rename(path, to)))
        path = save(tmp_path, 3)
    at = order.index("rename")
    written = {one.stat().st_ino for one in (path, path / "state.pt", path / checkpoint.MANIFEST)}
    assert written <= set(order[:at]) and tmp_path.stat().st_ino in order[at:]


@pytest.mark.parametrize("first", ["state.pt", checkpoint.MANIFEST])
def test_a_kill_while_an_old_one_is_removed_leaves_no_half_of_it(
    tmp_path: Path, first: str
) -> None:
    def half(path: Path) -> None:
        (path / first).unlink()
        raise Killed

    save(tmp_path, 10, keep=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files, "remove", half)
        save(tmp_path, 20, keep=1)
    assert steps(tmp_path) == [20]
    save(tmp_path, 30, keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000030"}


def test_a_file_of_the_users_outlives_the_checkpoint_that_it_lies_in(tmp_path: Path) -> None:
    (save(tmp_path, 10) / "notes.txt").write_text("mine")
    save(tmp_path, 20, keep=1)
    assert steps(tmp_path) == [20]
    assert (tmp_path / "step-000000010.kept" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_newer_one_does_not_push_out_what_is_saved_now(tmp_path: Path, keep: int) -> None:
    """A run that went back over a damaged checkpoint writes lower steps than that one's."""
    for step in (800, 1000):
        save(tmp_path, step, keep=2)
    damage(tmp_path / "step-000001000")
    for step in (850, 900):
        assert checkpoint.is_intact(save(tmp_path, step, keep))
    assert steps(tmp_path)[-keep:] == [800, 850, 900][-keep:]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints"), 1)


@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_one_wrong_bit_or_a_missing_end_is_noticed(
    kept: Path, place: float, bit: int, cut: bool
) -> None:
    path = kept / "state.pt"
    raw = path.read_bytes()
    at = int(place * len(raw))
    changed = bytearray(raw)
    changed[at] ^= 1 << bit
    path.write_bytes(raw[:at] if cut else changed)
    assert not checkpoint.is_intact(kept)
    path.write_bytes(raw)
    assert checkpoint.is_intact(kept)


def test_the_manifest_says_size_and_hash_and_damage_of_it_is_noticed(kept: Path) -> None:
    """Only a change outside its list of files may pass."""
    raw, path = (kept / "state.pt").read_bytes(), kept / checkpoint.MANIFEST
    facts = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    whole = path.read_bytes()
    assert json.loads(whole) == {"step": 1, "files": {"state.pt": facts}}
    flipped = [
        whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :]
        for i in range(len(whole))
        for bit in (0, 5)
    ]
    cut = [whole[:end] for end in range(len(whole) - 1)]
    others = [b"{}", b"null", b'{"files": {"/dev/zero": 1}}', b"\xed\xa0\x80", b"[" * 200_000]
    for torn in [*cut, bytes(len(whole)), *others, *flipped]:
        path.write_bytes(torn)
        try:
            same = json.loads(torn).get("files") == {"state.pt": facts}
        except (ValueError, AttributeError, RecursionError):
            same = False
        assert checkpoint.is_intact(kept) == same, torn
    path.write_bytes(whole)


def test_a_missing_file_or_a_pipe_is_noticed_and_not_waited_for(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for name in ("state.pt", checkpoint.MANIFEST):
        (path / name).unlink()
        assert not checkpoint.is_intact(path)
        os.mkfifo(path / name)
        assert not checkpoint.is_intact(path)
    assert not checkpoint.is_intact(tmp_path / "nowhere")


class Touch:
    """Pickled, this is a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_runs_from_a_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 1)
    torch.save({"step": Touch(tmp_path / "made")}, path / "state.pt")
    with pytest.raises(Exception, match="weights_only"):
        checkpoint.load(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("place", "background"), [("save", True), ("save", False), ("_copied", True)]
)
def test_a_save_that_finds_no_memory_is_told_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, background: bool
) -> None:
    def full(*values: Any) -> None:
        raise MemoryError

    warnings: list[str] = []
    saver = checkpoint.Saver(tmp_path, Checkpoint(background=background), print, warnings.append)

    def attempt(step: int) -> None:
        saver.save(step, {"x": torch.ones(1)})
        saver.wait()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, place, full)
        attempt(1)
        (line,) = warnings
        assert (
            saver.failed == 1 and line.startswith("step 1 ") and "MemoryError. Kept: none" in line
        )
        attempt(2)
        with pytest.raises(UserError, match="3 saves in a row failed: step 3"):
            attempt(3)
    attempt(4)
    assert saver.failed == 0 and saver.kept == 4
