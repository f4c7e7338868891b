"""A run records what it has trained on, and every test counts how many of its images that was: by
their contents, wherever they lie."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import xxhash

import ssl_vit
from helpers.images import images, put
from helpers.launching import launch_ranks, outcome
from helpers.options import PROBE, SHORT, TINY, TUNE, altered
from helpers.resolving import resolve
from helpers.runs import cut_off, result, run
from ssl_vit.data import batching, contents, loaders, run_splits
from ssl_vit.data.resident import ResidentDataset, decode_split
from ssl_vit.data.source import labelled_images
from ssl_vit.jobs import cli, seen_images
from ssl_vit.recipe.records.run import SeenImages
from ssl_vit.recipe.schema import Data
from ssl_vit.runs.folder import TRAINED_ON

SUPERVISED = ["recipe=supervised", "eval.test=false", "data.validation=0.04"]
APART = "data.test=0.2"
RUNS = {
    "apart": [APART, "compute.workers=1"],
    "unlabelled": ["data.validation=0.04"],
    "labelled": SUPERVISED,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images of two classes."""
    folder = tmp_path_factory.mktemp("seen") / "IMAGES"
    for name in "ab":
        put(folder / name, 15)
    return folder


def words_of(place: Path, out: Path, *more: str) -> list[str]:
    """A run whose 8 steps of 8 images see each of at most 32 images twice."""
    words = altered(TINY, *SHORT, "optim.steps=8", "eval.every=8", "checkpoint.every=2")
    return altered(words, f"data.path={place}", f"out={out}", "name=run", *more)


