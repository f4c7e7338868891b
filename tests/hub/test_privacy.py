"""What a push of a run on private photographs tells: no pixel of them, no name of a file, no path,
host or user of the machine."""

import io
import platform
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ssl_vit
from helpers.hub_runs import REPO
from helpers.hub_server import Hub
from helpers.options import TINY
from helpers.resolving import resolve
from helpers.runs import run as train
from ssl_vit.hub import public, pull, push
from ssl_vit.jobs import cli
from ssl_vit.recipe.images import Data
from ssl_vit.recipe.schema import dump
from ssl_vit.recipe.tools import FIGURES
from ssl_vit.runs.folder import Run, open_run

COLOUR = (250, 3, 147)  # of every photograph, and of nothing else
CLASSES = ("Aunt Anna", "Uncle Bert")
HOST, PERSON = "host-of-the-clinic", "doctor-bert"
HARMLESS = {f"figures/{name}.png" for name in ("filters", "positions", "attention_distance")}
OPTIONS = [word for word in TINY if not word.startswith("recipe=")]
STATE = ("hub.state=true", f"hub.repo={REPO}")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "clinicphotos"
    for split, count in (("train", 20), ("test", 5)):
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                noise = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
                noise[:, 4:] = COLOUR
                Image.fromarray(noise).save(folder / split / name / f"IMG_holiday_{number}.png")
    (folder / "train" / CLASSES[0] / "IMG_broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def runs(photographs: Path) -> dict[str, Run]:
    """A pre-training with a default name, whose figures were drawn, and a fine-tuning from it."""
    place = [f"data.path={photographs}", f"out={photographs.parent}/runs", "data.unreadable=1"]
    recipes = photographs.parent / "clinicphotos_recipe.yaml"
    recipes.write_text(f"base: mae\ndata:\n  path: {photographs}/elsewhere\n")
    words = ["mae.width=32", "mae.depth=1", "mae.heads=2", "probe.every=4", "probe.shots=[5]"]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((socket, "gethostname"), (platform, "node")):
            patch.setattr(module, name, lambda: HOST)
        for name in ("USER", "LOGNAME"):
            patch.setenv(name, PERSON)
        first = train([f"recipe={recipes}", *OPTIONS, *words, *place])
        assert "clinicphotos" in first.folder.name
        words = ["recipe=finetune", f"init={first.folder}", "name=tuned"]
        options = [word for word in OPTIONS if not word.startswith("model.")]
        second = train([*options, *words, *place])
        for made in (first, second):
            ssl_vit.figures([f"init={made.folder}", "images=16", "shown=2"])
    return {"pretraining": first, "fine-tuning": second}


def tells(content: bytes, photographs: Path, classes: bool) -> list[str]:
    """The private texts in a file."""
    private = [str(photographs.parent), "clinicphotos", "IMG_", str(Path.home()), "/tmp"]
    private += [HOST, PERSON, str(Path(ssl_vit.__file__).parent)]
    private += CLASSES if classes else []
    return [text for text in private if text.encode() in content]


def shows(content: bytes) -> bool:
    """Whether a picture has pixels of the photographs' colour."""
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    return bool((np.abs(pixels - COLOUR).max(-1) < 16).any())


def arrived(server: Hub) -> dict[str, bytes]:
    repository = server.repositories[REPO]
    return {
        f"{branch}/{name}": content
        for branch, commit in repository.branches.items()
        for name, content in repository.commits[commit].files.items()
    }


@pytest.mark.parametrize("kind", ["pretraining", "fine-tuning"])
def test_a_push_tells_nothing_of_private_photographs(
    server: Hub,
    runs: dict[str, Run],
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    kind: str,
) -> None:
    """A held-out photograph was in figures/predictions.png."""
    made = open_run(shutil.copytree(runs[kind].folder, tmp_path / "r" / runs[kind].folder.name))
    shutil.copytree(made.export, made.outbox / "step-000000004")
    for stray in (made.export / "note.txt", made.figures / "mine.png"):
        shutil.copyfile(photographs / "test" / CLASSES[0] / "IMG_holiday_0.png", stray)
    push.main([str(made.folder), *STATE, "dry=true"])
    lines = capsys.readouterr().out.splitlines()
    planned = {
        line.split()[2][:-1] + "/" + line.split()[3][:-1]
        for line in lines
        if line.startswith("would push")
    }
    card = (made.folder / "hub" / "README.md").read_bytes()
    assert not tells(card, photographs, classes=True) and not server.requests
    (withheld,) = (line for line in lines if line.startswith("kept here"))
    drawn = "predictions" if kind == "pretraining" else "attention_rollout"
    assert "hub.figures=true" in withheld
    assert f"main: figures/{drawn}.png" not in "".join(lines)
    named = [line for line in lines if line.startswith("includes") and CLASSES[1] in line]
    assert len(named) == (kind == "fine-tuning")

    push.main([str(made.folder), *STATE])
    files = arrived(server)
    ours = {name for name in files if not name.endswith(".gitattributes")}
    assert ours >= planned and {name.split("/")[0] for name in files} == {
        *("main", "state", "step-000000004")
    }
    for name, content in files.items():
        is_head = kind == "fine-tuning" and name.endswith("/config.json")
        assert tells(content, photographs, not is_head) == [], name
        if name.endswith(".png"):
            assert not shows(content), name
    others = {name for name in files if name.endswith((".png", ".svg", ".npz", ".txt"))}
    assert others <= {f"main/{name}" for name in HARMLESS}

    push.main([str(made.folder), *STATE, "hub.figures=true"])
    files = arrived(server)
    shown = {name for name in files if name.endswith(".png") and shows(files[name])}
    assert f"main/figures/{drawn}.png" in shown


def test_a_pulled_state_of_a_private_run_goes_on(
    server: Hub, runs: dict[str, Run], photographs: Path, tmp_path: Path
) -> None:
    """With the same images: names that were left out are not what makes it the same run."""
    made = open_run(shutil.copytree(runs["pretraining"].folder, tmp_path / "r" / "clinicphotos-1"))
    for lost in (made.folder / "result.json", made.checkpoints / "step-000000012"):
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    push.main([str(made.folder), *STATE])
    pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/pulled", "name=again"])
    folder = tmp_path / "pulled" / "again"
    words = [f"recipe={folder}/recipe.yaml", "name=again", f"out={tmp_path}/pulled"]
    cli.pretrain([*words, f"data.path={photographs}"])
    assert "started at step 8" in (folder / "log.txt").read_text()
    weights = "export/model.safetensors"
    assert (folder / weights).read_bytes() == (runs["pretraining"].folder / weights).read_bytes()


def test_figures_are_withheld_unless_they_are_declared_to_show_no_image(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    """Also a figure that nobody has declared, and one of a run whose name tells of the images."""
    made = open_run(shutil.copytree(runs["pretraining"].folder, tmp_path / "mae"))
    kept = {f"figures/{name}.png" for name in (*FIGURES, "predictions")}
    kept -= {"figures/predicted.png", "figures/class_attention.png"} - {
        f"figures/{path.name}" for path in made.figures.glob("*.png")
    }
    found = public.find_figures(made)
    assert set(found.uploaded) == HARMLESS and {*found.withheld, *HARMLESS} == kept
    assert not any(shows(path.read_bytes()) for path in found.uploaded.values())
    assert not public.find_figures(runs["pretraining"]).uploaded


@pytest.mark.parametrize(
    ("data", "allowed"),
    [
        ({"name": "shapes"}, True),
        ({"name": "cifar10", "hub": "uoft-cs/cifar10"}, True),
        ({"name": "cifar10", "hub": "uoft-cs/cifar10", "path": "/home/me/images"}, False),
        ({"name": "imagenet", "hub": "ILSVRC/imagenet-1k"}, False),
        ({"name": "me--photos", "hub": "me/photos"}, False),
    ],
)
def test_only_published_sets_free_their_figures(
    runs: dict[str, Run], data: dict[str, str], allowed: bool
) -> None:
    recipe = runs["pretraining"].recipe.model_copy(deep=True)
    recipe.data = Data(**data)
    assert public.may_show_images(recipe) is allowed
    recipe.hub.figures = True
    assert public.may_show_images(recipe)


@pytest.mark.parametrize("key", ["init", "distill.teacher"])
@pytest.mark.parametrize("inside", ["", "export"])
def test_a_cut_default_name_does_not_tell_of_the_weights(
    runs: dict[str, Run], tmp_path: Path, key: str, inside: str
) -> None:
    """Only a whole name of the folder of local weights was found in the name of the run."""
    folder = tmp_path / f"clinicphotos-{'x' * 90}"
    shutil.copytree(runs["pretraining"].folder, folder)
    words = ["recipe=finetune"] if key == "init" else ["recipe=distill"]
    recipe = resolve([*words, "data=cifar10", f"{key}={folder / inside}"], here=False)
    assert "clinicphotos" in recipe.name
    assert "clinicphotos" not in dump(public.public_recipe(recipe))
    plain = resolve(["recipe=mae", "data=cifar10", "optim.steps=3"], here=False)
    assert public.public_recipe(plain).name == plain.name
