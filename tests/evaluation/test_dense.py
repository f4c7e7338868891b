"""Segmentation by frozen patch features: scores, upsampling, training, masks' geometry, bad masks."""

import io
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score
from torch import Tensor
from torch.nn import functional as F

import ssl_vit
from helpers import plain_sgd
from helpers.options import altered
from ssl_vit.data import masks, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import DrawnStore, open_splits
from ssl_vit.errors import UserError
from ssl_vit.evaluation import dense, probes
from ssl_vit.evaluation.dense import PatchFeatures, SegmentationTask
from ssl_vit.evaluation.features import ENCODER
from ssl_vit.measurements import UNTRAINED
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.schema import Data, Probe

COLORS = np.array([[20, 20, 20], [230, 40, 40], [40, 60, 230]], np.uint8)
OPTIONS = [
    *("recipe=segment", "init=scratch", "data.size=16", "model.patch=4", "model.width=32"),
    *("model.depth=1", "model.heads=2", "model.mlp=64", "data.eval_crop=1"),
    *("probe.steps=40", "probe.batch=8", "probe.rates=[0.3,3]"),
    *("compute.precision=float32", "compute.threads=1", "data.validation=validation"),
]


def stripes(seed: int, height: int = 16, width: int = 16, cell: int = 4) -> np.ndarray:
    """A mask of upright stripes a patch wide."""
    classes = np.random.default_rng(seed).integers(0, 3, -(-width // cell))
    return np.tile(classes.repeat(cell)[:width], (height, 1)).astype(np.uint8)


def encoded(pixels: np.ndarray | bytes) -> dict:
    """A cell of a table; bytes are no image."""
    if isinstance(pixels, bytes):
        return {"bytes": pixels, "path": None}
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return encoded(file.getvalue())


def write(
    folder: Path, *changed: np.ndarray | bytes, split: str = "test", column: str = "mask"
) -> Path:
    """Parquet files of 12 training, 4 held-out and 4 test images in the colours of their masks;
    `changed` are the first masks of `split`."""
    folder.mkdir(parents=True, exist_ok=True)
    for first, (name, count) in enumerate({"train": 12, "validation": 4, "test": 4}.items()):
        drawn = [stripes(100 * first + seed) for seed in range(count)]
        images = [encoded(COLORS[mask]) for mask in drawn]
        if name == split:
            drawn[: len(changed)] = changed
        rows = {"image": images}
        if name != split or column:
            rows[column or "mask"] = [encoded(mask) for mask in drawn]
        kinds = datasets.Features(dict.fromkeys(rows, datasets.Image()))
        made = datasets.Dataset.from_dict(rows, kinds)
        made.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


@pytest.fixture(scope="module")
def colored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "colored")


def test_scores_are_those_of_a_plain_count_and_of_scikit_learn() -> None:
    """A class that is predicted but not there counts as 0, one that is neither is left out."""
    rng = np.random.default_rng(0)
    truth = rng.choice([0, 1, 2, 255], (3, 8, 8))
    pred = np.where(rng.random(truth.shape) < 0.7, truth % 255, rng.integers(0, 4, truth.shape))
    task = SegmentationTask(6, 255, (2, 2))
    counted = dense.class_pixel_counts(torch.from_numpy(truth), torch.from_numpy(pred), task)
    by_hand = np.zeros((3, 6), int)
    for t, p in zip(truth.ravel(), pred.ravel(), strict=True):
        if t != 255:
            by_hand[[1, 2], [t, p]] += 1
            by_hand[0, t] += t == p
    assert (counted.numpy() == by_hand).all()
    known = truth != 255
    present = [0, 1, 2, 3]
    expected = jaccard_score(truth[known], pred[known], labels=present, average="macro")
    accuracy = (truth == pred)[known].mean()
    found = {name: one.tolist() for name, one in dense.scores(counted[None]).items()}
    assert found == {"miou": [pytest.approx(expected)], "pixel_accuracy": [pytest.approx(accuracy)]}


def test_classes_are_counted_without_what_is_ignored() -> None:
    mask = torch.tensor([[0, 2], [255, 1]])
    assert dense.count_classes(mask, 255) == 3 and dense.count_classes(mask, 2) == 256
    assert dense.count_classes(torch.full((2, 2), 7), 7) == 0


def test_logits_are_upsampled_bilinearly_between_the_centres_of_patches() -> None:
    """Two patches beside each other with 0 and 1, at 4 pixels each: eighths from centre to
    centre."""
    identity = probes.Scale(torch.zeros(1).double(), torch.ones(1).double())
    weight = torch.tensor([[1.0], [0.0]])  # of the feature and of the constant
    x_BND = torch.tensor([0.0, 1.0, 0.0, 1.0]).reshape(1, 4, 1)
    logits = dense.upsampled(x_BND, identity, weight, SegmentationTask(1, 255, (2, 2)), 8)
    row = torch.tensor([0, 0, 1, 3, 5, 7, 8, 8]) / 8
    torch.testing.assert_close(logits[0, 0], row.expand(8, 8))


def separable(images: int) -> PatchFeatures:
    """Features that are the class of a patch and noise."""
    mask = torch.from_numpy(np.stack([stripes(seed) for seed in range(images)]))
    class_IN = mask[:, ::4, ::4].flatten(1).long()  # of one class each
    noise = torch.randn(images, 16, 5, generator=torch.Generator().manual_seed(0))
    return PatchFeatures(torch.cat([F.one_hot(class_IN, 3).float(), 0.1 * noise], 2), mask)


def test_training_is_sgd_on_the_cross_entropy_of_all_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch's own, one rate after the other; also where a batch is taken in parts."""
    task, rates, steps = SegmentationTask(3, 2, (4, 4)), (0.5, 0.05), 7  # class 2 is ignored
    train = separable(6)
    scale = probes.mean_and_std(train.x_IND.flatten(0, 1))
    probe = Probe(rates=list(rates), steps=steps, batch=4)
    given = (train, task, scale, probe, torch.device("cpu"))
    whole = dense.train_segmenter(*given)
    monkeypatch.setattr(probes, "ELEMENTS", 3 * 2 * 256)  # one image
    torch.testing.assert_close(dense.train_segmenter(*given), whole)
    for group, rate in enumerate(rates):
        weight = torch.zeros(9, 3, requires_grad=True)

        def loss_at(step: int, weight: Tensor = weight) -> Tensor:
            rows = probes.rows_of_batch(step, 4, 6)
            x = (train.x_IND[rows] - scale.mean.float()) / scale.std.float()
            low = (F.pad(x, (0, 1), value=1.0) @ weight).transpose(1, 2).reshape(4, 3, 4, 4)
            logits = F.interpolate(low, scale_factor=4, mode="bilinear")
            return F.cross_entropy(logits, train.mask_ISS[rows].long(), ignore_index=2)

        plain_sgd.train([weight], rate, steps, loss_at)
        torch.testing.assert_close(whole[group], weight.detach(), atol=1e-5, rtol=1e-4)


def loaded(data: Data, rank: int = 0, processes: int = 1, split: str = "train"):
    source = getattr(run_splits.load(data, test=True), split)
    layout = BatchLayout(3 * processes, 3, rank, processes)
    return list(masks.loader(source, data, layout, 0, None))


@pytest.mark.parametrize(
    ("mode", "crop", "shape"),
    [
        *(("crop", 0.8, shape) for shape in ((40, 56), (61, 33), (9, 14))),
        ("crop", 1.0, (61, 33)),
        ("squash", 0.875, (40, 56)),
        ("crop", 0.8, (30, 37)),  # is not resized, and the middle is cut
    ],
)
def test_a_mask_gets_the_geometry_of_its_image(
    mode: str, crop: float, shape: tuple[int, int], tmp_path: Path
) -> None:
    """An image in two colours, by which its pixels are classified after all preprocessing, has
    the mask's classes but for pixels that an edge runs through; a mask moved by a pixel has not."""
    height, width = shape
    y, x = np.mgrid[:height, :width]
    drawn = ((x > width * 0.45) ^ (y > height * 0.6)).astype(np.uint8)
    rows = {"image": [encoded(255 * np.repeat(drawn[..., None], 3, 2))], "mask": [encoded(drawn)]}
    kinds = datasets.Features(dict.fromkeys(rows, datasets.Image()))
    datasets.Dataset.from_dict(rows, kinds).to_parquet(tmp_path / "train.parquet")
    data = Data(name="x", path=str(tmp_path), size=24, eval_mode=mode, eval_crop=crop)
    source = open_splits(data).splits["train"]
    (batch,) = masks.loader(source, data, BatchLayout(1, 1, 0, 1), 0, None)
    value = batch.image[0].float().mean(0)
    pure = (value < 30) | (value > 225)
    shown = (value > 127).int()
    assert pure.float().mean() > 0.7 and (shown == batch.mask[0])[pure].all()
    assert not (shown == batch.mask[0].roll(2, 1))[pure].all()
    assert shape != (30, 37) or (pure.all() and (shown == batch.mask[0]).all())


def test_masks_are_the_same_shared_and_on_several_processes(colored: Path) -> None:
    def data(**settings) -> Data:
        return Data(name="x", path=str(colored), size=16, eval_crop=1.0, **settings)

    whole = run_splits.load(data(), test=True).train
    assert whole.masks.column == "mask"
    few = masks.choose_images(whole, 5)
    kept = [whole.fetch_masks(np.array([row]))[0] for row in few.store_rows()]
    assert few.fetch_masks(np.arange(5)) == kept
    alone = torch.cat([batch.mask for batch in loaded(data())])
    parts = [batch for rank in range(2) for batch in loaded(data(), rank, 2)]
    assert torch.equal(torch.cat([batch.mask for batch in parts]), alone)
    assert torch.equal(alone, torch.from_numpy(np.stack([stripes(n) for n in range(12)])).int())


def test_a_palette_s_indices_are_the_classes_and_the_rest_is_refused() -> None:
    drawn = stripes(0)
    image = Image.fromarray(drawn, "P")
    image.putpalette([255 - n // 3 for n in range(768)])
    file = io.BytesIO()
    image.save(file, "png")
    assert (masks.decode(file.getvalue()).numpy() == drawn).all()
    deep = Image.fromarray(drawn.astype(np.uint16) * 300)
    file = io.BytesIO()
    deep.save(file, "png")
    assert (masks.decode(file.getvalue()).numpy() == 300 * drawn.astype(int)).all()
    with pytest.raises(ValueError, match="RGB"):
        masks.decode(encoded(COLORS[drawn])["bytes"])
    with pytest.raises(ValueError, match="cannot read the mask"):
        masks.decode(b"nothing")


def test_colours_are_segmented_and_a_finished_result_is_of_these_masks(
    colored: Path, tmp_path: Path
) -> None:
    """The baselines by hand; the same command returns the result, and not with other masks."""
    options = [*OPTIONS, f"data.path={colored}", f"out={tmp_path}", "name=s"]
    result = ssl_vit.evaluate(options)
    found = {name: entry.value for name, entry in result.metrics.items()}
    assert found["miou"] > 0.9 and found["pixel_accuracy"] > 0.95
    train = np.stack([stripes(seed) for seed in range(12)])
    test = np.stack([stripes(200 + seed) for seed in range(4)])
    commonest = np.bincount(train.ravel()).argmax()
    share = (test == commonest).mean()
    assert found["majority_pixel_accuracy"] == pytest.approx(share)
    assert found["majority_miou"] == pytest.approx(share / len(np.unique(test)))
    assert {entry.n for entry in result.measurements} == {4}
    assert result["images"] == 20
    assert ssl_vit.evaluate(options) == result
    other = write(tmp_path / "other", stripes(7))
    with pytest.raises(UserError, match="name=s"):
        ssl_vit.evaluate(altered(options, f"data.path={other}"))


def test_the_embedded_masks_and_a_layer_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["probe.mask_images=20", "probe.steps=2"]
    options = [*altered(OPTIONS, "data.validation=null", *small), f"out={tmp_path}"]
    shares = {"data=shapes", "data.size=16", "probe.layer=1"}
    monkeypatch.setattr(DrawnStore, "__len__", lambda self: 200)
    result = ssl_vit.evaluate([*options, *(shares - set(options))])
    found = {name: entry.value for name, entry in result.metrics.items()}
    assert 0 < found["miou"] < 1 and 0 < found["pixel_accuracy"] < 1


WRONG = {
    "splits of other columns": (
        {"column": ""},
        [],
        "data.mask_column=null: the test split ",
    ),
    "no masks": ({}, ["data.image_column=mask", "data.mask_column=null"], "columns: image"),
    "no such column": ({}, ["data.mask_column=mas"], "did you mean mask?"),
    "the images' column": ({}, ["data.mask_column=image"], "data.mask_column=image: "),
    "another size": ({"changed": [stripes(0, 16, 20)]}, [], "20 x 16 pixels and the image 16 x 16"),
    "beyond the training masks": ({"changed": [stripes(0) + 9]}, [], "Use 0 to 2 "),
    "beyond those given": ({}, ["data.mask_classes=2"], "Use 0 to 1 (data.mask_classes=), or 255 "),
    "one class alone": ({"split": "train", "changed": [stripes(0) * 0] * 12}, [], "at least 2"),
}


@pytest.mark.parametrize(("made", "words", "says"), WRONG.values(), ids=WRONG)
def test_masks_that_do_not_suit_are_named_in_one_line(
    made: dict, words: list[str], says: str, tmp_path: Path
) -> None:
    changed = made.get("changed", [])
    others = {key: value for key, value in made.items() if key != "changed"}
    folder = write(tmp_path / "data", *changed, **others)
    with pytest.raises(UserError) as caught:
        ssl_vit.evaluate(altered([*OPTIONS, f"data.path={folder}", f"out={tmp_path}"], *words))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("result.json"))


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", stripes(0), b"damaged", split="train")
    data = Data(name="x", path=str(folder), size=16, eval_crop=1.0)
    batches = loaded(data)
    assert sum(len(batch.image) for batch in batches) == 11
    (named,) = [text for batch in batches for text in batch.unreadable]
    assert named.startswith("row 1") and "cannot read the mask" in named


def test_a_difference_of_few_masks_has_no_interval() -> None:
    image_13C = torch.tensor([[[3, 1], [4, 2], [4, 2]]])
    for images, known in ((29, None), (30, (0, 0))):
        each = image_13C.expand(images, -1, -1)
        of = dense.PixelCounts(image_13C, image_13C[0], each, np.arange(images))
        miou, *_ = dense.segmentation_metrics({ENCODER: of, UNTRAINED: of}, paired=True)
        found = miou.differences.get(UNTRAINED)
        assert (found and (found.low, found.high)) == known


@pytest.mark.parametrize("ignore", [-1, 256])
def test_an_ignored_value_beyond_a_byte_is_no_other_class(ignore: int) -> None:
    """In bytes -1 was 255, and 256 was 0, the commonest class, which then did not count."""
    common = 255 if ignore == -1 else 0
    mask_ISS = torch.full((2, 4, 4), common, dtype=torch.uint8)
    mask_ISS[0, 0, 0] = 1
    train = PatchFeatures(torch.randn(2, 4, 3), mask_ISS)
    probe = Probe(measures=["segmentation"], steps=1, batch=2, rates=[0.1])
    task = SegmentationTask(common + 2, ignore, (2, 2))
    fitted = dense._fit(train, task, probe, torch.device("cpu"))
    assert fitted.pixel_class == common


@pytest.mark.parametrize("split", ["train", "test"])
def test_patch_features_that_are_not_finite_are_not_measured(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data")
    tokens, calls = Encoder.tokens, []

    def overflowing(self: Encoder, image: Tensor, layer: int | None = None) -> Tensor:
        calls.append(len(image))
        found = tokens(self, image, layer)
        if split == "train" or sum(calls) > 16:  # after the training and the held-out images
            found[0, 3, 1] = torch.nan
        return found

    monkeypatch.setattr(Encoder, "tokens", overflowing)
    words = [*OPTIONS, f"data.path={tmp_path / 'data'}", f"out={tmp_path}", "name=s"]
    count = "3 of 12" if split == "train" else "1 of 4"
    with pytest.raises(UserError, match=f"{count} images"):
        ssl_vit.evaluate(altered(words, "compute.batch=4"))
    assert not (tmp_path / "s" / "result.json").exists()
