"""tools/embed.py: what the files hold, resuming, several processes, queries, what is refused."""

import base64
import html
import io
import itertools
import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image

import ssl_vit
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.images import NAMED, png
from helpers.launching import launch, launch_ranks, outcome
from helpers.options import altered
from ssl_vit.evaluation import embedding

ALIKE = ["compute.threads=1", "compute.batch=4", "compute.precision=float32"]
BROKEN = "train/a/3.png"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten training images, of which one cannot be read, and three test images, 16 px high: the
    export's preprocessing crops them and does not resize."""
    folder = tmp_path_factory.mktemp("images")
    counts = ("train", "a", 5), ("train", "b", 5), ("test", "a", 2), ("test", "b", 1)
    for split, name, count in counts:
        (folder / split / name).mkdir(parents=True)
        for number in range(count):
            seed = [len(split), ord(name), number]
            noise = np.random.default_rng(seed).integers(0, 256, (16, 18, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / split / name / f"{number}.png")
    (folder / BROKEN).write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_timm(tmp_path_factory.mktemp("export"))


def options(export: Path, images: Path, out: Path) -> list[str]:
    place = [f"init={export}", f"data.path={images}", f"out={out}", "name=f"]
    return [*place, "rows=3", "data.unreadable=1", *ALIKE]


@pytest.fixture
def words(export: Path, images: Path, tmp_path: Path) -> list[str]:
    return options(export, images, tmp_path)


@pytest.fixture(scope="module")
def whole(export: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a call that nothing interrupted."""
    return ssl_vit.embed(options(export, images, tmp_path_factory.mktemp("whole"))).folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, where `words` look for it."""
    return shutil.copytree(whole, tmp_path / "f")


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.iterdir() if path.name not in ("lock", "embed.json"))
    return {path.name: path.read_bytes() for path in paths}


def record(folder: Path) -> dict:
    return json.loads((folder / "embed.json").read_text())


def column(folder: Path, split: str, name: str) -> list:
    return pq.read_table(sorted(folder.glob(f"{split}-*.parquet"))).column(name).to_pylist()


def by_timm(export: Path, images: Path, files: list[str], **settings) -> torch.Tensor:
    """timm's own features after its own preprocessing of the export."""
    model = timm.create_model(f"local-dir:{export}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    pixels = torch.stack([transform(Image.open(images / name).convert("RGB")) for name in files])
    with torch.no_grad():
        if not settings:
            return model.forward_features(pixels)
        settings |= {"intermediates_only": True, "output_fmt": "NLC"}
        return model.forward_intermediates(pixels, **settings)[0]


def test_every_image_that_can_be_read_has_a_row_and_the_others_are_named(
    whole: Path, images: Path
) -> None:
    assert column(whole, "train", "index") == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    files = [f"train/{name}/{number}.png" for name in "ab" for number in range(5)]
    assert column(whole, "train", "file") == [file for file in files if file != BROKEN]
    assert column(whole, "train", "label") == [0] * 4 + [1] * 5
    assert column(whole, "test", "label") == [0, 0, 1]
    shards = sorted(contents(whole))
    of_train = [f"train-0000{number}-of-00004.parquet" for number in range(4)]
    assert shards == ["test-00000-of-00001.parquet", *of_train]
    assert (
        f"{images}/{BROKEN}".encode() in pq.read_schema(whole / shards[2]).metadata[b"unreadable"]
    )
    read = datasets.load_dataset("parquet", data_files=str(whole / "test*.parquet"), split="train")
    assert read.features["label"].names == record(whole)["label_names"] == ["a", "b"]


def test_features_are_those_of_timm_with_the_export_s_preprocessing(
    whole: Path, export: Path, images: Path
) -> None:
    token_BTD = by_timm(export, images, column(whole, "train", "file"))
    x_BD = np.array(column(whole, "train", "embedding"), np.float32)
    kind = pq.read_schema(whole / "test-00000-of-00001.parquet").field("embedding").type
    assert kind.value_type == pyarrow.float32()
    np.testing.assert_allclose(x_BD, token_BTD[:, 0].numpy(), atol=1e-5)


def test_layers_and_patches(words: list[str], export: Path, images: Path) -> None:
    """After block 1, without the norm; the mean of the patches is that of their features."""
    more = ["split=test", "probe.layer=1", "probe.pool=avg", "patches=true"]
    made = ssl_vit.embed([*words, *more]).folder
    files = column(made, "test", "file")
    h_BND = by_timm(export, images, files, indices=[0], norm=False).numpy()
    patches = np.array(column(made, "test", "patches"), np.float32)
    assert patches.shape == (3, 16, 32)
    np.testing.assert_allclose(patches, h_BND, atol=1e-5)
    np.testing.assert_allclose(column(made, "test", "embedding"), h_BND.mean(1), atol=1e-5)


def test_killed_and_resumed_on_two_processes_it_is_what_one_process_writes(
    words: list[str], whole: Path, tmp_path: Path
) -> None:
    command = ["tools/embed.py", *words]
    killed = launch(*command)
    for line in killed.stdout:
        if line.startswith("shard "):
            killed.send_signal(signal.SIGKILL)
            break
    killed.communicate(60)
    folder, last = tmp_path / "f", "train-00003-of-00004.parquet"

    def written() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}

    before = written()
    assert before
    if before.keys() == contents(whole).keys():  # it was faster than the signal
        folder.joinpath(last).unlink()
        del before[last]
    (folder / f".{last}.1").write_bytes(b"torn")
    statuses, outputs = outcome(launch_ranks(2, *command))
    assert statuses == [0, 0], outputs
    assert contents(folder) == contents(whole) and record(folder) == record(whole)
    assert before.items() <= written().items()
    assert outputs[0].count("left out: ") == 1  # also where an earlier start met the image


def test_a_shard_that_is_not_the_one_that_was_written_is_not_finished(
    words: list[str], folder: Path
) -> None:
    """Also after a call for another split alone, which keeps the record of this one."""
    before = record(folder)
    ssl_vit.embed([*words, "split=test"])
    assert record(folder) == before
    shard, other = (folder / f"train-{name}-of-00004.parquet" for name in ("00001", "00002"))
    written = shard.read_bytes()
    flipped = bytearray(written)
    flipped[len(written) // 2] ^= 1
    for content in (flipped, written[:-9], other.read_bytes()):
        shard.write_bytes(content)
        assert re.search(rf"{shard}: .*changed", refused(ssl_vit.embed, words))
        assert shard.read_bytes() == content
    shard.unlink()
    ssl_vit.embed(words)
    assert shard.read_bytes() == written


def test_names_of_files_reach_the_terminal_without_control_characters(
    words: list[str], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """And what lies beside images is named."""
    data = shutil.copytree(images, tmp_path / "images")
    np.save(data / "train" / "a" / "9.npy", np.zeros((16, 16, 3), np.uint8))
    for name in ("train/a/0.png", BROKEN):
        (data / name).rename(data / name.replace("a/", "a/\x1b[31m\x07"))
    query = images / "train" / "a" / "0.png"
    ssl_vit.embed(altered(words, f"data.path={data}", f"query={query}", "top=1"))
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(printed)
    assert "an image is left out: " in printed and ".npy" in printed
    assert "1.0000 train/a/\ufffd[31m\ufffd0.png\n" in printed


def cosine(a_D: np.ndarray, b_D: np.ndarray) -> float:
    return float(a_D @ b_D / np.sqrt((a_D @ a_D) * (b_D @ b_D)))


def by_cosine(folder: Path, query: str) -> dict[str, float]:
    """{file: cosine} of all images but the query, best first."""
    rows = {
        file: np.array(x_D)
        for split in ("test", "train")
        for file, x_D in zip(
            column(folder, split, "file"), column(folder, split, "embedding"), strict=True
        )
    }
    found = {file: cosine(rows[query], x_D) for file, x_D in rows.items() if file != query}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def shown_thumbnails(page: str) -> list[tuple[str, Image.Image]]:
    """The link and the picture of each thumbnail."""
    found = re.findall(r'<a href="([^"]+)"><img src="data:image/png;base64,([^"]+)"', page)
    return [(href, Image.open(io.BytesIO(base64.b64decode(png)))) for href, png in found]


def test_the_nearest_images_are_those_of_the_highest_cosine(
    words: list[str], folder: Path, images: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of two queries, one by its path and one as its file is named; neither is its own answer."""
    queries = {
        str(images / "train" / "b" / "2.png"): "train/b/2.png",
        "test/a/1.png": "test/a/1.png",
    }
    made = ssl_vit.embed([*words, f"query={','.join(queries)}", "top=3"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.strip() for line in lines if re.match(r" +\d\.\d{4} ", line)]
    expected, texts = [], []
    for query, file in queries.items():
        found = by_cosine(folder, file)
        best = list(found)[:3]
        assert [one.file for one in made.nearest if one.query == query] == best
        expected += [file, *best]
        texts += [f"{found[one]:.4f} {one}" for one in best]
    assert listed == texts
    page = (folder / "nearest.html").read_text()
    assert "12 images (1 more " in page and "of 13 images" not in page
    shown = shown_thumbnails(page)
    assert [href for href, _ in shown] == [(images / file).as_uri() for file in expected]
    for (_, thumbnail), file in zip(shown, expected, strict=True):
        image = Image.open(images / file).convert("RGB")
        assert image.width <= thumbnail.width <= 256
        small = thumbnail.resize(image.size, Image.Resampling.NEAREST)
        assert small.tobytes() == image.tobytes()
    assert not re.findall(r"(?:src|href)=.(?!data:|#|file:///)", page)


def test_a_copy_of_the_query_is_an_answer_and_names_are_escaped_in_links(
    words: list[str], images: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(images, tmp_path / "images")
    shutil.copy(place / "train" / "a" / "0.png", place / "train" / "a" / 'a "b" #1?.png')
    made = ssl_vit.embed(altered(words, f"data.path={place}", "query=train/a/0.png", "top=1"))
    assert [one.file for one in made.nearest] == ['train/a/a "b" #1?.png']
    assert made.nearest[0].similarity == pytest.approx(1, abs=1e-5)
    page = (made.folder / "nearest.html").read_text()
    assert f'href="{place.as_uri()}/train/a/a%20%22b%22%20%231%3F.png"' in page


def test_a_query_in_memory_is_answered_like_the_same_image_in_a_file(
    words: list[str], images: Path, tmp_path: Path
) -> None:
    """A PIL image, an array and a tensor, one or a list, also of paths; each in its kind."""
    noise = np.random.default_rng(5).integers(0, 256, (16, 18, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "file.png")
    grey = Image.fromarray(noise[..., 0])
    grey.save(tmp_path / "grey.png")
    kinds = (Image.fromarray(noise), noise, torch.from_numpy(noise).permute(2, 0, 1))
    by_file, by_grey = (
        ssl_vit.embed(words, query=tmp_path / name, top=3) for name in ("file.png", "grey.png")
    )
    made = ssl_vit.embed(words, query=[*kinds, grey, tmp_path / "file.png"], top=3)

    def plain(nearest: list[embedding.Neighbor]) -> list[tuple[Any, ...]]:
        """Round, because the similarities of several queries are a product of matrices."""
        return [(round(one.similarity, 5), one.split, one.file, one.label) for one in nearest]

    expected = [*plain(by_file.nearest) * 3, *plain(by_grey.nearest), *plain(by_file.nearest)]
    assert plain(made.nearest) == expected
    stored = {one.query for one in made.nearest[:9]}
    assert len(stored) == 1 and np.array_equal(np.array(Image.open(*stored)), noise)
    alone = ssl_vit.embed(words, query=noise, top=3).nearest
    assert [one._replace(query=by_file.nearest[0].query) for one in alone] == by_file.nearest
    for wrong, says in ((noise[None], r"the shape \(1, 16, 18, 3\)"), ([noise, 3], "int64")):
        with pytest.raises(ssl_vit.UserError, match=rf"^query=: an image has .*{says}"):
            ssl_vit.embed(words, query=wrong)


def test_a_notebook_shows_the_answers_of_this_call(
    words: list[str], images: Path, capsys: pytest.CaptureFixture
) -> None:
    made = ssl_vit.embed(words, query=images / "train" / "b" / "2.png", top=3)
    later = ssl_vit.embed(words, query=images / "test" / "a" / "1.png", top=2)
    for result, count in ((made, 4), (later, 3)):
        shown = result._repr_html_()
        page = html.unescape(shown.partition('srcdoc="')[2].partition('"')[0])
        assert len(shown_thumbnails(page)) == count and page == result.page
    assert ssl_vit.embed(words)._repr_html_() is None


@pytest.mark.parametrize("sampled", [2000, 5])
def test_the_similarity_of_any_two_images_is_measured(
    sampled: int,
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Over all pairs; of a sample over those of the images that were drawn."""
    monkeypatch.setattr(embedding, "SAMPLED", sampled)
    ssl_vit.embed([*words, "query=test/a/0.png", "top=1"])
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("any two"))
    mean, high = map(float, re.findall(r"0\.\d+", line))
    if sampled == 5:
        assert re.search("all pairs of [45] of 12 images", line) and mean < high < 1
        return
    rows = itertools.chain(*(column(folder, split, "embedding") for split in ("train", "test")))
    all_pairs = [cosine(a, b) for a, b in itertools.combinations(map(np.array, rows), 2)]
    assert "all pairs of 12 images" in line
    assert mean == pytest.approx(np.mean(all_pairs), abs=1e-4)
    assert high == pytest.approx(np.quantile(all_pairs, 0.99), abs=1e-4)


def test_the_command_that_compares_embeds_fresh_weights_of_the_same_model(
    words: list[str], export: Path, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    """With the encoder's size, normalisation, pooling and images."""
    ssl_vit.embed([*words, "query=[test/a/0.png,test/b/0.png]"])
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("compare"))
    typed = shlex.split(line.removeprefix("compare"))
    assert f"init=scratch,{export}" in typed
    made = ssl_vit.embed([word for word in typed if "=" in word])
    assert made.folder != folder and len(made.nearest) == 10
    then, now = record(folder), record(made.folder)
    differ = {key for key in then["settings"] if then["settings"][key] != now["settings"][key]}
    assert differ == {"init", "model_args"} and then["splits"] == now["splits"]
    output = capsys.readouterr().out
    assert "untrained weights of seed 0" in output and "compare     " not in output


@pytest.mark.parametrize("size", [16, 32])
def test_scratch_beside_a_run_is_what_the_run_began_with(
    size: int, still: Path, tmp_path: Path
) -> None:
    """Its model, images, pooling and weights: the run's own features, as its steps learn nothing.
    At another image size they were other draws, as positions are drawn first."""
    rows = []
    for init in (str(still), f"scratch,{still}"):
        own = [f"init={init}", f"data.size={size}", f"out={tmp_path}"]
        made = ssl_vit.embed([*own, "split=test"])
        rows.append(np.array(column(made.folder, "test", "embedding")))
    np.testing.assert_allclose(*rows, atol=1e-5)


def test_where_no_split_is_a_tests_the_validation_split_is(
    export: Path, images: Path, tmp_path: Path
) -> None:
    """As for runs: split=test was refused of train/ and val/."""
    place = tmp_path / "images"
    shutil.copytree(images / "train", place / "train")
    words = [*options(export, place, tmp_path), "split=test"]
    assert "split=test: " in refused(ssl_vit.embed, words)
    for name in ("val", "eval"):
        shutil.copytree(images / "test", place / name)
        folder = ssl_vit.embed(altered(words, f"name={name}")).folder
        assert [path.name.split("-")[0] for path in folder.glob("*.parquet")] == [name]


def test_files_keep_their_paths_without_labels_and_in_shares(
    words: list[str], images: Path, tmp_path: Path
) -> None:
    """Of a share a row is that of the whole: its label is that of its folder."""
    place = shutil.copytree(images / "train", tmp_path / "images")
    (place / "a" / "3.png").unlink()
    given = altered(words, f"data.path={place}", "data.test=0.4")
    there = sorted(str(path.relative_to(place)) for path in place.rglob("*.png"))
    for more in (["name=labels"], ["name=none", "data.labels=false"]):
        folder = ssl_vit.embed(altered(given, *more)).folder
        train, test = (column(folder, split, "file") for split in ("train", "test"))
        assert test and sorted(train + test) == there
        labels = ["ab".index(file[0]) for file in train]
        assert column(folder, "train", "label") == (
            labels if len(more) == 1 else [None] * len(train)
        )


ITS_PIXELS = [
    *("model=vit_n8", "data.size=16", "data.eval_crop=1"),
    *("data.mean=[0.4,0.4,0.4]", "data.std=[0.2,0.2,0.2]"),
]
REFUSED = {
    "no encoder": (["init="], "init= is missing"),
    "another layer": (["probe.layer=1"], "probe.layer=1: "),
    "another pooling": (["probe.pool=avg"], "probe.pool=avg: "),
    "other shards": (["rows=4"], "rows=4: "),
    "other weights": (["init=scratch", *ITS_PIXELS], "init=scratch: "),
    "no such split": (["split=tset"], "did you mean test?"),
    "top alone": (["top=3"], "top=3: "),
    "no query": (["query=/no/such.png"], "query=/no/such.png: "),
    "a training key": (["optim.steps=3"], "optim.steps=3: "),
    "a model that is described": (["model=vit_n8"], "model=vit_n8: "),
    "no room for bad images": (["data.unreadable=0"], "data.unreadable=0.0: 1 of "),
}


@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_suit_is_refused_in_one_line(
    words: list[str], folder: Path, changes: list[str], says: str
) -> None:
    """Nothing of the folder is touched."""
    given = [word for word in altered(words, *changes) if word != "init="]
    before = contents(folder)
    assert says in refused(ssl_vit.embed, given)
    assert contents(folder) == before


def test_other_images_and_folders_of_others_are_refused(
    words: list[str], folder: Path, images: Path, tmp_path: Path
) -> None:
    """Nothing of theirs is removed, nor is it said to be."""
    other = shutil.copytree(images, tmp_path / "other")
    shutil.copy(images / "test" / "a" / "0.png", other / "test" / "a" / "1.png")
    changed = altered(words, f"data.path={other}", "split=test")
    assert "other images of split test" in refused(ssl_vit.embed, changed)
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("mine.txt", ".train-00000-of-00001.parquet.12"):
        (mine / name).write_text("{}")
    assert "name=mine: " in refused(ssl_vit.embed, altered(words, "name=mine"))
    (mine / "embed.json").write_text("{}")
    assert re.search(
        r"embed\.json is damaged .*name=",
        refused(ssl_vit.embed, altered(words, "name=mine")),
    )
    assert len([path for path in mine.iterdir() if path.name != "lock"]) == 3
    assert "is inside data.path=" in refused(ssl_vit.embed, altered(words, f"out={images}"))


def test_splits_whose_classes_differ_are_not_written_under_one_list_of_names(
    export: Path, tmp_path: Path
) -> None:
    """The names of the first split stood for the numbers of all splits."""
    for split, names in (("train", ["ant", "bee"]), ("test", ["bee", "ant"])):
        features = NAMED.copy()
        features["label"] = datasets.ClassLabel(names=names)
        columns = {"image": [{"bytes": png(n), "path": None} for n in (0, 1)], "label": [0, 1]}
        rows = datasets.Dataset.from_dict(columns, features=features)
        rows.to_parquet(str(tmp_path / "images" / f"{split}.parquet"))
    words = options(export, tmp_path / "images", tmp_path)
    assert "bee, ant" in refused(ssl_vit.embed, words)
    ssl_vit.embed([*words, "split=test"])
    assert json.loads((tmp_path / "f" / "embed.json").read_text())["label_names"] == ["bee", "ant"]
