"""Labels as they are stored become numbers of classes; several labels an image are read as they are
written, learned as a multi-hot target, and refused where one label is needed."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import ssl_vit
from helpers.images import png, tar
from helpers.labelled_batches import TINY as MODEL
from helpers.labelled_batches import batch, supervised
from helpers.options import altered
from helpers.resolving import resolve
from helpers.runs import run
from helpers.sources import noisy, opened
from helpers.tables import cells, parquet
from ssl_vit.data import batching, loaders, resident, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import open_splits
from ssl_vit.data.source import Source, labelled_images, without_lists
from ssl_vit.errors import UserError
from ssl_vit.evaluation import classify
from ssl_vit.jobs import resources
from ssl_vit.lab.results import read_predictions
from ssl_vit.measurements import flat_name
from ssl_vit.models import encoder
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.recipe import declaration
from ssl_vit.recipe.schema import Data
from ssl_vit.training import loop

CLASSES = datasets.ClassLabel(names=["ant", "bee", "cow", "dog", "emu"])
LISTS = [[3, 1], [2], None, [], [4, 4, 0], [1]] * 8  # of the 48 training images
# as they are read, by place in the six
ROWS = [[3, 1, -2], [2, -2, -2], [-1, -1, -1], [-2, -2, -2], [4, 4, 0], [1, -2, -2]]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """48 training and 12 test images: `many` lists, `ones` a list of one label, `one` that label,
    `byte` the same in a byte, `bad` a number that is no class, `hot` a 0 or 1 for each class."""
    folder = tmp_path_factory.mktemp("lists")
    whole = datasets.List(datasets.Value("int64"))
    features = datasets.Features(
        image=datasets.Image(),
        many=datasets.List(CLASSES),
        ones=datasets.List(CLASSES),
        one=CLASSES,
        byte=datasets.Value("uint8"),
        bad=whole,
        hot=whole,
        texts=datasets.List(datasets.Value("string")),
    )
    for split, count in (("train", 48), ("test", 12)):
        one = [int(x) for x in np.random.default_rng(count).integers(0, 5, count)]
        table = {
            "image": cells(range(100 * count, 101 * count)),
            "many": LISTS[:count],
            "ones": [[x] for x in one],
            "one": one,
            "byte": [None, *one[1:]],
            "bad": [[0, -7]] * count,
            "hot": [[int(i == x) for i in range(5)] for x in one],
            "texts": [["ant"]] * count,
        }
        made = datasets.Dataset.from_dict(table, features=features)
        made.to_parquet(folder / f"{split}.parquet", batch_size=20)  # row groups
    return folder


def data_of(place: Path, column: str, **words) -> Data:
    return Data(
        name="own", path=str(place), **{"size": 8, "label_column": column, "validation": 0} | words
    )


def source_of(place: Path, column: str = "many", **words) -> Source:
    return run_splits.load(data_of(place, column, **words)).train


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


def test_lists_are_used_where_they_are_named(tmp_path) -> None:
    """A run without labels on such images keeps the fingerprint that it had."""
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.List(CLASSES)})
    rows = {"image": cells(range(2)), "labels": [[0], [1]]}
    parquet(tmp_path / "train.parquet", rows, features)
    assert not opened(tmp_path)[0].has_labels
    assert opened(tmp_path, label_column="labels")[0].has_labels


def written(folder: Path, kind: str, key: str, values: list) -> Path:
    """Images with these labels, a third of them for testing, in two tars a split or as files beside
    metadata."""
    tars: dict[str, list] = {}
    for i, value in enumerate(values):
        split = "test" if i % 3 == 2 else "train"
        row = json.dumps({} if value is None else {key: value})
        if kind == "tar":
            members = [(f"{i:03d}.png", png(i)), (f"{i:03d}.json", row.encode())]
            if key == "cls":
                members.append((f"{i:03d}.cls", json.dumps(value).encode()))
            tars.setdefault(f"{split}-{i % 2}.tar", []).extend(members)
        else:
            (folder / split).mkdir(parents=True, exist_ok=True)
            (folder / split / f"{i:03d}.png").write_bytes(png(i))
            with (folder / split / "metadata.jsonl").open("a") as file:
                file.write(json.dumps({"file_name": f"{i:03d}.png", **json.loads(row)}) + "\n")
    for name, members in tars.items():
        tar(folder / name, members)
    return folder


@pytest.mark.parametrize(("kind", "key"), [("tar", "many"), ("tar", "cls"), ("files", "label")])
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
    among lists is a list of one, -1 none. A split without lists is read as those with them."""
    values[0] = [3, 1, 3]
    with tempfile.TemporaryDirectory() as folder:
        place = written(Path(folder) / "in", kind, key, values)
        of_image = {png(i): value for i, value in enumerate(values)}
        for split, source in open_splits(data_of(place, key)).splits.items():
            seen = [v for i, v in enumerate(values) if (i % 3 == 2) == (split == "test")]
            assert len(source) == len(seen)
            images, label_NL = source.fetch(np.arange(len(source)))
            lists = source.labels.lists
            for image, label_L in zip(images, label_NL.tolist(), strict=True):
                value = None if of_image[image] == -1 else of_image[image]
                right = [value] if isinstance(value, int) else value
                read = [label for label in label_L if label != -2]  # the end of a list
                assert read == (right if right is not None else [-1] * lists.longest)
            np.testing.assert_array_equal(source.label_of(np.arange(len(source))), label_NL)
            longest = max(1, *(len(one) if isinstance(one, list) else 1 for one in seen))
            assert (lists.empty, lists.longest) == (seen.count([]), longest)


