"""data.augment: an augmentation of the user's own depends on the sample alone, and has an identity."""

import functools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

import ssl_vit
from helpers.launching import python
from helpers.options import TINY, altered
from ssl_vit.data import own_augment
from ssl_vit.recipe import augmentations

FEW = altered(TINY, "optim.steps=4", "optim.batch=8", "log.every=1", "data.share=0.01")
STRENGTH = 3


def noisy(image: Tensor) -> Tensor:
    """Draw from all three global generators."""
    shift = random.randrange(9) + np.random.randint(9) + torch.randint(9, ())  # noqa: NPY002
    return (image // 2 + STRENGTH + shift).to(image.dtype)


def with_chance(chance: float) -> Callable[[Tensor], Tensor]:
    return lambda image: noisy(image) if random.random() < chance else image


class Turn:
    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, image: Tensor) -> Tensor:
        return self.turned(image)

    def turned(self, image: Tensor) -> Tensor:
        return image.rot90(self.times, (1, 2))


class Last:
    """Mixes an image with the one before."""

    def __init__(self) -> None:
        self.last: Any = 0

    def __call__(self, image: Tensor) -> Tensor:
        mixed, self.last = image // 2 + self.last, image // 2
        return mixed


def losses(run: Any) -> list[float]:
    return [row["loss"] for row in ssl_vit.load_run(run.folder).rows() if "loss" in row]


def apply(augmentation: Any, keys: list[int]) -> list[Tensor]:
    name = augmentations.register(augmentation)
    image = torch.arange(3 * 6 * 8).reshape(3, 6, 8).to(torch.uint8)
    return own_augment.augment(
        augmentations.AUGMENTATIONS[name], name, [image] * len(keys), np.array(keys)
    )


def compositions() -> list[Any]:
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.RandomBrightnessContrast(p=0.5), albumentations.HorizontalFlip()]
    return [noisy, v2.ColorJitter(0.5), albumentations.Compose(steps)]


def test_an_image_depends_on_its_key_alone() -> None:
    for augmentation in compositions():
        keys = [*range(20)]
        images = apply(augmentation, keys)
        random.random()
        torch.rand(3)
        again = apply(augmentation, keys[::-1])[::-1]  # in another order
        assert all(map(torch.equal, images, again))
        assert len({image.numpy().tobytes() for image in images}) > 5


def test_the_global_generators_are_left_as_they_were() -> None:
    def state() -> tuple[Any, ...]:
        numbers = np.random.get_state()[1]  # noqa: NPY002
        return random.getstate(), numbers.tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr]

    before = state()
    for augmentation in compositions():
        apply(augmentation, [1, 2])
    assert state() == before


def test_the_identity_is_the_code_and_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    albumentations = pytest.importorskip("albumentations")

    def pair(make: Callable[[float], Any]) -> tuple[str, str, str]:
        return tuple(augmentations.register(make(value)) for value in (0.25, 0.5, 0.25))  # type: ignore[return-value]

    for make in (
        v2.RandomHorizontalFlip,
        lambda chance: v2.Compose([v2.RandomApply([v2.GaussianBlur(3)], p=chance)]),
        lambda chance: albumentations.Compose([albumentations.HorizontalFlip(p=chance)]),
        with_chance,
        lambda chance: Turn(int(4 * chance)),
        lambda chance: v2.Lambda(with_chance(chance)),
        lambda chance: Turn(int(4 * chance)).turned,
    ):
        first, second, third = pair(make)
        assert first == third != second, first
    before = augmentations.register(noisy)
    monkeypatch.setitem(globals(), "STRENGTH", 4)
    assert augmentations.register(noisy) != before


