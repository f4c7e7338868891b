"""Several labels an image: lists are read as they are written, learned as a multi-hot target, and
refused where one label is needed."""

import io
import json
import re
import tarfile
import tempfile
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from helpers.options import altered
from helpers.sources import noisy
from ssl_vit.data import (
    batching,
    columns,
    labels,
    loaders,
    resident,
    sources,
)
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import open_splits
from ssl_vit.data.source import Source, labelled_images, without_lists
from ssl_vit.errors import UserError
from ssl_vit.evaluation import classify
from ssl_vit.jobs import evaluate, resources
from ssl_vit.jobs import train as train_job
from ssl_vit.lab.results import read_predictions
from ssl_vit.models import encoder
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.recipe import declaration
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop

CLASSES = datasets.ClassLabel(names=["ant", "bee", "cow", "dog", "emu"])
LISTS = [[3, 1], [2], None, [], [4, 4, 0], [1]] * 8  # of the 48 training images
ROWS = {  # as they are read, by place in the six
    0: [3, 1, -2],
    1: [2, -2, -2],
    2: [-1, -1, -1],
    3: [-2, -2, -2],
    4: [4, 4, 0],
    5: [1, -2, -2],
}


def png(number: int) -> dict:
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """48 training and 12 test images: `many` lists, `ones` a list of one label, `one` that label,
    `byte` the same in a byte, `bad` a number that is no class, `hot` a 0 or 1 for each class."""
    folder = tmp_path_factory.mktemp("lists")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "many": datasets.List(CLASSES),
            "ones": datasets.List(CLASSES),
            "one": CLASSES,
            "byte": datasets.Value("uint8"),
            "bad": datasets.List(datasets.Value("int64")),
            "hot": datasets.List(datasets.Value("int64")),
            "texts": datasets.List(datasets.Value("string")),
        }
    )
    for split, count in (("train", 48), ("test", 12)):
        one = [int(x) for x in np.random.default_rng(count).integers(0, 5, count)]
        columns = {
            "image": [png(100 * count + i) for i in range(count)],
            "many": LISTS[:count],
            "ones": [[x] for x in one],
            "one": one,
            "byte": [None, *one[1:]],
            "bad": [[0, -7]] * count,
            "hot": [[int(i == x) for i in range(5)] for x in one],
            "texts": [["ant"]] * count,
        }
        made = datasets.Dataset.from_dict(columns, features=features)
        made.to_parquet(folder / f"{split}.parquet", batch_size=20)  # row groups
    return folder


def source_of(place: Path, column: str = "many", **words) -> Source:
    data = Data(name="own", path=str(place), size=16, label_column=column, validation=0, **words)
    return sources.load(data).train


def test_lists_are_read_as_they_are_written(place) -> None:
    source = source_of(place)
    rows = np.array([47, 0, 3, 26, 4, 2, 2])
    wanted = np.array([ROWS[row % 6] for row in rows.tolist()])
    np.testing.assert_array_equal(source.fetch(rows)[1], wanted)
    np.testing.assert_array_equal(source.label_of(rows), wanted)
    assert source.labels.lowest_and_highest == (-1, 4) and source.classes == CLASSES.names
    lists = source.subset(np.arange(9)).labels.lists
    assert (lists.column, lists.longest, lists.empty) == ("many", 3, 8)
    labelled = [row for row in range(48) if ROWS[row % 6][0] != -1]
    assert labelled_images(source).store_rows().tolist() == labelled


def test_labels_in_unsigned_bytes_may_be_missing(place) -> None:
    source = source_of(place, "byte")
    assert source.labels.lowest_and_highest == (-1, 4)
    assert source.label_of(np.arange(2)).tolist()[0] == -1


def test_a_zero_or_one_for_each_class_is_no_list_of_classes(place) -> None:
    """They would be read as images of the classes 0 and 1."""
    with pytest.raises(UserError, match=r"data.label_column=hot: lists of up to 5 zeros and ones"):
        source_of(place, "hot")


def test_numbers_above_int64_are_one_line() -> None:
    reading = labels.Reading("many", "here", "x", asked=True)
    with pytest.raises(UserError, match="expected numbers of classes"):
        labels.read({"train": labels.Stored([[2**63 + 5]])}, reading, [])


