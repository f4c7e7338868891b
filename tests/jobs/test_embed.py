"""tools/embed.py: what the files hold, resuming, several processes, queries, what is refused."""

import base64
import io
import itertools
import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import ssl_vit
from helpers.launching import launch, launch_ranks, outcome
from helpers.options import altered
from helpers.sources import noisy
from ssl_vit.data.open import open_splits
from ssl_vit.errors import UserError
from ssl_vit.evaluation import embedding
from ssl_vit.jobs import feature_folder, nearest_images
from ssl_vit.recipe.schema import Data

ALIKE = ["compute.threads=1", "compute.batch=4", "compute.precision=float32"]
TOLERANT = ["data.unreadable=1"]
BROKEN = "train/a/3.png"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten training images, of which one cannot be read, and three test images, 16 px high: the
    export's preprocessing crops them and does not resize."""
    folder = tmp_path_factory.mktemp("images")
    for split, count in (("train", 5), ("test", 2)):
        for name in "ab":
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                seed = [len(split), ord(name), number]
                noise = np.random.default_rng(seed).integers(0, 256, (16, 18, 3), dtype=np.uint8)
                Image.fromarray(noise).save(folder / split / name / f"{number}.png")
    (folder / "test" / "b" / "1.png").unlink()
    (folder / BROKEN).write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that timm made, with a normalisation of its own."""
    folder = tmp_path_factory.mktemp("export")
    args = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    args |= {"mlp_ratio": 2.0}
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **args)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    cfg = {"input_size": [3, 16, 16], "mean": [0.4] * 3, "std": [0.2] * 3, "crop_pct": 1.0}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "model_args": args}
    (folder / "config.json").write_text(json.dumps(config | {"pretrained_cfg": cfg}))
    return folder


@pytest.fixture
def options(images: Path, export: Path, tmp_path: Path) -> list[str]:
    return [f"init={export}", f"data.path={images}", "rows=3", f"out={tmp_path}", *ALIKE]


@pytest.fixture(scope="module")
def whole(images: Path, export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a call that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    return ssl_vit.embed(
        [f"init={export}", f"data.path={images}", "rows=3", f"out={out}", *ALIKE, *TOLERANT]
    ).folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ("lock", "embed.json")
    }


def table(folder: Path, split: str):
    return pq.read_table(sorted(folder.glob(f"{split}-*.parquet")))


def by_timm(export: Path, images: Path, files: list[str], **settings) -> torch.Tensor:
    """timm's own features after its own preprocessing of the export."""
    model = timm.create_model(f"local-dir:{export}", pretrained=True).eval()
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )
    pixels = torch.stack([transform(Image.open(images / name).convert("RGB")) for name in files])
    with torch.no_grad():
        if settings:
            return model.forward_intermediates(
                pixels, intermediates_only=True, output_fmt="NLC", **settings
            )[0]
        return model.forward_features(pixels)


def test_every_image_that_can_be_read_has_a_row_and_the_others_are_named(
    whole: Path, images: Path
) -> None:
    train = table(whole, "train")
    assert train.column("index").to_pylist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    files = [f"train/{name}/{number}.png" for name in "ab" for number in range(5)]
    assert train.column("file").to_pylist() == [file for file in files if file != BROKEN]
    assert train.column("label").to_pylist() == [0] * 4 + [1] * 5
    assert table(whole, "test").column("label").to_pylist() == [0, 0, 1]
    shards = sorted(contents(whole))
    assert shards[0] == "test-00000-of-00001.parquet"
    assert shards[1:] == [f"train-0000{n}-of-00004.parquet" for n in range(4)]
    (named,) = embedding.summary(whole / shards[2])[1]
    assert f"{images}/{BROKEN}" in named
    import datasets

    read = datasets.load_dataset("parquet", data_files=str(whole / "test*.parquet"), split="train")
    assert read.features["label"].names == ["a", "b"]


def test_features_are_those_of_timm_with_the_export_s_preprocessing(
    whole: Path, export: Path, images: Path
) -> None:
    train = table(whole, "train")
    token_BTD = by_timm(export, images, train.column("file").to_pylist())
    x_BD = np.array(train.column("embedding").to_pylist(), np.float32)
    assert train.schema.field("embedding").type.value_type == pyarrow.float32()
    np.testing.assert_allclose(x_BD, token_BTD[:, 0].numpy(), atol=1e-5)


