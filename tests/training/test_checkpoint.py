"""Checkpoints: complete or absent, whenever the process dies; and damage is noticed."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssl_vit.errors import UserError
from ssl_vit.recipe.operation import Checkpoint
from ssl_vit.runs import files
from ssl_vit.training import checkpoint


class Killed(BaseException):
    """The process ends here; nothing catches it."""


def state(step):
    return {
        "step": step,
        "weights": torch.full((50,), float(step)),
        "names": ["loss"],
        "sums": None,
    }


def save(root, step, keep=2):
    return checkpoint.save(root, step, state(step), keep)


def steps(root):
    """The steps of the checkpoints found, each checked to be sound and to hold its own state."""
    found = checkpoint.list_checkpoints(root)
    assert all(checkpoint.is_intact(path) for path in found)
    loaded = [checkpoint.load(path) for path in found]
    assert all(torch.equal(some["weights"], state(some["step"])["weights"]) for some in loaded)
    return [some["step"] for some in loaded]


def damage(path):
    raw = bytearray((path / "state.pt").read_bytes())
    raw[len(raw) // 2] ^= 1
    (path / "state.pt").write_bytes(raw)


def test_a_state_comes_back_as_it_was(tmp_path):
    saved = {
        "step": 7,
        "seconds": 1.5,
        "names": ["loss", "accuracy"],
        "nothing": None,
        "nested": {
            0: {"exp_avg": torch.randn(3, 4), "step": torch.tensor(7.0)},
            "betas": (0.9, 0.999),
        },
        "low": torch.randn(5).bfloat16(),
        "count": torch.tensor([2**62, -1]),
        "bool": torch.tensor([True, False]),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64),
    }
    path = checkpoint.save(tmp_path / "checkpoints", 7, saved, keep=1)
    assert path == tmp_path / "checkpoints" / "step-000000007" and checkpoint.is_intact(path)
    got = checkpoint.load(path)
    torch.testing.assert_close(got.pop("nested"), saved.pop("nested"), rtol=0, atol=0)
    for name, value in saved.items():
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype
            assert (
                got[name].contiguous().view(torch.uint8).tolist()
                == value.contiguous().view(torch.uint8).tolist()
            ), name
        else:
            assert got[name] == value
    assert got.keys() == saved.keys()


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 999_999_999), min_size=1, max_size=6, unique=True).map(sorted),
    st.integers(1, 4),
)
def test_the_newest_are_kept_in_the_order_of_their_steps(tmp_path_factory, at, keep):
    root = tmp_path_factory.mktemp("checkpoints")
    for i, step in enumerate(at, 1):
        save(root, step, keep)
        assert steps(root) == at[:i][-keep:]


def test_there_is_nothing_to_find_before_the_first(tmp_path):
    assert checkpoint.list_checkpoints(tmp_path / "nowhere") == []


def test_a_step_that_is_saved_again_is_replaced(tmp_path):
    path = save(tmp_path, 5)
    damage(path)
    assert save(tmp_path, 5) == path
    assert steps(tmp_path) == [5]


def test_what_another_kill_left_is_not_found_and_is_cleared_away(tmp_path):
    save(tmp_path, 1)
    for name in (".step-000000002.4711", ".step-000000003.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_bytes(b"half")
    (tmp_path / ".step-000000003.1" / checkpoint.MANIFEST).write_text("{}")
    assert steps(tmp_path) == [1]
    save(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000001", "step-000000004"}


def dying(monkeypatch, owner, name, call, after=False):
    """Let the process die before (or after) call number `call` of owner.name; the list of what it
    was called with."""
    real, calls = getattr(owner, name), []

    def act(*words, **options):
        calls.append(words)
        if len(calls) == call and not after:
            raise Killed
        done = real(*words, **options)
        if len(calls) == call:
            raise Killed
        return done

    monkeypatch.setattr(owner, name, act)
    return calls


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (Path, "mkdir", 2),
        (torch, "save", 1),
        (Path, "write_text", 1),
        *((os, "fsync", call) for call in (1, 2, 3, 4)),
        (Path, "rename", 1),
    ],
)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_kill_while_saving_leaves_complete_checkpoints_only(
    tmp_path, owner, name, call, after, keep
):
    save(tmp_path, 10, keep)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        calls = dying(patch, owner, name, call, after)
        save(tmp_path, 20, keep)
    assert len(calls) == call
    assert steps(tmp_path) in ([10], [10, 20])
    save(tmp_path, 30, keep)
    assert steps(tmp_path)[-1] == 30 and len(steps(tmp_path)) <= keep
    assert not list(tmp_path.glob(".*"))


def test_a_state_torn_while_it_is_written_is_not_found(tmp_path):
    def half(_, file):
        file.write(b"the first half")
        raise Killed

    save(tmp_path, 10)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(torch, "save", half)
        save(tmp_path, 20)
    assert steps(tmp_path) == [10]


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path):
    """Both files and their folder are synced before the rename, and the parent after it."""
    order = []
    real_sync, real_rename = os.fsync, Path.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda number: (order.append(os.fstat(number).st_ino), real_sync(number))
        )
        patch.setattr(
            Path, "rename", lambda path, to: (order.append("rename"), real_rename(path, to))
        )
        path = save(tmp_path, 3)
    at = order.index("rename")
    assert {
        some.stat().st_ino for some in (path, path / "state.pt", path / checkpoint.MANIFEST)
    } <= set(order[:at])
    assert tmp_path.stat().st_ino in order[at:]


@pytest.mark.parametrize("first", ["state.pt", checkpoint.MANIFEST])
def test_a_kill_while_an_old_one_is_removed_leaves_no_half_of_it(tmp_path, first):
    def half(path):
        (path / first).unlink()
        raise Killed

    save(tmp_path, 10, keep=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files, "remove", half)
        save(tmp_path, 20, keep=1)
    assert steps(tmp_path) == [20]
    save(tmp_path, 30, keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000030"}


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_newer_one_does_not_push_out_what_is_saved_now(tmp_path, keep):
    """A run that went back over a damaged checkpoint writes lower steps than that one's."""
    for step in (800, 1000):
        save(tmp_path, step, keep=2)
    damage(tmp_path / "step-000001000")
    for step in (850, 900):
        path = save(tmp_path, step, keep)
        assert path.exists() and checkpoint.is_intact(path)
    sound = [
        checkpoint.load(path)["step"]
        for path in checkpoint.list_checkpoints(tmp_path)
        if checkpoint.is_intact(path)
    ]
    assert sound[-keep:] == [800, 850, 900][-keep:]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return save(tmp_path_factory.mktemp("checkpoints"), 1)