def head(classes: int, logits: list[list[float]]) -> Supervised:
    """A classifier that gives these logits."""
    net = encoder.build_encoder(Model(patch=4, width=8, depth=1, heads=1, mlp=8), Data(size=16))
    made = Supervised(net, classes, loss="sigmoid", smoothing=0.0, hidden=False, pool="token")
    made.logits = lambda batch: torch.tensor(logits)  # type: ignore[method-assign]
    return made


def batch_of(labels: list[list[int]] | list[int]) -> batching.Batch:
    count = torch.arange(len(labels))
    return batching.Batch(
        torch.zeros(len(labels), 3, 16, 16).byte(), torch.tensor(labels), *[count] * 2
    )


def test_the_loss_is_the_sum_of_binary_cross_entropies() -> None:
    """ln 3 from a logit: 1 / (1 + 1/3) = 3/4. First image, of classes 0 and 2: -ln 3/4 - ln 1/2 -
    ln 1/4; second, of none: -ln 1/2 - ln 1/2 - ln 1/2; third: not labelled."""
    log3 = float(np.log(3))
    logits = [[log3, 0.0, -log3], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]
    labels = [[2, 0, 2], [-2, -2, -2], [-1, -1, -1]]
    step = head(3, logits)(batch_of(labels))
    first = np.log(4 / 3) + np.log(2) + np.log(4)
    assert step.loss.item() == pytest.approx((first + 3 * np.log(2)) / 2, rel=1e-6)
    target = torch.tensor([[1.0, 0, 1], [0, 0, 0]])
    by_torch = F.binary_cross_entropy_with_logits(torch.tensor(logits[:2]), target, reduction="sum")
    assert step.metrics["loss"][0].item() == pytest.approx(by_torch.item(), rel=1e-6)
    assert [x.item() for x in step.metrics["accuracy"]] == [1, 1], "class 0; [] is no case"
    even = head(3, [[-float(np.log(2))] * 3] * 3)  # 1 / 3 of every class
    chance = even.baselines(batch_of(labels))
    assert chance["chance_loss"][0].item() == pytest.approx(
        even(batch_of(labels)).metrics["loss"][0].item(), rel=1e-6
    )
    assert [x.item() for x in chance["chance"]] == [pytest.approx(2 / 3), 1]


def test_mixed_lists_share_the_loss_and_unlabelled_partners_end_it(place) -> None:
    logits = [[0.5, -1.0, 2.0]]
    drawn = batch_of([[2, -2]])._replace(
        partner_label=torch.tensor([[0, 1]]), mix_lambda=torch.tensor([0.75])
    )
    alone = [head(3, logits)(batch_of([one])).loss.item() for one in ([2, -2], [0, 1])]
    assert head(3, logits)(drawn).loss.item() == pytest.approx(0.75 * alone[0] + 0.25 * alone[1])
    data = Data(name="own", path=str(place), size=16, label_column="many", mixup=1.0)
    images = batching.ImageDataset(source_of(place), data, train=True)
    mixed = images.__getitems__(batching.Samples(np.arange(48), np.arange(48)))
    missing = [place % 6 == 2 for place in range(48)]
    without = torch.tensor(missing) | (mixed.partner_label[:, 0] == -1)
    assert 8 < without.sum() < 48
    assert torch.equal(without, ~batching.is_labelled(mixed.label))


def test_images_are_counted_not_labels() -> None:
    one = SimpleNamespace(reduce=lambda value, how: value, num_processes=1)
    given = [batch_of([[2, 0], [-2, -2]]), batch_of([[-1, -1], [1, -2]])]
    counted = loop._with_label_counts(given, one)  # type: ignore[arg-type]
    assert [batch.loss_denominator.item() for batch in counted] == [1.5, 1.5]


def test_decoded_images_have_the_same_lists(place) -> None:
    source = source_of(place)
    data = Data(name="own", path=str(place), size=16, label_column="many")
    kept = resident.decode_split(source, data, 1e9, 1)
    layout = BatchLayout(16, 16, 0, 1)
    both = [
        list(loaders.training_loader(source, data, layout, 0, 0, 3, workers=0, decoded=decoded))
        for decoded in (None, kept)
    ]
    for one, other in zip(*both, strict=True):
        assert torch.equal(one.label, other.label) and torch.equal(one.image, other.image)
        assert one.label.tolist() == [ROWS[row % 6] for row in one.index.tolist()]