def test_layers_and_patches(options: list[str], export: Path, images: Path) -> None:
    """After block 1, without the norm; the mean of the patches is that of their features."""
    words = [*options, "split=test", "probe.layer=1", "probe.pool=avg", "patches=true"]
    found = table(ssl_vit.embed([*words, "name=patches"]).folder, "test").to_pydict()
    h_BND = by_timm(export, images, found["file"], indices=[0], norm=False).numpy()
    patches = np.array(found["patches"], np.float32)
    assert patches.shape == (3, 16, 32)
    np.testing.assert_allclose(patches, h_BND, atol=1e-5)
    np.testing.assert_allclose(np.array(found["embedding"]), h_BND.mean(1), atol=1e-5)
    assert found["label"] == [0, 0, 1]


def test_killed_and_resumed_on_two_processes_it_is_what_one_process_writes(
    options: list[str], whole: Path, tmp_path: Path
) -> None:
    command = ["tools/embed.py", *options, "name=f", "data.unreadable=1"]
    killed = launch(*command)
    for line in killed.stdout:
        if line.startswith("shard "):
            killed.send_signal(signal.SIGKILL)
            break
    killed.communicate(60)
    folder = tmp_path / "f"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert before
    (folder / ".train-00003-of-00004.parquet.1").write_bytes(b"torn")
    later = sorted(set(contents(whole)) - set(before))
    if not later:  # it was faster than the signal
        folder.joinpath("train-00003-of-00004.parquet").unlink()
        before.pop("train-00003-of-00004.parquet")
    statuses, outputs = outcome(launch_ranks(2, *command))
    assert statuses == [0, 0], outputs
    assert contents(folder) == contents(whole)
    assert (
        before.items()
        <= {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}.items()
    )
    assert outputs[0].count("left out: ") == 1  # also where an earlier start met the image
    assert json.loads((folder / "embed.json").read_text()) == json.loads(
        (whole / "embed.json").read_text()
    )


def test_only_the_shard_that_is_missing_is_computed(
    options: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "f")
    (tmp_path / "f" / "train-00001-of-00004.parquet").unlink()
    computed = []

    def counted(read, batches, *rest):
        computed.append(True)
        return embedding_of(read, batches, *rest)

    embedding_of = embedding.embed
    monkeypatch.setattr(feature_folder.embedding, "embed", counted)
    assert ssl_vit.embed([*options, "name=f", "data.unreadable=1"]).folder == tmp_path / "f"
    assert len(computed) == 1
    assert contents(tmp_path / "f") == contents(whole)


def test_hashes_of_another_split_stay(options: list[str], tmp_path: Path) -> None:
    """One split after the other; a shard of the first that was altered meanwhile is found."""
    words = [*options, "name=f", *TOLERANT]
    for split in ("train", "test"):
        ssl_vit.embed([*words, f"split={split}"])
    recorded = json.loads((tmp_path / "f" / "embed.json").read_text())["shards"]
    assert {name.partition("-")[0] for name in recorded} == {"train", "test"}
    shard = tmp_path / "f" / "train-00000-of-00004.parquet"
    content = bytearray(shard.read_bytes())
    content[30] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=rf"{shard} is not the file"):
        ssl_vit.embed([*words, "split=train"])


def test_a_damaged_record_beside_files_of_others_is_not_said_to_be_removed(
    options: list[str], tmp_path: Path
) -> None:
    """Nor is a hidden file there."""
    other = tmp_path / "other"
    other.mkdir()
    for name in ("embed.json", "mine.txt", ".train-00000-of-00001.parquet.12"):
        (other / name).write_text("{}")
    with pytest.raises(UserError, match=r"embed\.json is damaged \(.*\); give another name="):
        ssl_vit.embed([*options, "name=other", *TOLERANT])
    assert len(list(other.glob("*.txt"))) == len(list(other.glob(".train*"))) == 1


