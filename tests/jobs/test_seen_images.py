"""A run records what it has trained on, and every test counts how many of its images that was: by
their contents, wherever they lie."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import xxhash

from helpers.images import put
from helpers.launching import launch_ranks, outcome
from helpers.options import PROBE, SHORT, TINY, TUNE, altered
from helpers.runs import Killed, Killer, run
from ssl_vit.data import batching, contents, loaders, sources
from ssl_vit.data.resident import ResidentDataset, decode_split
from ssl_vit.jobs import cli, seen_images, train, trained_on
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.records.run import SeenImages
from ssl_vit.recipe.schema import Data
from ssl_vit.runs import seen_text
from ssl_vit.runs.folder import TRAINED_ON

SUPERVISED = ["recipe=supervised", "eval.test=false", "data.validation=0.04"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """30 images of two classes."""
    for name in "ab":
        put(tmp_path / "IMAGES" / name, 15)
    return tmp_path / "IMAGES"


def trained(place: Path, *more: str, name: str = "first") -> Path:
    """The folder of a run whose 8 steps of 8 images see each of at most 32 images twice."""
    words = altered(TINY, *SHORT, "optim.steps=8", "eval.every=8", "checkpoint.every=2")
    out = place.parent / "runs"
    return run(altered(words, f"out={out}", f"data.path={place}", f"name={name}", *more)).folder


def hashes(files) -> set[int]:
    """Their unsigned numbers."""
    return {xxhash.xxh3_64_intdigest(file.read_bytes()) for file in files}


def recorded(folder: Path, name: str = "images") -> set[int]:
    record = trained_on.read(folder)
    assert record is not None
    return set(getattr(record, name).view(np.uint64).tolist())


def in_parquet(files: list[Path], split: Path) -> None:
    """A parquet file of these images and their classes."""
    split.parent.mkdir(exist_ok=True)
    classes = datasets.ClassLabel(names=["a", "b"])
    features = datasets.Features({"image": datasets.Image(), "label": classes})
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "label": [file.parent.name for file in files],
    }
    table = datasets.Dataset.from_dict(columns, features=features)
    table.to_parquet(str(split.with_suffix(".parquet")))


def in_folder(files: list[Path], split: Path) -> None:
    """A folder of these images under other names."""
    for number, file in enumerate(files):
        (split / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, split / file.parent.name / f"new_{number}.png")


def seen_of(folder: Path) -> dict[str, SeenImages]:
    """{run: what it has seen}, of result.json."""
    found = json.loads((folder / "result.json").read_text())["seen"]
    return {one["run"]: SeenImages(**one) for one in found}


def test_contents_are_known_by_xxh3_and_arrays_by_type_shape_and_values() -> None:
    assert contents.content_hash(b"") == 0x2D06800538D394C2  # xxHash's own test vector
    one = np.arange(12, dtype=np.uint8)
    others = [one, one.reshape(2, 6), one.reshape(6, 2), one.astype(np.uint16), one[::-1]]
    assert len({contents.content_hash(array) for array in others}) == 5
    assert contents.content_hash(one.reshape(6, 2).T.copy()) == contents.content_hash(
        one.reshape(6, 2).T
    )


@pytest.mark.parametrize("resident", [False, True])
def test_batches_have_the_hashes_of_the_images_that_are_used(resident: bool, place: Path) -> None:
    """In place of one that cannot be read that of the next; of pairs the partner's too."""
    (place / "a" / "0.png").write_bytes(b"no image")
    data = Data(name="x", path=str(place), size=16, mixup=0.5, validation=0.0)
    source = sources.load(data).train
    images = batching.ImageDataset(source, data, train=True)
    if resident:
        images = ResidentDataset(source, data, decode_split(source, data, 1e9, 1))
    wanted = batching.samples_at(0, 30, 30, seed=1)
    content = images.__getitems__(wanted).content
    files = [source.path_of(row) for row in range(30)]
    used = [file if file.read_bytes() != b"no image" else files[1] for file in files]
    partners = batching._partners(wanted, 30).index
    for column, rows in enumerate((wanted.index, partners)):
        right = [xxhash.xxh3_64_intdigest(used[row].read_bytes()) for row in rows]
        assert np.ascontiguousarray(content[:, column]).view(np.uint64).tolist() == right
    tested = batching.ImageDataset(source, data, train=False)
    assert tested.__getitems__(wanted).content is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_records_each_image_once_and_labels_only_where_they_are_learned(
    stream: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(place.rglob("*.png"))
    if stream:
        monkeypatch.setattr(loaders, "WINDOW", 30)  # each is an epoch
        in_parquet(files, place.parent / "SHARDS" / "train")
        more = [f"data.path={place.parent / 'SHARDS'}", "data.stream=true", "data.validation=0"]
        folder = trained(place, *more)
    else:
        folder = trained(place, "data.validation=0.1", "compute.workers=1")
        held_out = recorded(folder) ^ hashes(files)
        assert len(held_out) == 3 and held_out < hashes(files)
        files = [file for file in files if not hashes([file]) <= held_out]
    assert recorded(folder) == hashes(files) and recorded(folder, "labels") == set()
    if not stream:
        learned = trained(place, *SUPERVISED, "data.validation=0.1", name="second")
        assert recorded(learned) == recorded(learned, "labels") == hashes(files)


@pytest.mark.parametrize("write", [in_parquet, in_folder])
def test_test_images_that_were_trained_on_are_counted_wherever_they_lie(
    write: Callable[[list[Path], Path], None], place: Path, capsys: pytest.CaptureFixture
) -> None:
    """By the run before and by the run itself, at the terminal and on its page."""
    folder = trained(place, *SUPERVISED)
    assert "was trained on" not in capsys.readouterr().out  # it is tested on nothing
    tested = sorted(place.rglob("*.png"))[::3]
    other = place.parent / "OTHER"
    write(tested, other / "test")
    write([tested[0], tested[-1]] * 4, other / "train")
    words = [f"data.path={other}", "data.test=test", "data.validation=0", "name=tuned"]
    cli.finetune([*TUNE, f"init={folder}", f"out={place.parent}/runs", *words])
    tuned = place.parent / "runs" / "tuned"
    count = len(hashes(tested) & recorded(folder))
    assert count >= 9  # one image was held out
    found = seen_of(tuned)
    assert found["first"].of == {"test": 10}
    assert found["first"].images == found["first"].labels == {"test": count}
    assert found["tuned"].images == found["tuned"].labels == {"test": 2}
    lines = [one for one in capsys.readouterr().out.splitlines() if "was trained on" in one]
    assert lines[0].lstrip().startswith("warning:") and f"{folder} was" in lines[0]
    assert lines[1].startswith("caution ") and "tuned was trained on 2 of 10 test" in lines[1]
    assert lines[2].startswith("caution ") and "first was trained on" in lines[2]
    page = (tuned / "report.html").read_text()
    assert "Of its initial weights: first was trained on" in page
    assert ">tuned was trained on 2 of 10 test images" in page


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (["data.test=0.2"], "was trained on none of the test and held-out images"),
        ([], "5 test and 1 held-out images, without labels"),
        (SUPERVISED, "5 test and 1 held-out images, with their labels"),
    ],
)
def test_fine_tuning_says_which_of_its_images_pre_training_has_seen(
    before: list[str], line: str, place: Path, capsys: pytest.CaptureFixture
) -> None:
    """In its first lines, and with its result; there too of its own training."""
    folder = trained(place, "data.validation=0.04", *before)
    share = [] if "data.test=0.2" in before else ["data.test=0.2"]  # which follows init=
    capsys.readouterr()
    cli.finetune([*TUNE, f"init={folder}", f"out={place.parent}/runs", "name=tuned", *share])
    lines = [one for one in capsys.readouterr().out.splitlines() if "was trained on" in one]
    printed, *beside = lines
    assert line in printed and str(folder) in printed
    learned = "with their labels" in line
    assert printed.lstrip().startswith("warning:") == learned
    # at the end what was seen, not what was not
    seen = [] if "none" in line else ["caution" if learned else "seen"]
    assert [one.split()[0] for one in beside] == seen
    assert all(line in one for one in beside)