def options(tiny: list[str], place: Path, *more: str) -> list[str]:
    return altered(
        tiny,
        *("recipe=supervised", f"data.path={place}", "data.validation=0.25"),
        *("supervised.loss=sigmoid", "optim.steps=4", *more),
    )


def train(words: list[str]) -> Run:
    run = Run(resolve(words))
    train_job.train(run)
    return run


def test_lists_of_one_label_are_the_run_of_whole_numbers(place, tiny) -> None:
    runs = [
        train(
            options(tiny, place, f"data.label_column={column}", f"name={column}", "eval.test=true")
        )
        for column in ("ones", "one")
    ]
    metrics = [run.result()["metrics"] for run in runs]
    assert metrics[0] == metrics[1] and {"loss", "chance_loss", "top1"} <= metrics[0].keys()
    exports = [(run.export / "model.safetensors").read_bytes() for run in runs]
    assert exports[0] == exports[1]
    predicted = [read_predictions(run.predictions) for run in runs]
    for one, other in zip(*predicted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_accuracy_is_that_of_any_label_and_reports_read_it(tmp_path) -> None:
    label = np.array([[1, 2], [0, -2], [-2, -2], [-1, -1]])
    top5 = np.array([[2, 0, 1, 3, 4], [5, 0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    predictions = classify.Predictions(np.arange(4), label, top5)
    assert classify.accuracies(predictions, 6) == {"top1": (0.5, 2), "top5": (1.0, 2)}
    predictions.save(tmp_path / "predictions.npz", noisy(4))
    _, read, correct = read_predictions(tmp_path / "predictions.npz")
    np.testing.assert_array_equal(read, label)
    assert correct.tolist() == [True, False, False, False]


def test_what_shows_one_label_an_image_leaves_lists_out(place, capsys) -> None:
    source = without_lists(source_of(place), "the figures")
    assert source.fetch(np.arange(3))[1].tolist() == [-1] * 3 and source.classes == []
    printed = capsys.readouterr().out
    assert (
        printed.startswith("warning: data.label_column=many: holds a list") and len(printed) < 120
    )
    plain = source_of(place, "one")
    assert without_lists(plain, "the figures") is plain


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["data.label_column=many", "supervised.loss=softmax"], "expected supervised.loss=sigmoid"),
        (["data.label_column=many", "data.classes=4"], "labels from -1 to 4 in its train split"),
        (
            ["data.label_column=bad"],
            r"data.label_column=bad: .*: \[0, -7\]: expected numbers of cl",
        ),
        (["data.label_column=texts"], "holds no classes, whole numbers, texts or lists of class"),
        (["data.label_column=many", "data.stream=true", "data.validation=0"], "a stream does not"),
        (["data.label_column=many", "probe.every=2"], r"probe.measures=\[few_shot,knn,linear\]"),
    ],
)
def test_what_takes_one_label_an_image_is_one_line(place, tiny, more, says) -> None:
    with pytest.raises(UserError, match=says) as caught:
        train(options(tiny, place, *more))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_joint_training_takes_lists_where_its_part_does(place, tiny, loss) -> None:
    words = [f"supervised.loss={loss}", "recipe=joint", "data.label_column=many"]
    recipe = resolve(options(tiny, place, *words))
    splits = sources.load(recipe.data)
    if loss == "sigmoid":
        resources.check_label_lists(recipe, splits)
        return
    with pytest.raises(
        UserError, match=r"^supervised\.loss=softmax: data\.label_column=many holds"
    ):
        resources.check_label_lists(recipe, splits)


def test_a_plugin_for_one_label_an_image_is_given_no_lists(place, tiny, monkeypatch) -> None:
    """It has no supervised.loss= that could be set."""

    class Counted(declaration.ObjectiveDeclaration):
        name = "counted"
        labels = True

    recipe = resolve(options(tiny, place, "data.label_column=many"))
    monkeypatch.setitem(declaration.objectives(), "counted", Counted())
    recipe.objective = "counted"
    with pytest.raises(UserError, match=r"objective=counted: .*expected a column of one label"):
        resources.check_label_lists(recipe, sources.load(recipe.data))


def test_lists_are_used_where_they_are_named() -> None:
    """A run without labels on such images keeps the fingerprint that it had."""
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.List(CLASSES)})
    assert columns.find(features, Data()) == ("image", None)
    assert columns.find(features, Data(label_column="labels")) == ("image", "labels")
    assert "labels (lists of class numbers)" in columns.described(features)


