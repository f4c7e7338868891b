"""What tells one set of images from another: all of a small set, the names, the sizes and a sample
of a large one."""

import shutil
from pathlib import Path

import datasets
import pytest

from helpers.images import NAMED, png, tar
from helpers.sources import load
from helpers.tables import cells, parquet
from ssl_vit.data import fingerprints, run_splits
from ssl_vit.recipe.schema import Data

LABELS = [0, 1, 0, 1, 0, 1]


def write(kind: str, root: Path, numbers: range | list[int], labels: list[int]) -> None:
    """Images with these labels. Files in the order from the last: it must not matter."""
    each = list(enumerate(zip(numbers, labels, strict=True)))
    if kind == "parquet":
        columns = {"image": cells(numbers), "label": labels}
        parquet(root / "train.parquet", columns, NAMED)
    elif kind == "tar":
        named = [((f"{i}.png", png(n)), (f"{i}.cls", b"%d" % label)) for i, (n, label) in each]
        tar(root / "train.tar", [member for two in named for member in two])
    for i, (n, label) in reversed(each) if kind == "folder" else ():
        path = root / "train" / ("ant", "bee")[label] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(n))


def of(root: Path, **more: object) -> dict[str, str]:
    found = load(root, **{"validation": 0.3} | more)
    return fingerprints.fingerprint_splits(found, str(root))


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_each_image_and_label_of_a_small_set_counts_but_not_where_they_lie(
    tmp_path: Path, kind: str
) -> None:
    def made(name: str, numbers: range | list[int], labels: list[int] = LABELS) -> dict[str, str]:
        write(kind, tmp_path / name, numbers, labels)
        return of(tmp_path / name)

    known = made("here", range(6))
    assert len(set(known.values())) == 1, "what is held out is cut off the same split"
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "copy")
    assert of(tmp_path / "there" / "copy") == known == made("again", range(6))
    assert of(tmp_path / "here", share=0.5) == known
    others = [
        made("image", [0, 1, 2, 3, 4, 99]),
        made("label", range(6), [1, *LABELS[1:]]),
        made("more", range(7), [*LABELS, 0]),
        made("order", [2, 1, 0, 3, 4, 5]),
    ]
    assert len({tuple(one.values()) for one in [known, *others]}) == 5


def test_the_names_of_classes_count(tmp_path: Path) -> None:
    for names in (["ant", "bee"], ["bee", "ant"]):
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=names))
        columns = {"image": cells(range(4)), "label": [0, 1, 0, 1]}
        parquet(tmp_path / names[0] / "train.parquet", columns, features)
    assert of(tmp_path / "ant") != of(tmp_path / "bee")


COUNT, BYTES = 30, 100


def folder(root: Path, changed: dict[int, bytes] | None = None) -> Path:
    """COUNT files of BYTES bytes that nothing decodes; some of them others."""
    for i in range(COUNT):
        path = root / "train" / ("ant", "bee")[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((changed or {}).get(i, bytes([i] * BYTES)))
    return root


def test_of_a_large_set_every_size_and_name_counts_and_a_sample_of_the_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a byte more changes the sizes alone, not of how many files the contents are read
    monkeypatch.setattr(fingerprints, "MOST_BYTES", COUNT * BYTES // 3 + 50)
    known = of(folder(tmp_path / "known"))
    shutil.copytree(tmp_path / "known", tmp_path / "moved" / "away")
    assert of(tmp_path / "moved" / "away") == known
    for i in (0, 1, 2, 15, 29):  # one byte more, wherever
        assert of(folder(tmp_path / f"longer{i}", {i: bytes(BYTES + 1)})) != known
    other = {i: bytes([99] * BYTES) for i in range(6)}
    noticed = [of(folder(tmp_path / f"other{i}", {i: other[i]})) != known for i in range(6)]
    # ants, then bees
    rows = [int(path.stem) for path in sorted((tmp_path / "known" / "train").rglob("*.png"))]
    assert noticed == [rows.index(i) % 3 == 0 for i in range(6)], "every third row is read"
    ants = tmp_path / "known" / "train" / "ant"
    (ants / "004.png").rename(ants / "005.png")
    assert of(tmp_path / "known") != known


def test_a_streams_first_images_and_all_its_files_count(tmp_path: Path) -> None:
    for i, count in enumerate((2040, 4, 7, 5)):
        images = [{"bytes": b"%d" % (n + 10_000 * i), "path": None} for n in range(count)]
        columns = {"image": images, "label": [0] * count}
        parquet(tmp_path / "here" / f"train-{i}.parquet", columns, NAMED)

    def prints(root: Path, first: int = 2048) -> dict[str, str]:
        data = Data(name="own", path=str(root), stream=True, validation=0.0)
        return fingerprints.fingerprint_splits(run_splits.load(data, first=first), data.path)

    known = prints(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert prints(tmp_path / "there") == known
    assert known == prints(tmp_path / "here", first=2056), "how many are looked at is no matter"
    (tmp_path / "there" / "notes.txt").write_text("no image")
    assert prints(tmp_path / "there") == known
    parquet(tmp_path / "there" / "train-4.parquet", {"image": cells([99]), "label": [0]}, NAMED)
    assert prints(tmp_path / "there") != known


def test_a_streams_files_count_also_behind_links(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far")
    file = tmp_path / "far" / "1.parquet"
    file.parent.mkdir()
    for content in (b"12", b"123"):
        file.write_bytes(content)
        assert fingerprints._listed(tmp_path / "here") == f"link/1.parquet {len(content)}"


def test_the_embedded_set_is_sampled() -> None:
    def of_shapes(size: int) -> dict[str, str]:
        return fingerprints.fingerprint_splits(run_splits.load(Data(size=size)))

    assert of_shapes(16) == of_shapes(16) != of_shapes(32)
