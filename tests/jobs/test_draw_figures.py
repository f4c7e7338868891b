"""tools/figures.py: which encoders, which images, what is written, what is refused."""

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save, save_file

import ssl_vit
from helpers.exports import forget_digests, of_timm
from helpers.hub_runs import refused
from helpers.launching import launch
from helpers.options import TINY, altered
from ssl_vit.errors import UserError
from ssl_vit.inspection import drawing
from ssl_vit.jobs import draw_figures
from ssl_vit.recipe import tools

FEW = ["images=2", "shown=2", "compute.threads=1", "name=f"]
FORMS = ("npz", "png", "svg")
FIGURES = {
    *("filters", "positions", "attention_distance", "attention_rollout", "class_attention"),
    *("feature_map", "reconstruction", "predicted"),
}


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """Options of a small call with a folder of its own."""
    return [*FEW, f"out={tmp_path}"]


@pytest.fixture
def mine(still: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return shutil.copytree(still, tmp_path / "mine")


def draw(*options: str) -> None:
    """The last option of a key counts."""
    draw_figures.main(altered([], *options))


def arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}.npz") as file:
        return dict(file)


def figures_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()} - {"figures", "lock"}


def figures_recorded(folder: Path) -> dict:
    return json.loads((folder / "figures.json").read_text())["figures"]


def test_the_names_are_those_of_the_figures() -> None:
    """They are written out, so that --help and mistakes are answered without torch."""
    assert {*tools.FIGURES} == FIGURES


def assert_no_ground(path: Path) -> None:
    """Much of a figure is the page's ground, and none of it is white."""
    found = np.asarray(Image.open(path))
    assert (found[..., 3] == 0).mean() > 0.15 and (found[0, :, 3] == 0).all(), path
    assert (found > 230).all(-1).mean() < 0.001, path