@pytest.fixture(scope="module")
def runs(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of RUNS."""
    out = tmp_path_factory.mktemp("runs")
    return {
        name: run(words_of(place, out, f"name={name}", *more)).folder for name, more in RUNS.items()
    }


@pytest.fixture
def words(place: Path, tmp_path: Path) -> list[str]:
    return words_of(place, tmp_path)


def fine_tune(init: Path, out: Path, *more: str) -> Path:
    cli.finetune([*TUNE, f"init={init}", f"out={out}", "name=tuned", *more])
    return out / "tuned"


def hashes(files) -> set[int]:
    """Their unsigned numbers."""
    return {xxhash.xxh3_64_intdigest(file.read_bytes()) for file in files}


def recorded(folder: Path, name: str = "images") -> set[int]:
    return set(getattr(seen_images.read(folder), name).view(np.uint64).tolist())


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


def seen_of(folder: Path) -> dict[str, SeenImages]:
    """{run: what it has seen}, of result.json."""
    return {one["run"]: SeenImages(**one) for one in result(folder)["seen"]}


def told(capsys: pytest.CaptureFixture) -> list[str]:
    """What is printed of images that were trained on."""
    return [one for one in capsys.readouterr().out.splitlines() if "was trained on" in one]


def test_contents_are_known_by_xxh3_and_arrays_by_type_shape_and_values() -> None:
    assert contents.content_hash(b"") == 0x2D06800538D394C2  # xxHash's own test vector
    one = np.arange(12, dtype=np.uint8)
    others = [one, one.reshape(2, 6), one.reshape(6, 2), one.astype(np.uint16), one[::-1]]
    assert len({contents.content_hash(array) for array in others}) == 5
    turned = one.reshape(6, 2).T
    assert contents.content_hash(turned.copy()) == contents.content_hash(turned)


@pytest.mark.parametrize("resident", [False, True])
def test_batches_have_the_hashes_of_the_images_that_are_used(
    resident: bool, place: Path, tmp_path: Path
) -> None:
    """In place of one that cannot be read that of the next; of pairs the partner's too."""
    place = shutil.copytree(place, tmp_path / "IMAGES")
    (place / "a" / "0.png").write_bytes(b"no image")
    data = Data(name="x", path=str(place), size=16, mixup=0.5, validation=0.0)
    source = run_splits.load(data).train
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


def test_a_run_records_each_image_once_and_labels_only_where_they_are_learned(
    runs: dict[str, Path], place: Path
) -> None:
    all_images = hashes(place.rglob("*.png"))
    for name, count in (("apart", 24), ("unlabelled", 29), ("labelled", 29)):
        found = recorded(runs[name])
        assert len(found) == count and found < all_images
        assert recorded(runs[name], "labels") == (found if name == "labelled" else set())


def test_a_stream_records_its_images(
    words: list[str], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "WINDOW", 30)  # each is an epoch
    files = sorted(place.rglob("*.png"))
    in_parquet(files, tmp_path / "SHARDS" / "train")
    more = [f"data.path={tmp_path}/SHARDS", "data.stream=true", "data.validation=0"]
    assert recorded(run(altered(words, *more)).folder) == hashes(files)


def test_test_images_that_were_trained_on_are_counted_wherever_they_lie(
    runs: dict[str, Path], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of a folder's images in a table: by the run before and by the run itself, at the terminal and
    on its page."""
    folder, tested = runs["labelled"], sorted(place.rglob("*.png"))[::3]
    in_parquet(tested, tmp_path / "OTHER" / "test")
    in_parquet([tested[0], tested[-1]] * 4, tmp_path / "OTHER" / "train")
    more = [f"data.path={tmp_path}/OTHER", "data.test=test", "data.validation=0"]
    tuned = fine_tune(folder, tmp_path, *more)
    count = len(hashes(tested) & recorded(folder))
    assert count >= 9  # one image was held out
    found = seen_of(tuned)
    assert found["labelled"].of == {"test": 10}
    assert found["labelled"].images == found["labelled"].labels == {"test": count}
    assert found["tuned"].images == found["tuned"].labels == {"test": 2}
    before, own, theirs = told(capsys)
    assert before.lstrip().startswith("warning:") and str(folder) in before
    assert own.startswith("caution ") and "tuned was trained on 2 of 10 test" in own
    assert theirs.startswith("caution ") and "labelled was trained on" in theirs
    page = (tuned / "report.html").read_text()
    assert "About the initial weights: labelled was trained on" in page
    assert ">tuned was trained on 2 of 10 test images" in page


@pytest.mark.parametrize(
    ("name", "images", "labels", "beside"),
    [("apart", 0, 0, []), ("unlabelled", 5, 0, ["seen"]), ("labelled", 5, 5, ["caution"])],
)
def test_fine_tuning_says_which_of_its_images_pre_training_has_seen(
    name: str,
    images: int,
    labels: int,
    beside: list[str],
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """In its first lines, and with its result: there what was seen, not what was not."""
    share = [] if name == "apart" else [APART]  # which follows init=
    found = seen_of(fine_tune(runs[name], tmp_path, *share))[name]
    assert (found.of["test"], found.images["test"], found.labels["test"]) == (5, images, labels)
    printed, *others = told(capsys)
    assert str(runs[name]) in printed
    assert printed.lstrip().startswith("warning:") == (labels > 0)
    assert [one.split()[0] for one in others] == beside


def test_what_stands_beside_a_number_on_images_whose_labels_were_learned(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """At the terminal after the number, and in result.json: of an encoder that is measured on
    images that it was trained on. Not of another, which failed before in the same folder."""
    words = [word for word in PROBE if not word.startswith(("probe.shots", "probe.steps"))]
    own = [f"init={runs['labelled']}", "probe.measures=[knn]", APART]
    words += [*own, f"out={tmp_path}", "name=probed"]
    with pytest.raises(SystemExit):
        cli.evaluate(altered(words, f"init={runs['unlabelled']}", "probe.neighbors=999"))
    cli.evaluate(words)
    number, caution, verdict, _ = capsys.readouterr().out.splitlines()[-4:]
    assert number.lstrip().startswith("k-NN ") and verdict.startswith("verdict ")
    assert caution.startswith("caution ") and "5 test" in caution
    (first,) = seen_of(tmp_path / "probed").values()
    assert (first.of["test"], first.labels["test"]) == (5, 5)


def test_a_run_that_is_gone_does_not_silence_what_is_known_of_those_after_it(
    runs: dict[str, Path], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nor one without a record."""
    first = shutil.copytree(runs["apart"], tmp_path / "first")
    second = run(altered(words, APART, f"init={first}", "name=second")).folder
    (first / TRAINED_ON).write_bytes(b"{}")
    third = run(altered(words, APART, f"init={second}", "name=third")).folder
    shutil.rmtree(first)
    capsys.readouterr()
    fine_tune(second, tmp_path)
    lines = "".join(told(capsys))
    assert f"{second} was trained on none" in lines
    assert f"the images that {first} was trained on are unknown" in lines
    seen = json.loads((third / "environment.json").read_text())["seen"]
    assert [one["run"] for one in seen] == ["second", "first"]
    assert seen[1]["unknown"] == seen_images.NO_RECORD


def test_of_images_that_are_not_measured_nothing_is_told(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A run that is measured on nothing was told to have seen "none of the  images"."""
    capsys.readouterr()
    fine_tune(runs["apart"], tmp_path, "eval.test=false", "data.validation=0")
    assert told(capsys) == []


def test_images_are_counted_as_far_as_they_are_measured(words: list[str], tmp_path: Path) -> None:
    """A training run measures eval.images held-out ones, an evaluation chooses on all that have a
    label; of its test images those without one were counted, too."""
    images(tmp_path, a=20, b=20, _=40)
    words = altered(words, f"data.path={tmp_path}", APART, "data.validation=0.4", "eval.images=4")
    splits = run_splits.load(resolve(words).data, test=True)
    labelled = [len(labelled_images(one)) for one in (splits.validation, splits.test)]
    assert 4 < labelled[0] < len(splits.validation) and 0 < labelled[1] < len(splits.test)
    evaluation = [word for word in words if word.startswith(("data.", "model."))]
    evaluation += ["recipe=evaluate", "init=scratch", "probe.measures=[linear]"]
    for one, counts in (words, [4, len(splits.test)]), (evaluation, labelled):
        parts = seen_images.MeasuredImages(resolve(one), splits).parts
        assert [len(parts[name][1]) for name in ("validation", "test")] == counts


def test_after_a_kill_the_record_has_both_halves(
    words: list[str], place: Path, tmp_path: Path
) -> None:
    """8 images of each step, in the first epoch all different: steps 1 and 2, then 3 and 4."""
    more = shutil.copytree(place, tmp_path / "IMAGES")
    put(more / "c", 2)
    words = altered(words, f"data.path={more}", "optim.steps=4", "data.validation=0")
    before = recorded(cut_off(words, 3))
    assert len(before) == 16  # of the checkpoint of step 2
    after = recorded(run(words).folder)
    assert before < after == hashes(more.rglob("*.png")) and len(after) == 32


def test_a_run_whose_record_was_lost_says_that_not_all_is_known(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = altered(words, APART)
    (cut_off(words, 5) / TRAINED_ON).unlink()
    folder = run(words).folder
    assert not seen_images.read(folder).complete
    capsys.readouterr()
    fine_tune(folder, tmp_path)
    line = f"the images that {folder} was trained on are unknown ({seen_images.FIRST_STEPS})"
    assert any(line in one for one in told(capsys))


def test_beyond_the_limit_images_are_not_recorded_and_that_is_said(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_images, "LIMIT", 20)
    folder = run(altered(words, *SUPERVISED, "data.validation=0")).folder
    record = seen_images.read(folder)
    assert len(record.images) == len(record.labels) == 20 and not record.complete
    assert (folder / "log.txt").read_text().count("Evaluations cannot recognise") == 1
    found = seen_of(fine_tune(folder, tmp_path, "data.test=0.5"))["run"]
    assert 0 < found.images["test"] < 15 and "after 20 images" in found.unknown


def test_two_processes_record_what_both_have_trained_on(words: list[str]) -> None:
    """Each sees half of the 16 images of two steps, in the first epoch all different."""
    more = ["optim.steps=2", "checkpoint.every=1", "data.validation=0.2"]
    one = run(altered(words, *more, "name=one", "compute.batch=8")).folder
    two = altered(words, *more, "name=two", "compute.batch=4")
    codes, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *two))
    assert codes == [0, 0], outputs
    assert recorded(one.parent / "two") == recorded(one) and len(recorded(one)) == 16


@pytest.mark.parametrize(("count", "warns"), [(1, False), (2, True)])
def test_a_few_copies_are_not_warned_of(
    count: int, warns: bool, runs: dict[str, Path], tmp_path: Path
) -> None:
    """One in 1,000 changes an accuracy by 0.1 points at most."""
    folder = shutil.copytree(runs["labelled"], tmp_path / "run")
    seen = {"run": "r", "of": {"test": 1000}, "images": {"test": count}, "labels": {"test": count}}
    (folder / "result.json").write_text(json.dumps(result(folder) | {"seen": [seen]}))
    ssl_vit.report(folder)
    page = (folder / "report.html").read_text()
    assert ("do not hold for unseen images" in page) == warns