def test_texts_that_look_like_lists_are_named(tmp_path) -> None:
    """A .csv has nothing but texts."""
    (tmp_path / "0.png").write_bytes(png(0))
    (tmp_path / "metadata.csv").write_text('file_name,label\n0.png,"[1, 2]"\n')
    found = open_splits(Data(name="own", path=str(tmp_path)))
    assert found.splits["train"].classes == ["[1, 2]"]
    assert any("[1, 2] " in guess for guess in found.guesses)


@pytest.mark.parametrize(("kind", "key"), [("tar", "label"), ("tar", "cls"), ("files", "label")])
def test_lists_that_no_key_names_are_counted(kind, key, tmp_path) -> None:
    place = written(tmp_path / "in", kind, key, [[3, 1], [2], 4] * 4)
    found = open_splits(Data(name="own", path=str(place)))
    assert found.splits["train"].labels.lowest_and_highest == (-1, -1)
    assert any("8 images " in guess for guess in found.guesses)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        *(
            (kind, [[value]] * 6, rf"^data\.label_column=many: .* \[.*{value}\]")
            for kind in ("tar", "files")
            for value in (-1, True, 2.5, 2**70)
        ),
        ("tar", [["ant"]] * 6, r"^data\.label_column=many: .* \['ant'\]"),
        # beside lists: -2 would be the end of one, and a text no label
        *(
            ("tar", [[3, 1], value, [1], value, [1], [1]], rf"^data\.label_column=many: .* {value}")
            for value in (-2, "3 5", 1.5, True)
        ),
        # they would be read as images of the classes 0 and 1
        ("tar", [[0, 1, 1]] * 6, "many: .* up to 3 zeros and ones"),
    ],
)
def test_wrong_lists_of_tars_and_metadata_are_one_line(kind, value, says, tmp_path) -> None:
    place = written(tmp_path / "in", kind, "many", value)
    with pytest.raises(UserError, match=says) as caught:
        source_of(place)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"data\.label_column=tags"):
        source_of(place, "tags")


def test_a_class_file_that_is_no_json_is_checked(tmp_path) -> None:
    place = written(tmp_path / "in", "tar", "cls", [[3, 1]] * 6)
    path = place / "train-1.tar"
    path.write_bytes(path.read_bytes().replace(b"[3, 1]", b"3 1   "))
    with pytest.raises(UserError, match=r"^data\.label_column=cls: .* 3 1"):
        source_of(place, "cls")


def head(classes: int, logits: list[list[float]]) -> Supervised:
    """A classifier that gives these logits."""
    net = encoder.build_encoder(MODEL, Data(size=16))
    made = Supervised(net, classes, loss="sigmoid", smoothing=0.0, hidden=False, pool="token")
    made.logits = lambda batch: torch.tensor(logits)  # type: ignore[method-assign]
    return made