def test_probes_of_lists_are_refused(place, tiny) -> None:
    words = ["recipe=evaluate", "init=scratch", f"data.path={place}", "data.label_column=many"]
    model = [word for word in tiny if word.startswith(("model.", "data.size", "out="))]
    with pytest.raises(UserError, match=r"knn.*a list of labels for each image"):
        evaluate.evaluate(Run(resolve([*words, *model, "probe.measures=[knn]"])))


def written(folder: Path, kind: str, key: str, values: list) -> Path:
    """Images with these labels, a third of them for testing, in two tars a split or as files beside
    metadata."""
    folder.mkdir()
    for i, value in enumerate(values):
        split = "test" if i % 3 == 2 else "train"
        row = {} if value is None else {key: value}
        if kind == "tar":
            members = {"png": png(i)["bytes"], "json": json.dumps(row).encode()}
            if key == "cls":
                members["cls"] = json.dumps(value).encode()
            with tarfile.open(folder / f"{split}-{i % 2}.tar", "a") as tar:
                for end, content in members.items():
                    info = tarfile.TarInfo(f"{i:03d}.{end}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        else:
            (folder / split).mkdir(exist_ok=True)
            (folder / split / f"{i:03d}.png").write_bytes(png(i)["bytes"])
            with (folder / split / "metadata.jsonl").open("a") as file:
                file.write(json.dumps({"file_name": f"{i:03d}.png", **row}) + "\n")
    return folder


KINDS = [("tar", "many"), ("tar", "cls"), ("tar", "label"), ("files", "many"), ("files", "label")]


@pytest.mark.parametrize(("kind", "key"), KINDS)
@given(
    st.lists(
        st.sampled_from([None, -1]) | st.integers(2, 9) | st.lists(st.integers(2, 9), max_size=4),
        min_size=6,
        max_size=20,
    )
)
@settings(max_examples=8, deadline=None)
def test_lists_of_tars_and_metadata_are_read_as_they_are_written(kind, key, values) -> None:
    """Each image has its own list, whatever the order and the shard it is read in; a whole number
    among lists is a list of one, -1 none."""
    values[0] = [3, 1, 3]
    with tempfile.TemporaryDirectory() as folder:
        place = written(Path(folder) / "in", kind, key, values)
        data = Data(name="own", path=str(place), size=16, label_column=key, validation=0)
        source = sources.load(data).train
        images, label_NL = source.fetch(np.arange(len(source)))
        lists = source.labels.lists
        assert len(source) == sum(i % 3 != 2 for i in range(len(values)))
        of_image = {png(i)["bytes"]: value for i, value in enumerate(values)}
        for image, label_L in zip(images, label_NL.tolist(), strict=True):
            value = None if of_image[image] == -1 else of_image[image]
            right = [value] if isinstance(value, int) else value
            read = [label for label in label_L if label != labels.END]
            assert read == (right if right is not None else [-1] * lists.longest)
        np.testing.assert_array_equal(source.label_of(np.arange(len(source))), label_NL)
        seen = [value for i, value in enumerate(values) if i % 3 != 2]
        assert lists.empty == seen.count([]) and lists.longest == max(
            1, *(len(one) for one in seen if isinstance(one, list))
        )


@pytest.mark.parametrize(("kind", "key"), KINDS)
def test_tars_and_metadata_train_as_a_column_of_lists(kind, key, tiny, tmp_path) -> None:
    values = [[3, 1], [2], [], [4, 4, 0], [1], None] * 8
    place = written(tmp_path / "in", kind, key, values)
    (tmp_path / "out").mkdir()
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.List(datasets.Value("int64"))}
    )
    data = Data(name="own", path=str(place), size=16, label_column=key)
    for split, source in open_splits(data).splits.items():
        images, label_NL = source.fetch(np.arange(len(source)))
        columns = {
            "image": [{"bytes": image, "path": None} for image in images],
            "label": [None if row[0] == -1 else row[row >= 0].tolist() for row in label_NL],
        }
        made = datasets.Dataset.from_dict(columns, features=features)
        made.to_parquet(tmp_path / "out" / f"{split}.parquet")
    metrics = [
        train(
            options(tiny, folder, f"data.label_column={column}", "data.classes=5", f"name={name}")
        ).result()["metrics"]
        for name, folder, column in (("read", place, key), ("made", tmp_path / "out", "label"))
    ]
    assert metrics[0] == metrics[1] and {"loss", "chance_loss"} <= metrics[0].keys()