def test_the_identity_is_the_same_in_every_process(tmp_path: Path) -> None:
    """An address or the order of a set in it would refuse to resume."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom torchvision.transforms import v2\n"
        "from ssl_vit.recipe.augmentations import register\n"
        "WORDS = {'a', 'b', 'c'}\n"
        "def f(image): return image + np.random.randint(9) if 'a' in WORDS else image\n"
        "print(register(f), register(v2.Compose([v2.Lambda(f), v2.RandAugment()])))"
    )
    names = {python(tmp_path / "own.py", PYTHONHASHSEED=str(seed)).stdout for seed in (1, 2)}
    assert len(names) == 1 and "Compose-" in names.pop()


def test_code_that_is_used_indirectly_is_part_of_the_identity() -> None:
    first, second = v2.ColorJitter(0.1), v2.ColorJitter(0.9)
    lambdas = [lambda image: image, lambda image: 255 - image]

    def wrapped(times: int) -> Callable[[Tensor], Tensor]:
        @functools.wraps(noisy)
        def call(image: Tensor) -> Tensor:
            return noisy(image) * times

        return call

    def static(times: int) -> Any:
        class Static:
            @staticmethod
            def __call__(image: Tensor) -> Tensor:
                return image * times

        return Static()

    pairs = [
        [v2.Compose([first, second, first]), v2.Compose([first, second, second])],
        [
            v2.Compose([v2.RandomOrder([first]), second]),
            v2.Compose([v2.RandomOrder([first, second])]),
        ],
        lambdas,
        [v2.Lambda(one) for one in lambdas],
        [wrapped(1), wrapped(2)],
        [static(1), static(2)],
    ]
    for pair in pairs:
        assert len({augmentations.register(one) for one in pair}) == 2


def test_an_augmentation_neither_changes_its_input_nor_keeps_its_output() -> None:
    albumentations = pytest.importorskip("albumentations")

    class InPlace(albumentations.ImageOnlyTransform):
        def apply(self, img: np.ndarray, **_: Any) -> np.ndarray:
            img[:] = 255 - img
            return img

    buffer = torch.empty(3, 6, 8, dtype=torch.uint8)

    def one_buffer(image: Tensor) -> Tensor:
        return torch.add(image // 2, random.randrange(99), out=buffer)

    image = torch.arange(3 * 6 * 8).reshape(6, 8, 3).to(torch.uint8).permute(2, 0, 1)
    for call in (albumentations.Compose([InPlace(p=1)]), one_buffer):
        before = image.clone()
        own = augmentations.AUGMENTATIONS[augmentations.register(call, "own")]
        images = own_augment.augment(own, "own", [image] * 9, np.arange(9))
        assert torch.equal(image, before)
        assert len({one.data_ptr() for one in images}) == 9


def test_fine_tuning_does_not_take_over_the_augmentation(tmp_path: Path) -> None:
    run = ssl_vit.pretrain(FEW, name="own", out=tmp_path, augment=noisy)
    tuned = ssl_vit.resolve({"recipe": "finetune", "init": run.folder})
    assert ssl_vit.load_run(run.folder).recipe.data.augment and tuned.data.augment is None
    augmentations.AUGMENTATIONS.clear()  # another process
    few = {"recipe": "evaluate", "init": run.folder, "probe": {"measures": ["knn"]}}
    assert ssl_vit.evaluate(few, data={"share": 0.01, "test": 0.01}, out=tmp_path, name="look")


def test_a_study_takes_the_augmentation_of_a_plugin_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from ssl_vit.extend import augmentation\naugmentation('turned')(lambda x: x.rot90(2, (1, 2)))"
    )
    name = augmentations.register(noisy)
    study = {"recipe": "mpp", "sweep": {"optim.lr": [0.1, 0.2]}, "check": True, "out": tmp_path}
    with pytest.raises(ssl_vit.UserError, match=r"data\.augment=noisy-.*plugin"):
        ssl_vit.study(study, data={"augment": name})
    plugin = {"plugin": str(tmp_path / "own.py"), "data": {"augment": "turned"}}
    assert len(ssl_vit.study(study, **plugin).runs) == 2


def test_a_run_is_the_same_with_workers_and_resumes_with_the_same_augmentation_alone(
    tmp_path: Path,
) -> None:
    make = {"out": tmp_path, "augment": noisy}
    run = ssl_vit.pretrain(FEW, name="a", **make)
    workers = ssl_vit.pretrain(FEW, name="b", **make, compute={"workers": 2})
    plain = ssl_vit.pretrain(FEW, name="c", out=tmp_path)
    assert losses(run) == losses(workers) != losses(plain)
    assert ssl_vit.pretrain(FEW, name="a", **make) == run
    with pytest.raises(ssl_vit.UserError, match=r"data\.augment"):
        ssl_vit.pretrain(FEW, name="a", out=tmp_path, augment=with_chance(0.5))
    with pytest.raises(ssl_vit.UserError, match=r"data\.augment=Turn"):
        ssl_vit.pretrain(FEW, name="d", out=tmp_path, data={"augment": "Turn"})


def test_views_are_augmented_one_by_one(tmp_path: Path) -> None:
    few = altered(FEW, "recipe=moco_v3", "optim.steps=2", "optim.warmup=1")
    few = [option for option in few if not option.startswith("eval.knn")]
    kwargs = {"out": tmp_path, "views": {"jitter": 0, "grayscale": 0}}
    own = ssl_vit.pretrain(few, name="own", augment=noisy, **kwargs)
    assert losses(own) != losses(ssl_vit.pretrain(few, name="plain", **kwargs))


@pytest.mark.parametrize(
    ("augmentation", "text"),
    [
        (5, "expected a function"),
        (np.random.default_rng(0).permutation, "Generator"),
        (partial(lambda image, own: image + own.randrange(9), own=random.Random(0)), "Random"),
        (partial(lambda image, own: image, own=torch.Generator()), "Generator"),
        (Last(), "earlier images"),
        (lambda image, number=np.random.default_rng: image + number().integers(9), "same seed"),
        (v2.ToDtype(torch.float32, scale=True), "float32"),
        (v2.Grayscale(), "type and channels"),
        (partial(lambda image, opaque: image, opaque=object()), "augment_name"),
        (lambda image: image.rotate(20), r"raised AttributeError: .* for a Tensor of torch.uint8"),
    ],
)
def test_what_cannot_be_seeded_or_named_is_one_line(
    augmentation: Any, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ssl_vit.UserError, match=text):
        ssl_vit.pretrain(FEW, name="run", out=tmp_path, augment=augmentation)
    rows = tmp_path / "run/metrics.jsonl"
    assert not rows.exists() or not rows.read_text()
