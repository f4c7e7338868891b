"""Decoded images kept in memory: the batches are those of the loader that decodes at each step."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from helpers.images import png
from helpers.options import altered
from helpers.resolving import resolve
from helpers.runs import run
from helpers.sources import DATA, listed, noisy
from ssl_vit.data import loaders
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import Batch
from ssl_vit.data.resident import NotResident, decode_split
from ssl_vit.data.source import Source
from ssl_vit.errors import UserError
from ssl_vit.jobs import resources
from ssl_vit.recipe.schema import Data


def decoded_of(source: Source, most_bytes: float = 1e9):
    return decode_split(source, Data(), most_bytes, 2)


def plain(batches: Iterable[Batch]) -> list[list]:
    """Batches as np.testing.assert_equal compares them."""
    return [
        [(x.dtype, x.numpy()) if isinstance(x, torch.Tensor) else x for x in batch]
        for batch in batches
    ]


SOURCES = {
    "broken": lambda: noisy(50, broken=(0, 7, 8, 9, 49)),
    "share": lambda: noisy(60, broken=range(3, 8)).subset(
        np.random.default_rng(3).permutation(60)[5:55]
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_those_of_decoding_at_each_step(name):
    """With two workers too."""
    source = SOURCES[name]()
    decoded = decoded_of(source)
    for data in (DATA, DATA.model_copy(update={"mixup": 0.8, "cutmix": 1.0, "size": 6})):
        # two passes a step on the second of two processes, from a later step on
        layout = BatchLayout(16, 4, 1, 2)
        given = (source, data, layout, 5, 3, 9)
        right = list(loaders.training_loader(*given, 0))
        for workers in (0, 2):
            found = list(loaders.training_loader(*given, workers, decoded=decoded))
            np.testing.assert_equal(plain(found), plain(right))
        assert any(batch.unreadable for batch in right)


def test_too_many_unreadable_images_in_a_row_end_the_run_when_they_are_drawn():
    source = noisy(60, broken=range(10, 40))
    batches = loaders.training_loader(
        source, DATA, BatchLayout(60, 60, 0, 1), 0, 0, 1, 0, decoded=decoded_of(source)
    )
    with pytest.raises(UserError, match=r"20 images in a row.* number"):
        list(batches)


def sized():
    """Images of 8 x 8 pixels, and one of another size."""
    return listed([np.zeros((9 if n == 30 else 8, 8, 3), np.uint8) for n in range(40)])


def test_images_that_cannot_be_kept_say_why():
    with pytest.raises(NotResident, match=r"8 x 8 and 8 x 9 pixels"):
        decoded_of(sized())
    with pytest.raises(NotResident, match=r"^40 images of 8 x 8 pixels"):
        decoded_of(noisy(40), most_bytes=40 * 8 * 8 * 3 - 1)
    with pytest.raises(NotResident, match="none of the first"):
        decoded_of(noisy(40, broken=range(40)))


@pytest.fixture
def options(tiny, tmp_path) -> list[str]:
    """A run on 40 images, one of them cut off."""
    folder = tmp_path / "images" / "train"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"{number}.png").write_bytes(png(number)[: 50 if number == 7 else None])
    return altered(tiny, f"data.path={folder.parent}")


def test_a_run_is_the_same_and_names_the_memory(options, capsys):
    words = altered(options, "data.validation=0.1", "data.unreadable=0.5", "optim.steps=6")
    rows = []
    for resident in ("null", "false"):
        made = run([*words, f"compute.resident={resident}", f"name={resident}"])
        text = capsys.readouterr().out
        assert ("decoded in memory: 36 images" in text) == (resident == "null")
        assert text.count("an unreadable image was replaced by the next image") == 1, "named once"
        rows.append([(row["loss"], row.get("unreadable")) for row in made.rows()])
    assert rows[0] == rows[1] and len(rows[0]) == 3


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["recipe=moco_v3"], "objective=moco_v3 compares views"),
        ([], "different sizes"),
    ],
)
def test_what_cannot_be_kept_in_memory_is_refused_where_it_is_asked_for(tiny, given, reason):
    recipe = resolve(altered(tiny, *given, "compute.resident=true"))
    with pytest.raises(UserError, match=rf"^compute\.resident=true: .*{reason}"):
        resources.resident_images(recipe, sized(), 0)
    recipe.compute.resident = None
    assert resources.resident_images(recipe, sized(), 0) is None


def test_by_itself_only_what_is_seen_twice_and_fits_is_kept(options):
    recipe = resolve(options)
    seen = recipe.optim.steps * recipe.optim.batch

    def kept(images: int, step: int = 0) -> bool:
        return resources.resident_images(recipe, noisy(images), step) is not None

    assert kept(seen // 2) and not kept(seen // 2 + 1)
    assert kept(40, recipe.optim.steps - 5) and not kept(41, recipe.optim.steps - 5)
    recipe.compute.resident = True
    assert kept(seen)