def test_what_stands_beside_a_number_on_images_whose_labels_were_learned(
    place: Path, capsys: pytest.CaptureFixture
) -> None:
    """At the terminal after the number, in result.json and, for scripts, in what they get: of an
    encoder that is measured on images that it was trained on."""
    folder = trained(place, *SUPERVISED)
    words = [*PROBE, "probe.measures=[knn]", f"init={folder}", f"out={place.parent}/runs"]
    words = [one for one in words if not one.startswith(("probe.shots", "probe.steps"))]
    capsys.readouterr()
    cli.evaluate([*words, "name=probed", "data.test=0.2"])
    number, caution, verdict = capsys.readouterr().out.splitlines()[-3:]
    assert verdict.startswith("verdict ")
    assert number.startswith("k-NN ") and " of 5 test images; fresh weights " in number
    assert number.endswith("guessing 50.0%")
    assert caution.startswith("caution ") and "5 test" in caution
    assert "with their labels" in caution and "no measure" in caution
    first = seen_of(place.parent / "runs" / "probed")["first"]
    assert (first.of["test"], first.labels["test"]) == (5, 5)


def test_a_run_that_is_gone_does_not_silence_what_is_known_of_those_after_it(
    place: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nor one without a record."""
    first = trained(place, "data.test=0.2")
    second = trained(place, "data.test=0.2", f"init={first}", name="second")
    (first / TRAINED_ON).write_bytes(b"{}")
    third = trained(place, "data.test=0.2", f"init={second}", name="third")
    shutil.rmtree(first)
    capsys.readouterr()
    cli.finetune([*TUNE, f"init={second}", f"out={place.parent}/runs", "name=tuned"])
    printed = capsys.readouterr().out
    assert f"{second} was trained on none of the test and held-out images" in printed
    assert f"which images {first} was trained on is not known" in printed
    seen = json.loads((third / "environment.json").read_text())["seen"]
    assert [one["run"] for one in seen] == ["second", "first"]
    assert seen[1]["unknown"] == seen_images.NO_RECORD


def test_of_images_that_are_not_measured_nothing_is_told(place: Path) -> None:
    """A run that is measured on nothing was told to have seen "none of the  images"."""
    folder = trained(place, "data.test=0.2")
    recipe = resolve([*TUNE, f"init={folder}"])
    splits = sources.load(recipe.data, test=True)
    found = seen_images.seen_images(recipe, seen_images.MeasuredImages(recipe, splits))
    line = f"{folder} was trained on none of the test and held-out images"
    assert seen_text.lines(found) == [line]
    recipe.data.validation = 0.0
    nothing = seen_images.MeasuredImages(recipe, splits._replace(test=None))
    assert seen_images.seen_images(recipe, nothing) == []


def test_after_a_kill_the_record_has_both_halves(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 images of each step, in the first epoch all different: steps 1 and 2, then 3 and 4."""
    callbacks = train._callbacks
    monkeypatch.setattr(train, "_callbacks", lambda job: [*callbacks(job), Killer(3)])
    words = ["optim.steps=4", "data.validation=0", "name=killed"]
    put(place / "c", 2)
    with pytest.raises(Killed):
        trained(place, *words)
    folder = place.parent / "runs" / "killed"
    before = recorded(folder)
    assert len(before) == 16  # of the checkpoint of step 2
    monkeypatch.setattr(train, "_callbacks", callbacks)
    trained(place, *words)
    assert len(recorded(folder)) == 32 and before < recorded(folder)
    assert recorded(folder) == hashes(place.rglob("*.png"))


def test_a_run_whose_record_was_lost_says_that_not_all_is_known(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    callbacks = train._callbacks
    monkeypatch.setattr(train, "_callbacks", lambda job: [*callbacks(job), Killer(5)])
    with pytest.raises(Killed):
        trained(place, "data.test=0.2", "name=killed")
    monkeypatch.setattr(train, "_callbacks", callbacks)
    (place.parent / "runs" / "killed" / TRAINED_ON).unlink()
    folder = trained(place, "data.test=0.2", "name=killed")
    assert not trained_on.read(folder).complete
    capsys.readouterr()
    cli.finetune([*TUNE, f"init={folder}", f"out={place.parent}/runs", "name=tuned"])
    line = f"which images {folder} was trained on is not known{seen_images.FIRST_STEPS}"
    assert line in capsys.readouterr().out


def test_beyond_the_limit_images_are_not_recorded_and_that_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(trained_on, "LIMIT", 20)
    folder = trained(place, *SUPERVISED, "data.validation=0")
    record = trained_on.read(folder)
    assert len(record.images) == len(record.labels) == 20 and not record.complete
    assert (folder / "log.txt").read_text().count("is not recorded") == 1
    capsys.readouterr()
    cli.finetune(
        [*TUNE, f"init={folder}", f"out={place.parent}/runs", "name=tuned", "data.test=0.5"]
    )
    printed = capsys.readouterr().out
    found = seen_of(place.parent / "runs" / "tuned")["first"]
    assert 0 < found.images["test"] < 15 and "more than 20" in found.unknown
    assert "with their labels; on which others is not known for all" in printed


def test_two_processes_record_what_both_have_trained_on(place: Path) -> None:
    """Each sees half of the 16 images of two steps, in the first epoch all different."""
    more = ["optim.steps=2", "checkpoint.every=1", "compute.batch=4", "data.validation=0.2"]
    words = altered(TINY, *SHORT, *more, f"data.path={place}", f"out={place.parent}/runs")
    codes, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *words, "name=two"))
    assert codes == [0, 0], outputs
    one = run(altered(words, "name=one", "compute.batch=8")).folder
    assert recorded(place.parent / "runs" / "two") == recorded(one)
    assert len(recorded(one)) == 16


def test_a_few_copies_are_said_and_not_warned_of() -> None:
    """One in 1,000 changes an accuracy by 0.1 points at most."""
    few, more = (
        SeenImages(run="r", of={"test": 1000}, images={"test": n}, labels={"test": n})
        for n in (1, 2)
    )
    assert seen_text.lines([few]) == ["r was trained on 1 of 1,000 test images, with their labels"]
    assert seen_text.cautions([few]) == [] and seen_text.learned_labels([few]) == 0
    assert seen_text.lines([more])[0].startswith("warning: ") and seen_text.cautions([more])