def batch_of(label: list[list[int]]) -> batching.Batch:
    count = torch.arange(len(label))
    image = torch.zeros(len(label), 3, 16, 16).byte()
    return batching.Batch(image, torch.tensor(label), *[count] * 2)


def test_the_loss_is_the_sum_of_binary_cross_entropies() -> None:
    """ln 3 from a logit: 1 / (1 + 1/3) = 3/4. First image, of classes 0 and 2: -ln 3/4 - ln 1/2 -
    ln 1/4; second, of none: -ln 1/2 - ln 1/2 - ln 1/2; third: not labelled."""
    log3 = float(np.log(3))
    logits = [[log3, 0.0, -log3], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]
    lists = batch_of([[2, 0, 2], [-2, -2, -2], [-1, -1, -1]])
    step = head(3, logits)(lists)
    first = np.log(4 / 3) + np.log(2) + np.log(4)
    assert step.loss.item() == pytest.approx((first + 3 * np.log(2)) / 2, rel=1e-6)
    target = torch.tensor([[1.0, 0, 1], [0, 0, 0]])
    by_torch = F.binary_cross_entropy_with_logits(torch.tensor(logits[:2]), target, reduction="sum")
    assert step.metrics["loss"][0].item() == pytest.approx(by_torch.item(), rel=1e-6)
    assert [x.item() for x in step.metrics["accuracy"]] == [1, 1], "class 0; [] is no case"
    even = head(3, [[-float(np.log(2))] * 3] * 3)  # 1 / 3 of every class
    chance = even.baselines(lists)
    assert chance["chance_loss"][0].item() == pytest.approx(
        even(lists).metrics["loss"][0].item(), rel=1e-6
    )
    assert [x.tolist() for x in chance["majority"]] == [[1, 0, 1], 1]