def test_a_run_is_drawn_beside_what_it_began_with(
    still: Path, place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    draw(f"init={still}", *place, "images=9")
    text = capsys.readouterr().out
    assert "images      shapes, test images: 9 of 5,000" in text
    assert "left out" not in text  # that untrained weights have no heads is no news
    drawn = {}
    for name in FIGURES - {"predicted"}:
        assert (tmp_path / "f" / f"{name}.svg").stat().st_size > 2000
        assert_no_ground(tmp_path / "f" / f"{name}.png")
        drawn[name] = arrays(tmp_path / "f", name)
    assert drawn["filters"]["encoders"].tolist() == ["scratch", "mpp"]
    assert drawn["reconstruction"]["encoders"].tolist() == ["mpp"]
    # its seed included
    for name, key in (("positions", "patches"), ("attention_distance", "distance")):
        before, after = (drawn[name][f"{key}_{number}"] for number in range(2))
        np.testing.assert_allclose(before, after, rtol=1e-3, atol=1e-4)
    # a head that has learned nothing is certain of nothing
    certainty = drawn["reconstruction"]["certainty_0"]
    np.testing.assert_allclose(certainty[~np.isnan(certainty)], 1 / 512, rtol=1e-3)
    rollout = drawn["attention_rollout"]
    assert np.array_equal(rollout["images_0"], rollout["images_1"])
    assert rollout["images_0"].shape == (2, 16, 16, 3)
    assert rollout["pool_0"].item() == rollout["pool_1"].item() == "avg"
    record = figures_recorded(tmp_path / "f")
    assert record["filters"] == {"images": "shapes, test images", "count": 9, "drawn": ""}
    assert record["reconstruction"]["drawn"].startswith("certainty: ")


def test_another_library_s_model_has_its_own_preprocessing(
    still: Path, place: list[str], tmp_path: Path
) -> None:
    """A crop of 0.9, of the same images; and its untrained weights have it too."""
    other = of_timm(tmp_path / "a $weird$ <b>", crop=0.9, init_values=None)
    own = [*place, "figures=attention_rollout", "data=shapes"]
    draw(f"init={still}", *own)
    images = arrays(tmp_path / "f", "attention_rollout")["images_1"]
    draw(f"init={other}", *own, "name=g")
    shown = arrays(tmp_path / "g", "attention_rollout")
    assert shown["encoders"].tolist() == ["scratch", "a $weird$ <b>"]
    theirs = shown["images_1"]
    assert np.array_equal(theirs, shown["images_0"]) and not np.array_equal(images, theirs)
    assert np.corrcoef(images.ravel(), theirs.ravel())[0, 1] > 0.7
    assert shown["pool_0"].item() == shown["pool_1"].item() == "token"


def test_fresh_weights_alone_have_none_beside_them(
    place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """And no images, but those that are said to be used."""
    draw("init=scratch", "model=vit_n8", "figures=filters", *place)
    assert "warning: init=scratch: " in capsys.readouterr().out
    assert arrays(tmp_path / "f", "filters")["encoders"].tolist() == ["scratch"]


def test_a_run_alone_has_its_figures_in_its_folder(
    mine: Path, capsys: pytest.CaptureFixture
) -> None:
    """Beside the one it ends with, and those of an earlier call."""
    draw(f"init={mine}", "figures=filters,reconstruction", "images=3")
    assert f": {mine}/figures" in capsys.readouterr().out
    assert "(figures/filters.svg)" in (mine / "report.html").read_text()
    assert figures_in(mine / "figures") == {"predictions", "filters", "reconstruction"}
    draw(f"init={mine}", "figures=positions", "images=3")
    drawn = {"filters", "reconstruction", "positions"}
    assert figures_in(mine / "figures") == {"predictions", *drawn}
    assert figures_recorded(mine / "figures").keys() == drawn


def test_without_a_class_token_the_other_figures_are_made(
    place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """On images of other sizes, fewer than asked for, of classes with names of all kinds."""
    for name in ("$x^2$", "_hidden", "<b>&amp;"):
        for number, size in enumerate([(40, 20), (7, 9), (16, 16)]):
            noise = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
            for split in ("train", "test"):
                path = tmp_path / "images" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(noise).save(path)
    other = of_timm(tmp_path / "gap", "vit_base_patch16_siglip_gap_224")
    assert "cls_token" not in load_file(other / "model.safetensors")
    draw(f"init={other}", f"data.path={tmp_path}/images", *place, "images=2048")
    text = capsys.readouterr().out
    assert "test images: 9 of 9" in text and "left out    class_attention: gap: " in text
    of_objectives = {"reconstruction", "predicted"}
    assert figures_in(tmp_path / "f") == FIGURES - {"class_attention", *of_objectives}
    assert arrays(tmp_path / "f", "attention_rollout")["pool_0"].item() == "avg"
    with pytest.raises(UserError, match="class token"):  # training still refuses it
        ssl_vit.pretrain(altered(TINY, "model.timm=vit_base_patch16_siglip_gap_224"))


def test_a_model_of_timm_needs_no_description(
    place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """What its config.json leaves out is what timm has under that name."""
    part = of_timm(tmp_path / "part", mlp_ratio=4.0, reg_tokens=3)
    config = json.loads((part / "config.json").read_text())
    del config["model_args"]["mlp_ratio"]
    (part / "config.json").write_text(json.dumps(config))
    draw(f"init={part}", "figures=[class_attention]", *place)
    sizes = "vit_32x2_p4 (2 blocks, 32 wide, patches of 4 px) at 16 px"
    assert f"encoder     part: {sizes}" in capsys.readouterr().out
    hybrid = ssl_vit.resolve("recipe=evaluate init=timm:vit_small_r26_s32_224").model
    assert hybrid.patch == 32 and hybrid.hybrid


def test_the_heads_of_a_joint_run_are_those_of_its_mpp(tiny: list[str], tmp_path: Path) -> None:
    new = ("recipe=joint", "optim.steps=2", "optim.warmup=1", "target=grid_color")
    export = ssl_vit.pretrain(altered(tiny, *new)).folder / "export"
    heads = load_file(export / "heads.safetensors")
    _, bias = (heads[f"parts.mpp.head.{name}"].zero_() for name in ("weight", "bias"))
    bias[7] = 1  # of the 512 colours of the first cell of four
    save_file(heads, export / "heads.safetensors")
    forget_digests(export)
    draw(f"init={export.parent}", *FEW, f"out={tmp_path}", "figures=reconstruction")
    certainty = np.unique(arrays(tmp_path / "f", "reconstruction")["certainty_0"])
    np.testing.assert_allclose(certainty, [1 / 512, np.e / (np.e + 511), np.nan], rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "init= is missing"),
        (["init=scratch,nowhere"], "init=nowhere: no such"),
        (["init=scratch", "images=0"], "images=0: expected a whole number"),
        (["init=scratch", "figures=fliters"], "did you mean filters?"),
        (["init=scratch", "optim.lr=1"], "optim.lr=1: "),
        (["init=scratch", "split=tset"], "did you mean test"),
        (["init=scratch", "data.path=nowhere"], "nowhere: no such"),
        (["init=scratch", "model=bit_r50x1"], "resnetv2_50x1_bit has no patches"),
        (["init=timm:resnet18"], "not a ResNet"),
        (["init=scratch", "name=../up"], "name=../up: expected a folder's name"),
        (["init=scratch", "figures=reconstruction", "images=2"], "none of the figures"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in refused(draw, *options)
    assert not list(tmp_path.iterdir())


def test_one_process_writes_figures_and_what_was_cut_off_is_completed(
    still: Path, place: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, folder = ("filters", "positions"), tmp_path / "f"
    words = [f"init={still}", *place, f"figures=[{','.join(names)}]"]
    written = drawing.write_atomically

    def cut_off(path: Path, content: str | bytes) -> None:
        if path.name == "positions.svg":
            before = sorted(folder.iterdir())
            process = launch("tools/figures.py", *words)
            printed = process.communicate(120)[0]
            assert process.returncode == 2 and "Traceback" not in printed
            assert f"error: name=f: {folder} is being written by process " in printed
            assert sorted(folder.iterdir()) == before
            raise KeyboardInterrupt
        written(path, content)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(drawing, "write_atomically", cut_off)
        draw(*words)
    (folder / ".positions.svg.4711").write_text("torn")
    (folder / ".notes.svg.4711").write_text("mine")
    draw(*words)
    files = {f"{name}.{form}" for name in names for form in FORMS}
    others = {"figures.json", "figures.html", "lock", ".notes.svg.4711"}
    assert {path.name for path in folder.iterdir()} == files | others
    assert figures_recorded(folder).keys() == set(names)


def test_the_same_images_of_any_split_are_mapped(
    still: Path,
    place: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as are looked at at most; the page has the figures inside."""
    monkeypatch.setattr(draw_figures, "MOST_IMAGES", 200)
    own = [option for option in place if not option.startswith("images=")]
    draw(f"init={still}", *own, "figures=[feature_map,attention_distance]", "split=train")
    assert "images      shapes, split train: 200 of 50,000" in capsys.readouterr().out
    folder = tmp_path / "f"
    assert arrays(folder, "attention_distance")["images_0"] == 128
    page = (folder / "figures.html").read_text()
    for path in ("feature_map.svg", "attention_distance.svg"):
        content = base64.b64encode((folder / path).read_bytes()).decode()
        assert f"data:image/svg+xml;base64,{content}" in page
    assert not re.findall(r"(?:src|href)=.(?!data:|#)", page)


def test_no_split_of_a_stream_is_looked_at(mine: Path) -> None:
    """Of a run that was trained on one."""
    recipe = mine / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("stream: false", "stream: true"))
    line = refused(draw, f"init={mine}", "split=test")
    assert re.search(r"split=test: .* data\.stream=false", line)


@pytest.mark.parametrize("name", ["f", "figures"])
def test_figures_of_another_encoder_are_not_written_over(
    still: Path, place: list[str], tmp_path: Path, name: str
) -> None:
    """Nor is a folder called `figures` taken for the run's own."""
    own = [*place, f"name={name}", "figures=filters"]
    draw(f"init={still}", *own)
    before = (tmp_path / name / "filters.npz").read_bytes()
    assert f"the encoder {still}. " in refused(draw, "init=scratch", "model=vit_n8", *own)
    assert (tmp_path / name / "filters.npz").read_bytes() == before


@pytest.mark.parametrize("content", [b"x", save({"other": torch.zeros(2)})])
def test_damaged_heads_are_one_line(mine: Path, content: bytes) -> None:
    heads = mine / "export" / "heads.safetensors"
    heads.write_bytes(content)
    forget_digests(mine / "export")
    line = refused(draw, f"init={mine}", "figures=reconstruction", "images=3")
    assert line.startswith(f"init={mine}: {heads} ")


def test_weights_that_are_not_finite_are_refused_in_one_line(
    mine: Path, place: list[str], tmp_path: Path
) -> None:
    weights = load_file(mine / "export" / "model.safetensors")
    weights["pos_embed"][0, 0, 0] = torch.nan
    save_file(weights, mine / "export" / "model.safetensors", {"format": "pt"})
    forget_digests(mine / "export")
    assert "pos_embed is not finite" in refused(draw, f"init={mine}", *place)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("recipe", ["mpp", "ijepa"])
def test_what_another_figure_shows_is_named_where_it_is_asked_for(
    recipe: str, still: Path, tiny: list[str], place: list[str], tmp_path: Path, capsys
) -> None:
    """An objective predicts patches or something else; the one figure or the other shows it."""
    folder, lacks, has = still, "predicted", "reconstruction"
    if recipe == "ijepa":
        short = ["recipe=ijepa", "eval.collapse=null", "optim.steps=2", "optim.warmup=1"]
        folder, lacks, has = ssl_vit.pretrain(altered(tiny, *short)).folder, has, lacks
    capsys.readouterr()
    draw(f"init={folder}", *place, f"figures=filters,{lacks},{has}")
    output = capsys.readouterr().out
    assert f"left out    {lacks}: {folder.name}: " in output and f"figures={has} " in output
    assert figures_in(tmp_path / "f") == {"filters", has}
    assert_no_ground(tmp_path / "f" / f"{has}.png")
    if recipe == "ijepa":  # whose export has the teacher alone
        assert "exported teacher" in figures_recorded(tmp_path / "f")[has]["drawn"]