@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_one_wrong_bit_or_a_missing_end_is_noticed(kept, place, bit, cut):
    path = kept / "state.pt"
    raw = path.read_bytes()
    at = int(place * len(raw))
    changed = bytearray(raw)
    changed[at] ^= 1 << bit
    path.write_bytes(raw[:at] if cut else changed)
    assert not checkpoint.is_intact(kept)
    path.write_bytes(raw)
    assert checkpoint.is_intact(kept)


def test_a_torn_or_changed_manifest_is_noticed(tmp_path):
    """Only a change outside its list of files may pass."""
    path = save(tmp_path, 1)
    whole = (path / checkpoint.MANIFEST).read_bytes()
    flipped = [
        whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :]
        for i in range(len(whole))
        for bit in range(8)
    ]
    for torn in [
        *(whole[:end] for end in range(len(whole) - 1)),
        bytes(len(whole)),
        b"{}",
        *flipped,
    ]:
        (path / checkpoint.MANIFEST).write_bytes(torn)
        try:
            same = json.loads(torn).get("files") == json.loads(whole)["files"]
        except ValueError:
            same = False
        assert checkpoint.is_intact(path) == same, torn


def test_a_missing_file_is_noticed(tmp_path):
    path = save(tmp_path, 1)
    (path / "state.pt").unlink()
    assert not checkpoint.is_intact(path)
    assert not checkpoint.is_intact(tmp_path / "nowhere")


def test_the_manifest_says_size_and_hash(tmp_path):
    path = save(tmp_path, 1)
    raw = (path / "state.pt").read_bytes()
    facts = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert json.loads((path / checkpoint.MANIFEST).read_text()) == {
        "step": 1,
        "files": {"state.pt": facts},
    }


class Touch:
    """Pickled, this is a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_code_runs_from_a_checkpoint(tmp_path):
    path = save(tmp_path / "checkpoints", 1)
    torch.save({"step": Touch(tmp_path / "made")}, path / "state.pt")
    with pytest.raises(Exception, match="weights_only"):
        checkpoint.load(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("place", ["save", "_copied"])
def test_a_save_that_finds_no_memory_is_told_and_counted(tmp_path, monkeypatch, background, place):
    def full(*values):
        raise MemoryError

    notes, warnings = [], []
    saver = checkpoint.Saver(
        tmp_path, Checkpoint(background=background), notes.append, warnings.append
    )
    monkeypatch.setattr(checkpoint, place, full)
    if place == "_copied" and not background:
        pytest.skip("nothing is copied")
    saver.save(1, {"x": torch.ones(1)})
    saver.wait()
    assert (
        saver.failed == 1
        and warnings[0] == f"step 1 could not be saved in {tmp_path}: MemoryError; kept: none"
    )
    saver.save(2, {"x": torch.ones(1)})
    with pytest.raises(UserError, match="3 saves in a row failed; step 3"):
        saver.save(3, {"x": torch.ones(1)})
        saver.wait()
    monkeypatch.undo()
    saver.save(4, {"x": torch.ones(1)})
    saver.wait()
    assert saver.failed == 0 and saver.kept == 4


def test_a_linked_step_blocks_no_save_and_its_target_stays(tmp_path):
    other, root = tmp_path / "other", tmp_path / "mine"
    root.mkdir()
    theirs = save(other, 2)
    (root / "step-000000002").symlink_to(theirs)
    (root / ".step-000000009.77").symlink_to(theirs)
    for step in (2, 4, 6):
        save(root, step, keep=1)
    assert steps(root) == [6] and checkpoint.is_intact(theirs)