def test_the_loss_of_mixed_images_is_that_of_the_mixed_labels() -> None:
    """Cross-entropy against the soft label, worked out apart."""
    made, drawn = supervised(smoothing=0.1), batch()
    partner, share = drawn.label.flip(0), torch.linspace(0, 1, 6)
    mixed = drawn._replace(partner_label=partner, mix_lambda=share)
    soft = share[:, None] * torch.eye(5)[drawn.label] + (1 - share[:, None]) * torch.eye(5)[partner]
    soft = 0.9 * soft + 0.1 / 5
    wanted = -(soft * made.logits(drawn).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(made(mixed).loss.float(), wanted, atol=1e-6, rtol=1e-5)


def test_mixed_lists_share_the_loss_and_unlabelled_partners_end_it(place) -> None:
    logits = [[0.5, -1.0, 2.0]]
    drawn = batch_of([[2, -2]])._replace(
        partner_label=torch.tensor([[0, 1]]), mix_lambda=torch.tensor([0.75])
    )
    alone = [head(3, logits)(batch_of([one])).loss.item() for one in ([2, -2], [0, 1])]
    assert head(3, logits)(drawn).loss.item() == pytest.approx(0.75 * alone[0] + 0.25 * alone[1])
    data = data_of(place, "many", mixup=1.0)
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
    source, data = source_of(place), data_of(place, "many")
    kept = resident.decode_split(source, data, 1e9, 1)
    layout = BatchLayout(16, 16, 0, 1)
    for one in loaders.training_loader(source, data, layout, 0, 0, 3, workers=0, decoded=kept):
        assert one.label.tolist() == [ROWS[row % 6] for row in one.index.tolist()]


def options(tiny: list[str], place: Path, *more: str) -> list[str]:
    return altered(
        tiny,
        *("recipe=supervised", f"data.path={place}", "data.validation=0.25"),
        *("supervised.loss=sigmoid", "optim.steps=4", *more),
    )


def test_lists_of_one_label_are_the_run_of_whole_numbers(place, tiny) -> None:
    runs = [
        run(options(tiny, place, f"data.label_column={one}", f"name={one}", "eval.test=true"))
        for one in ("ones", "one")
    ]
    metrics = [done.result().metrics for done in runs]
    assert metrics[0] == metrics[1] and {"loss", "chance_loss", "top1"} <= metrics[0].keys()
    exports = [(done.export / "model.safetensors").read_bytes() for done in runs]
    assert exports[0] == exports[1]
    predicted = [read_predictions(done.predictions) for done in runs]
    for one, other in zip(*predicted, strict=True):
        np.testing.assert_equal(one, other)


def test_the_accuracy_is_that_of_any_label_and_reports_read_it(tmp_path) -> None:
    label = np.array([[1, 2], [0, -2], [-2, -2], [-1, -1]])
    top5 = np.array([[2, 0, 1, 3, 4], [5, 0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    predictions = classify.Predictions(np.arange(4), label, top5, np.arange(4))
    found = {"top1": (0.5, 2), "top5": (1.0, 2), "majority_top1": (0.5, 2)}
    measured = classify.accuracies(predictions, 6)
    assert {flat_name(one.key): (one.value, one.n) for one in measured} == found
    predictions.save(tmp_path / "predictions.npz", noisy(4))
    _, read, tested = read_predictions(tmp_path / "predictions.npz")
    np.testing.assert_array_equal(read, label)
    assert tested.correct_M.tolist() == [True, False, False, False]


def test_what_shows_one_label_an_image_leaves_lists_out(place, capsys) -> None:
    source = without_lists(source_of(place), "the figures")
    assert source.fetch(np.arange(3))[1].tolist() == [-1] * 3 and source.classes == []
    assert capsys.readouterr().out.startswith("warning: data.label_column=many: ")
    plain = source_of(place, "one")
    assert without_lists(plain, "the figures") is plain


@pytest.mark.parametrize(
    ("column", "more", "says"),
    [
        ("many", ["supervised.loss=softmax"], "supervised.loss=sigmoid"),
        ("many", ["data.classes=4"], "labels from -1 to 4"),
        ("bad", [], r"data.label_column=bad: .* \[0, -7\]"),
        ("hot", [], "data.label_column=hot: .* up to 5 zeros and ones"),
        ("texts", [], "^data.label_column=texts: "),
        (
            "many",
            ["data.stream=true", "data.validation=0"],
            "^data.label_column=many: .*data.stream=false",
        ),
        ("many", ["probe.every=2"], r"probe.measures=\[few_shot,knn,linear\]"),
    ],
)
def test_what_takes_one_label_an_image_is_one_line(place, tiny, column, more, says) -> None:
    with pytest.raises(UserError, match=says) as caught:
        run(options(tiny, place, f"data.label_column={column}", *more))
    assert "\n" not in str(caught.value)


def test_joint_training_and_plugins_take_lists_where_they_learn_them(
    place, tiny, monkeypatch
) -> None:
    """A plugin has no supervised.loss= that could be set."""

    class Counted(declaration.ObjectiveDeclaration):
        name = "counted"
        labels = True

    def check(*more: str, objective: str = "joint") -> None:
        recipe = resolve(options(tiny, place, "recipe=joint", "data.label_column=many", *more))
        recipe.objective = objective
        resources.check_label_lists(recipe, run_splits.load(recipe.data))

    monkeypatch.setitem(declaration.objectives(), "counted", Counted())
    check()
    with pytest.raises(UserError, match=r"^supervised\.loss=softmax: data\.label_column=many"):
        check("supervised.loss=softmax")
    with pytest.raises(UserError, match=r"objective=counted: .*one label"):
        check(objective="counted")


def test_probes_of_lists_are_refused(place, tiny) -> None:
    words = ["recipe=evaluate", "init=scratch", f"data.path={place}", "data.label_column=many"]
    model = [word for word in tiny if word.startswith(("model.", "data.size", "out="))]
    with pytest.raises(UserError, match=r"knn.*a list of labels for each image"):
        ssl_vit.evaluate([*words, *model, "probe.measures=[knn]"])


def test_lists_beside_texts_are_one_line(tmp_path) -> None:
    for split, first, label in (("train", 0, [[0, 1]] * 4), ("test", 4, ["ant"] * 2)):
        rows = range(first, first + len(label))
        parquet(tmp_path / f"{split}.parquet", {"image": cells(rows), "label": label})
    with pytest.raises(UserError, match=r"^data\.label_column=label: .* ant"):
        source_of(tmp_path, "label")