def test_texts_that_look_like_lists_are_named(tmp_path) -> None:
    """A .csv has nothing but texts."""
    (tmp_path / "0.png").write_bytes(png(0)["bytes"])
    (tmp_path / "metadata.csv").write_text('file_name,label\n0.png,"[1, 2]"\n')
    found = open_splits(Data(name="own", path=str(tmp_path), size=16))
    assert found.splits["train"].classes == ["[1, 2]"]
    assert "[1, 2] names a class; .jsonl, .json and .parquet hold lists" in found.guesses


@pytest.mark.parametrize(("kind", "key"), [("tar", "label"), ("tar", "cls"), ("files", "label")])
def test_lists_that_no_key_names_are_counted(kind, key, tmp_path) -> None:
    place = written(tmp_path / "in", kind, key, [[3, 1], [2], 4] * 4)
    found = open_splits(Data(name="own", path=str(place), size=16))
    assert found.splits["train"].labels.lowest_and_highest == (-1, -1)
    says = "8 images have a l(ist of labels|abel that is no whole number)"
    assert any(re.search(says, guess) for guess in found.guesses)


@pytest.mark.parametrize("wrong", [-2, "3 5", 1.5, True])
def test_a_tar_without_lists_beside_one_with_them_is_checked(wrong, tmp_path) -> None:
    """-2 would be the end of a list, and a text no label."""
    place = written(tmp_path / "in", "tar", "many", [[3, 1], wrong, [1], wrong, [1], [1]])
    with pytest.raises(UserError, match=f"{wrong}: expected numbers of classes, from 0"):
        open_splits(Data(name="own", path=str(place), size=16, label_column="many"))


def test_a_class_file_that_is_no_json_is_checked(tmp_path) -> None:
    place = written(tmp_path / "in", "tar", "cls", [[3, 1]] * 6)
    tar = place / "train-1.tar"
    tar.write_bytes(tar.read_bytes().replace(b"[3, 1]", b"3 1   "))
    with pytest.raises(UserError, match=r"in: 3 1: expected numbers of classes, from 0"):
        open_splits(Data(name="own", path=str(place), size=16, label_column="cls"))


@pytest.mark.parametrize("kind", ["tar", "files"])
def test_splits_without_lists_are_read_as_those_with_them(kind, tmp_path) -> None:
    place = written(tmp_path / "in", kind, "many", [[3, 1], [2], 4] * 4)
    data = Data(name="own", path=str(place), size=16, label_column="many")
    source = open_splits(data).splits["test"]
    assert source.label_of(np.arange(4)).tolist() == [[4]] * 4


@pytest.mark.parametrize(
    ("kind", "values", "more", "says"),
    [
        ("tar", [[3, -1]] * 6, [], r"\[3, -1\]: expected numbers of classes, from 0"),
        ("tar", [["ant"]] * 6, [], r"\['ant'\]: expected numbers of classes, from 0"),
        ("tar", [[True, False]] * 6, [], r"\[True, False\]: expected numbers of classes"),
        ("tar", [[2**70]] * 6, [], r"\[1180591620717411303424\]: expected numbers of classes"),
        ("tar", [[0, 1, 1]] * 6, [], "many: lists of up to 3 zeros and ones"),
        ("tar", [[0, 1]] * 6, ["data.label_column=tags"], "no image in .* has such a label"),
        ("files", [[3, -1]] * 6, [], r"\[3, -1\]: expected numbers of classes, from 0"),
        ("files", [[3, 2.5]] * 6, [], r"\[3, 2.5\]: expected numbers of classes, from 0"),
        ("files", [[0, 1, 1]] * 6, [], "many: lists of up to 3 zeros and ones"),
    ],
)
def test_wrong_lists_of_tars_and_metadata_are_one_line(
    kind, values, more, says, tiny, tmp_path
) -> None:
    place = written(tmp_path / "in", kind, "many", values)
    with pytest.raises(UserError, match=says) as caught:
        train(options(tiny, place, "data.label_column=many", "data.validation=0", *more))
    assert "\n" not in str(caught.value)