def test_arrays_beside_an_image_are_named(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = tmp_path / "images"
    place.mkdir()
    Image.new("RGB", (16, 16)).save(place / "logo.png")
    np.save(place / "0.npy", np.zeros((16, 16, 3), np.uint8))
    words = [word for word in options if not word.startswith("data.path=")]
    ssl_vit.embed([*words, f"data.path={place}", "name=f"])
    assert "1 .npy file beside images are left out" in capsys.readouterr().out


def test_nothing_is_finished_where_no_image_can_be_read(options: list[str], tmp_path: Path) -> None:
    """As arrays with the channels first."""
    place = tmp_path / "images"
    place.mkdir()
    for number in range(3):
        np.save(place / f"{number}.npy", np.zeros((3, 16, 16), np.uint8))
    words = [word for word in options if not word.startswith("data.path=")]
    with pytest.raises(UserError, match=r"data\.unreadable=.*: 3 of 3 images cannot be read"):
        ssl_vit.embed([*words, f"data.path={place}", "name=f"])


def test_a_shard_that_is_not_the_one_that_was_written_is_not_finished(
    options: list[str], whole: Path, tmp_path: Path
) -> None:
    words = [*options, "name=f", "data.unreadable=1"]
    shutil.copytree(whole, tmp_path / "f")
    shard, other = (
        tmp_path / "f" / f"train-{name}-of-00004.parquet" for name in ("00001", "00002")
    )
    written = shard.read_bytes()
    flipped = [bytearray(written) for _ in range(3)]
    for part, place in zip(flipped, (30, len(written) // 2, len(written) - 40), strict=True):
        part[place] ^= 1
    for content in (*flipped, written[:-9], other.read_bytes()):
        shard.write_bytes(content)
        with pytest.raises(UserError, match=rf"{shard} is not the file .*; remove it") as caught:
            ssl_vit.embed(words)
        assert "\n" not in str(caught.value) and shard.read_bytes() == content
    shard.unlink()
    ssl_vit.embed(words)
    assert shard.read_bytes() == written


def test_hidden_files_that_are_not_the_tool_s_stay(
    options: list[str], whole: Path, tmp_path: Path
) -> None:
    """In a folder with nothing else, which is taken as a new one, and beside torn files."""
    folder = tmp_path / "f"
    folder.mkdir()
    theirs = [".notes.json.1", ".config.json.bak", ".embed.json.old", ".my.parquet.7", ".git"]
    for name in theirs:
        (folder / name).write_text("mine")
    for torn in (".embed.json.4711", ".train-00000-of-00004.parquet.4711"):
        (folder / torn).symlink_to(tmp_path / "thesis.txt")
    (tmp_path / "thesis.txt").write_text("mine")
    ssl_vit.embed([*options, "name=f", "data.unreadable=1"])
    hidden = {path.name: path.read_text() for path in folder.glob(".*")}
    assert hidden == dict.fromkeys(theirs, "mine")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert contents(folder).keys() - set(theirs) == contents(whole).keys()


def test_names_of_files_reach_the_terminal_without_control_characters(
    options: list[str], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data = tmp_path / "images"
    shutil.copytree(images, data)
    for name in ("train/a/0.png", BROKEN):
        (data / name).rename(data / name.replace("a/", "a/\x1b[31m\x07"))
    words = [word for word in options if not word.startswith("data.path=")]
    query = images / "train" / "a" / "0.png"
    words += [f"data.path={data}", "data.unreadable=1", f"query={query}", "top=1"]
    ssl_vit.embed([*words, "name=f"])
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(printed)
    for line in ("warning: left out: ", "1.0000 train/a/\ufffd[31m\ufffd0.png\n"):
        assert line in printed


def own_rows(folder: Path) -> dict[str, np.ndarray]:
    """{file: feature} of every image of a folder."""
    return {
        file: np.array(x_D)
        for split in ("test", "train")
        for file, x_D in zip(
            table(folder, split).column("file").to_pylist(),
            table(folder, split).column("embedding").to_pylist(),
            strict=True,
        )
    }


def cosine(a_D: np.ndarray, b_D: np.ndarray) -> float:
    return float(a_D @ b_D / np.sqrt((a_D @ a_D) * (b_D @ b_D)))


def by_cosine(folder: Path, query: str) -> dict[str, float]:
    """{file: cosine} of all images but the query, best first."""
    rows = own_rows(folder)
    found = {file: cosine(rows[query], x_D) for file, x_D in rows.items() if file != query}
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def shown_thumbnails(page: str) -> list[tuple[str, Image.Image]]:
    """The link and the picture of each thumbnail."""
    found = re.findall(r'<a href="([^"]+)"><img src="data:image/png;base64,([^"]+)"', page)
    return [(href, Image.open(io.BytesIO(base64.b64decode(png)))) for href, png in found]


def test_the_nearest_images_are_those_of_the_highest_cosine(
    options: list[str],
    whole: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Of two queries, one by its path and one as its file is named; neither is its own answer."""
    shutil.copytree(whole, tmp_path / "f")
    queries = [str(images / "train" / "b" / "2.png"), "test/a/1.png"]
    words = [*options, "name=f", "data.unreadable=1", f"query={','.join(queries)}", "top=3"]
    made = ssl_vit.embed(words)
    *lines, _, last = capsys.readouterr().out.partition("nearest ")[2].splitlines()
    assert last == f"page        {tmp_path}/f/nearest.html"
    listed = [line.strip() for line in lines if re.match(r" +\d\.\d{4} ", line)]
    expected = []
    for query, file in zip(queries, ("train/b/2.png", queries[1]), strict=True):
        found = by_cosine(whole, file)
        best = list(found)[:3]
        expected += [file, *best]
        assert [one.file for one in made.nearest if one.query == query] == best
        texts = [f"{found[one]:.4f} {one}" for one in best]
        assert listed[:3] == texts
        del listed[:3]
    page = (tmp_path / "f" / "nearest.html").read_text()
    for one in made.nearest:
        assert page.count(f"<figcaption>{one.similarity:.4f} {one.file}</figcaption>") == 1
    shown = shown_thumbnails(page)
    assert [href for href, _ in shown] == [(images / file).as_uri() for file in expected]
    for (_, thumbnail), file in zip(shown, expected, strict=True):
        whole_image = Image.open(images / file).convert("RGB")
        assert max(thumbnail.size) <= nearest_images.SIDE
        scale = thumbnail.width // whole_image.width
        small = thumbnail.resize(whole_image.size, Image.Resampling.NEAREST)
        assert scale >= 1 and small.tobytes() == whole_image.tobytes()
    assert not re.findall(r"(?:src|href)=.(?!data:|#|file:///)", page)


def test_a_copy_of_the_query_is_an_answer_and_names_are_escaped_in_links(
    options: list[str], whole: Path, images: Path, tmp_path: Path
) -> None:
    place = tmp_path / "images"
    shutil.copytree(images, place)
    shutil.copy(place / "train" / "a" / "0.png", place / "train" / "a" / 'a "b" #1?.png')
    words = [word for word in options if not word.startswith("data.path=")]
    words += [f"data.path={place}", "query=train/a/0.png", "top=1", *TOLERANT, "name=copy"]
    made = ssl_vit.embed(words)
    assert [one.file for one in made.nearest] == ['train/a/a "b" #1?.png']
    assert made.nearest[0].similarity == pytest.approx(1, abs=1e-5)
    page = (made.folder / "nearest.html").read_text()
    assert f'href="{place.as_uri()}/train/a/a%20%22b%22%20%231%3F.png"' in page


@pytest.mark.parametrize("sampled", [2000, 5])
def test_the_similarity_of_any_two_images_is_measured(
    whole: Path, images: Path, monkeypatch: pytest.MonkeyPatch, sampled: int
) -> None:
    """Over all pairs; of a sample over those of the images that were drawn."""
    monkeypatch.setattr(embedding, "SAMPLED", sampled)
    files = sorted(whole.glob("*.parquet"))  # of 3 rows each, the last of train of 1
    shards = [
        embedding.FeatureShard(file.name.split("-")[0], first, last, file)
        for file, (first, last) in zip(
            files, [(0, 3), (0, 3), (3, 6), (6, 9), (9, 10)], strict=True
        )
    ]
    rows = [embedding.decode(shard.file)[1] for shard in shards]
    splits = open_splits(Data(name="x", path=str(images))).splits
    _, pairs = embedding.search(rows[0][:1], shards, splits, 1)
    assert pairs is not None
    if sampled > 13:
        x_MD = np.concatenate(rows)
        all_pairs = [cosine(a, b) for a, b in itertools.combinations(x_MD, 2)]
        assert pairs.images == 12
        assert pairs.mean == pytest.approx(np.mean(all_pairs), abs=1e-6)
        assert pairs.high == pytest.approx(np.quantile(all_pairs, 0.99), abs=1e-6)
    else:
        assert pairs.images in (4, 5) and pairs.mean < pairs.high < 1


def test_the_command_that_compares_embeds_fresh_weights_of_the_same_model(
    options: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """With the encoder's size, normalisation, pooling and images."""
    shutil.copytree(whole, tmp_path / "f")
    ssl_vit.embed([*options, "name=f", *TOLERANT, "query=[test/a/0.png,test/b/0.png]"])
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("compare"))
    typed = shlex.split(line.removeprefix("compare"))
    assert f"init=scratch,{options[0].removeprefix('init=')}" in typed
    made = ssl_vit.embed(typed[typed.index("tools/embed.py") + 1 :])
    assert made.folder != tmp_path / "f" and len(made.nearest) == 10
    then, now = (json.loads((at / "embed.json").read_text()) for at in (whole, made.folder))
    differ = {key for key in then["settings"] if then["settings"][key] != now["settings"][key]}
    assert differ == {"init", "model_args"} and then["splits"] == now["splits"]
    output = capsys.readouterr().out
    assert "fresh weights of seed 0" in output and "compare     " not in output


def test_scratch_beside_a_run_is_what_the_run_began_with(tmp_path: Path, tiny: list[str]) -> None:
    """Its model, images, pooling and weights: the run's own features after steps that learn
    nothing."""
    still = ["optim.lr=1e-12", "optim.steps=3", "seed=5", "model.positions=sincos_2d"]
    folder = ssl_vit.pretrain([*altered(tiny, *still), "name=run"]).folder
    both = [
        ssl_vit.embed(f"init={init} split=validation out={tmp_path} rows=10000")
        for init in (str(folder), f"scratch,{folder}")
    ]
    rows = [
        np.array(table(one.folder, "validation").column("embedding").to_pylist()) for one in both
    ]
    np.testing.assert_allclose(*rows, atol=1e-5)


def test_scratch_without_images_names_those_that_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["init=scratch", *ITS_PIXELS, f"out={tmp_path}", "query=/no/such.png"]
    with pytest.raises(UserError, match=r"query=/no/such\.png: "):
        ssl_vit.embed(words)
    assert (
        "warning: init=scratch: no images are named; data=shapes is used" in capsys.readouterr().out
    )


def test_files_keep_their_paths_without_labels_and_in_shares(
    options: list[str], images: Path, tmp_path: Path
) -> None:
    """Of a share a row is that of the whole: its label is that of its folder."""
    place = tmp_path / "images"
    shutil.copytree(images / "train", place)
    (place / "a" / "3.png").unlink()
    words = [word for word in options if not word.startswith("data.path=")]
    words += [f"data.path={place}", "data.test=0.4"]
    for name, more in (("labels", []), ("none", ["data.labels=false"])):
        folder = ssl_vit.embed([*words, *more, f"name={name}"]).folder
        files = [table(folder, split).column("file").to_pylist() for split in ("train", "test")]
        assert files[1]  # which, say their names
        assert sorted(files[0] + files[1]) == sorted(
            str(p.relative_to(place)) for p in place.rglob("*.png")
        )
        if not more:
            labels = table(folder, "train").column("label").to_pylist()
            assert labels == ["ab".index(file[0]) for file in files[0]]


@pytest.mark.parametrize(
    ("similarity", "said"),
    [
        ((0.95, 0.91), ""),
        ((0.95, 0.9), "1 exceeds 0.9000, which 1% of pairs of images at random exceed; the others"),
        ((0.9, 0.5), "none exceeds 0.9000, which 1% of pairs of images at random exceed; they"),
    ],
)
def test_images_no_nearer_than_random_pairs_are_said_to_be(
    similarity: tuple[float, float], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    query = nearest_images.Query("q.png", Path("q.png"), torch.zeros(3, 8, 8, dtype=torch.uint8))
    found = [
        embedding.Neighbor(one, "train", i, f"{i}.png", -1) for i, one in enumerate(similarity)
    ]
    for pairs in (embedding.PairSimilarity(0.3, 0.9, 9), None):  # None of a single image
        among = nearest_images.Gathered({"train": noisy(9)}, Data(size=8), pairs, "features", "")
        nearest_images.show([(query, found)], among, tmp_path)
        printed, page = capsys.readouterr().out, (tmp_path / nearest_images.PAGE).read_text()
        wanted = bool(said) and pairs is not None
        assert ("no nearer than images at random" in printed) == wanted
        assert ("no nearer than images at random" in page) == wanted
        if wanted:
            text = f"f these 2 images {said} are no nearer than images at random"
            assert f"warning: o{text}\n" in printed and f"O{text}." in page


ITS_PIXELS = [
    *("model=vit_n8", "data.size=16", "data.eval_crop=1"),
    *("data.mean=[0.4,0.4,0.4]", "data.std=[0.2,0.2,0.2]"),
]
REFUSED = {
    "no encoder": (["init="], "init= is missing"),
    "another layer": (["probe.layer=1"], "probe.layer=1: "),
    "another pooling": (["probe.pool=avg"], "probe.pool=avg: "),
    "another size": (["data.size=32"], "data.size=32: "),
    "other shards": (["rows=4"], "rows=4: "),
    "other weights": (["init=scratch", *ITS_PIXELS], "init=scratch: "),
    "no such split": (["split=tset"], "did you mean test?"),
    "no number": (["rows=0"], "rows=0: "),
    "top alone": (["top=3"], "top=3: "),
    "no query": (["query=/no/such.png"], "query=/no/such.png: "),
    "a training key": (["optim.steps=3"], "optim.steps=3: "),
    "a key without a use": (["data.share=0.5"], "data.share=0.5: "),
    "a model that is described": (["model=vit_n8"], "model=vit_n8: "),
}


@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_suit_is_refused_in_one_line(
    options: list[str], whole: Path, changes: list[str], says: str
) -> None:
    """Nothing of the folder is touched."""
    new = {change.partition("=")[0] for change in changes}
    words = [word for word in options if word.partition("=")[0] not in {*new, "out"}]
    words += [f"out={whole.parent}", f"name={whole.name}", "data.unreadable=1"]
    before = contents(whole)
    with pytest.raises(UserError) as caught:
        ssl_vit.embed(words + [change for change in changes if change != "init="])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert contents(whole) == before


def test_other_images_other_folders_and_too_many_unreadable_are_refused(
    options: list[str], whole: Path, images: Path, tmp_path: Path
) -> None:
    def refusal(*words: str) -> str:
        with pytest.raises(UserError) as caught:
            ssl_vit.embed([*options, *words])
        return str(caught.value)

    shutil.copytree(images, tmp_path / "other")
    shutil.copy(images / "test" / "a" / "0.png", tmp_path / "other" / "test" / "a" / "1.png")
    shutil.copytree(whole, tmp_path / "f")
    changed = [word for word in options if not word.startswith("data.path=")]
    with pytest.raises(UserError, match="other images in its split test"):
        ssl_vit.embed([*changed, f"data.path={tmp_path / 'other'}", "split=test", "name=f"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "holds something else" in refusal("name=mine")
    assert "data.unreadable=0.0: 1 of " in refusal("data.unreadable=0", "name=strict")
    (tmp_path / "f" / "embed.json").write_text("{")
    assert "embed.json is damaged" in refusal("name=f")
    inside = [word for word in options if not word.startswith("out=")]
    with pytest.raises(UserError, match=r"out=.*would be taken for images"):
        ssl_vit.embed([*inside, f"out={images}"])
