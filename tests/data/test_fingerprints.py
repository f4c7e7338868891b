"""What tells one set of images from another: all of a small set, the names, the sizes and a sample
of a large one."""

import shutil
from pathlib import Path

import numpy as np

from helpers.images import NAMED
from helpers.tables import cells, parquet
from ssl_vit.data import fingerprints, sources, streaming
from ssl_vit.recipe.schema import Data

COUNT, BYTES = 300, 1000


def folder(root: Path, changed: dict[int, bytes] | None = None) -> Path:
    """COUNT files of BYTES bytes that nothing decodes; some of them others. Written backwards: the
    order must not matter."""
    for i in reversed(range(COUNT)):
        path = root / "train" / ("ant", "bee")[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((changed or {}).get(i, np.random.default_rng(i).bytes(BYTES)))
    return root


def of(root: Path, **more: object) -> dict[str, str]:
    data = Data(name="own", path=str(root), **more)  # type: ignore[arg-type]
    return fingerprints.fingerprint_splits(sources.load(data), data.path)


def test_each_image_of_a_small_set_counts(tmp_path: Path) -> None:
    known = of(folder(tmp_path / "known"))
    assert len(set(known.values())) == 1, "what is held out is cut off the same split"
    for i in (0, 1, 150, 299):
        assert of(folder(tmp_path / str(i), {i: bytes(BYTES)})) != known
    shutil.copytree(tmp_path / "known", tmp_path / "moved" / "away")
    assert of(tmp_path / "moved" / "away") == known == of(tmp_path / "known", share=0.5)


def test_of_a_large_set_every_size_and_name_counts_and_a_sample_of_the_contents(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(fingerprints, "WHOLE", COUNT * BYTES // 3)
    known = of(folder(tmp_path / "known"))
    shutil.copytree(tmp_path / "known", tmp_path / "moved" / "away")
    assert of(tmp_path / "moved" / "away") == known
    for i in (0, 1, 2, 150, 299):  # one byte more, wherever
        assert of(folder(tmp_path / f"longer{i}", {i: bytes(BYTES + 1)})) != known
    noticed = [of(folder(tmp_path / f"other{i}", {i: bytes(BYTES)})) != known for i in range(6)]
    # ants, then bees
    rows = [int(path.stem) for path in sorted((tmp_path / "known" / "train").rglob("*.png"))]
    assert noticed == [rows.index(i) % 3 == 0 for i in range(6)], "every third row is read"
    (tmp_path / "known" / "train" / "ant" / "004.png").rename(
        tmp_path / "known" / "train" / "ant" / "005.png"
    )
    assert of(tmp_path / "known") != known


def test_every_row_of_parquet_files_counts(tmp_path: Path) -> None:
    def write(name: str, numbers: list[int]) -> dict[str, str]:
        place = tmp_path / name / "train.parquet"
        place.parent.mkdir()
        parquet(
            place, {"image": cells(numbers), "label": [n % 2 for n in range(len(numbers))]}, NAMED
        )
        return of(place.parent, validation=0.3)

    known = write("known", list(range(40)))
    assert write("same", list(range(40))) == known
    for i in (0, 7, 39):
        assert write(f"other{i}", [*range(i), 77, *range(i + 1, 40)]) != known


def test_a_streams_first_images_and_all_its_files_count(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "PREVIEW", 10)
    for i, count in enumerate((9, 4, 7, 5)):
        place = tmp_path / "here" / f"train-{i}.parquet"
        place.parent.mkdir(exist_ok=True)
        parquet(place, {"image": cells(range(10 * i, 10 * i + count)), "label": [0] * count}, NAMED)

    def prints(root: Path, first: int = 10) -> dict[str, str]:
        data = Data(name="own", path=str(root), stream=True, validation=0.0)
        return fingerprints.fingerprint_splits(sources.load(data, first=first), data.path)

    known = prints(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert prints(tmp_path / "there") == known
    assert known == prints(tmp_path / "here", first=20), "how many are looked at is no matter"
    with (tmp_path / "there" / "train-3.parquet").open("ab") as file:
        file.write(b" ")
    assert fingerprints._listed(tmp_path / "there") != fingerprints._listed(tmp_path / "here")
    (tmp_path / "there" / "notes.txt").write_text("no image")
    shutil.copyfile(tmp_path / "here" / "train-3.parquet", tmp_path / "there" / "train-3.parquet")
    assert prints(tmp_path / "there") == known


def test_the_embedded_set_is_sampled() -> None:
    assert of_shapes(16) == of_shapes(16) != of_shapes(32)


def of_shapes(size: int) -> dict[str, str]:
    return fingerprints.fingerprint_splits(sources.load(Data(size=size)))


def test_a_streams_files_count_also_behind_links(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far")
    file = tmp_path / "far" / "1.parquet"
    file.parent.mkdir()
    file.write_bytes(b"12")
    before = fingerprints._listed(tmp_path / "here")
    assert before == "link/1.parquet 2"
    file.write_bytes(b"123")
    assert fingerprints._listed(tmp_path / "here") == "link/1.parquet 3"
