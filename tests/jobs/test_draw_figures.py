"""tools/figures.py: which encoders, which images, what is written, what is refused."""

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save, save_file
from sklearn import manifold

import ssl_vit
from helpers.exports import forget_digests
from helpers.launching import launch
from helpers.options import TINY, altered
from ssl_vit.errors import UserError
from ssl_vit.inspection import drawing
from ssl_vit.inspection.collection import FIGURES
from ssl_vit.jobs import draw_figures, encoders
from ssl_vit.models import architectures
from ssl_vit.recipe import tools
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.output_folder import OutputFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose weights are still those it began with."""
    out = tmp_path_factory.mktemp("runs")
    new = ("optim.steps=2", "optim.warmup=1", "optim.lr=1e-9", "optim.weight_decay=0", "seed=3")
    ssl_vit.pretrain(altered(TINY, *new, f"out={out}", "name=mpp"))
    return out / "mpp"


def exported(folder: Path, name: str, **args) -> Path:
    """An export in timm's own format."""
    torch.manual_seed(0)
    sizes = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
    args = sizes | {"img_size": 16} | args
    model = timm.create_model(name, num_classes=0, **args)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    cfg = {"input_size": [3, 16, 16], "mean": [0.4] * 3, "std": [0.2] * 3, "crop_pct": 0.9}
    config = {"architecture": name, "num_classes": 0, "model_args": args, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def folder_of_images(folder: Path, classes: list[str], sizes: list[tuple[int, int]]) -> Path:
    for split in ("train", "test"):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
            for number, size in enumerate(sizes):
                noise = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(noise).save(folder / split / name / f"{number}.png")
    return folder


def refusal(*options: str) -> str:
    with pytest.raises(UserError) as caught:
        draw_figures.main(list(options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_names_are_those_of_the_figures() -> None:
    """They are written out, so that --help and mistakes are answered without torch."""
    assert tuple(FIGURES) == tools.FIGURES


def test_a_run_is_drawn_beside_what_it_began_with(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    draw_figures.main([f"init={run}", "images=9", "shown=2", f"out={tmp_path}", "name=f"])
    text = capsys.readouterr().out
    assert "images      shapes, test images: 9 of 5,000" in text
    assert "left out" not in text  # that fresh weights have no heads is no news
    assert text.splitlines()[-1].startswith("finished    8 figures")
    assert text.splitlines()[-1].endswith(f": {tmp_path}/f")
    arrays = {}
    drawn = [name for name in FIGURES if name != "predicted"]
    for name in drawn:
        for suffix in ("png", "svg"):
            assert (tmp_path / "f" / f"{name}.{suffix}").stat().st_size > 2000
        with np.load(tmp_path / "f" / f"{name}.npz") as file:
            arrays[name] = dict(file)
    assert arrays["filters"]["encoders"].tolist() == ["scratch", "mpp"]
    assert arrays["reconstruction"]["encoders"].tolist() == ["mpp"]
    # its seed included
    for name, key in (("positions", "patches"), ("attention_distance", "distance")):
        before, after = (arrays[name][f"{key}_{number}"] for number in range(2))
        np.testing.assert_allclose(before, after, rtol=1e-3, atol=1e-4)
    # a head that has learned nothing is certain of nothing
    certainty = arrays["reconstruction"]["certainty_0"]
    np.testing.assert_allclose(certainty[~np.isnan(certainty)], 1 / 512, rtol=1e-3)
    images = [arrays["attention_rollout"][f"images_{number}"] for number in range(2)]
    assert np.array_equal(images[0], images[1]) and images[0].shape == (2, 16, 16, 3)
    pools = [arrays["attention_rollout"][f"pool_{number}"].item() for number in range(2)]
    assert pools == ["avg", "avg"]
    record = json.loads((tmp_path / "f" / "figures.json").read_text())
    assert record["encoder"] == str(run)
    looked_at = {"images": "shapes, test images", "count": 9}
    assert record["figures"]["filters"] == looked_at | {"drawn": ""}
    assert record["figures"]["reconstruction"]["drawn"].startswith("certainty: ")


def test_another_library_s_model_has_its_own_preprocessing(run: Path, tmp_path: Path) -> None:
    """A crop of 0.9, of the same images; and its fresh weights have it too."""
    other = exported(tmp_path / "a $weird$ <b>", "vit_tiny_patch16_224", init_values=None)
    shown = {}
    for init in (run, other):
        place = [f"out={tmp_path}", f"name=of_{init.name[:3]}", "figures=attention_rollout"]
        draw_figures.main([f"init={init}", "data=shapes", "images=2", "shown=2", *place])
        with np.load(tmp_path / f"of_{init.name[:3]}" / "attention_rollout.npz") as file:
            shown[init] = dict(file)
    assert shown[other]["encoders"].tolist() == ["scratch", "a $weird$ <b>"]
    images, theirs = shown[run]["images_1"], shown[other]["images_1"]
    assert np.array_equal(theirs, shown[other]["images_0"])
    assert not np.array_equal(images, theirs)
    assert np.corrcoef(images.ravel(), theirs.ravel())[0, 1] > 0.7
    assert shown[other]["pool_0"].item() == shown[other]["pool_1"].item() == "token"


def test_fresh_weights_alone_have_none_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    place = [f"out={tmp_path}", "name=f", "figures=filters", "images=2"]
    draw_figures.main(["init=scratch", "model=vit_n8", *place])
    assert capsys.readouterr().out.count("encoder     ") == 1
    with np.load(tmp_path / "f" / "filters.npz") as file:
        assert file["encoders"].tolist() == ["scratch"]


def test_a_run_alone_has_its_figures_in_its_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Beside the one it ends with, and those of an earlier call."""
    mine = shutil.copytree(run, tmp_path / "mine")
    draw_figures.main([f"init={mine}", "figures=filters,reconstruction", "images=3"])
    text = capsys.readouterr().out
    assert "(figures/filters.svg)" in (mine / "report.html").read_text()
    assert f": {mine}/figures" in text and "3 of 5,000" in text
    stems = {path.stem for path in (mine / "figures").iterdir()}
    assert stems == {"predictions", "filters", "reconstruction", "figures"}
    draw_figures.main([f"init={mine}", "figures=positions", "images=3"])
    stems = {path.stem for path in (mine / "figures").iterdir()}
    assert stems == {"predictions", "filters", "reconstruction", "positions", "figures"}
    record = json.loads((mine / "figures" / "figures.json").read_text())
    assert record["figures"].keys() == {"filters", "reconstruction", "positions"}


def test_without_a_class_token_the_other_figures_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """On images of other sizes, fewer than asked for, of classes with names of all kinds."""
    images = folder_of_images(
        tmp_path / "images", ["$x^2$", "_hidden", "<b>&amp;"], [(40, 20), (7, 9), (16, 16)]
    )
    other = exported(tmp_path / "gap", "vit_base_patch16_siglip_gap_224")
    assert "cls_token" not in load_file(other / "model.safetensors")
    draw_figures.main([f"init={other}", f"data.path={images}", f"out={tmp_path}", "name=f"])
    text = capsys.readouterr().out
    assert "test images: 9 of 9" in text
    assert "left out    class_attention: gap: it has no class token" in text
    left = {path.stem for path in (tmp_path / "f").glob("*.svg")}
    assert left == set(FIGURES) - {"class_attention", "reconstruction", "predicted"}
    with np.load(tmp_path / "f" / "attention_rollout.npz") as file:
        assert file["pool_0"].item() == "avg"
    with pytest.raises(UserError, match="class token"):  # training still refuses it
        ssl_vit.pretrain(altered(TINY, "model.timm=vit_base_patch16_siglip_gap_224"))


def test_a_model_of_timm_needs_no_description(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """What its config.json leaves out is what timm has under that name."""
    part = exported(tmp_path / "part", "vit_tiny_patch16_224", mlp_ratio=4.0, reg_tokens=3)
    config = json.loads((part / "config.json").read_text())
    del config["model_args"]["mlp_ratio"]
    (part / "config.json").write_text(json.dumps(config))
    place = [f"out={tmp_path}", "figures=[class_attention]", "images=2", "shown=1", "name=f"]
    draw_figures.main([f"init={part}", *place])
    text = capsys.readouterr().out
    sizes = "vit_tiny_patch16_224 (2 blocks, 32 wide, patches of 4 px) at 16 px"
    assert f"encoder     part: {sizes}" in text
    assert f"encoder     scratch: {sizes}, fresh weights" in text
    one = encoders.resolve_one("timm:vit_small_patch14_reg4_dinov2", {})
    model, data = one.recipe.model, one.recipe.data
    assert (model.width, model.depth, model.heads, model.mlp) == (384, 12, 6, 1536)
    assert (model.patch, model.registers, model.layer_scale) == (14, 4, 1e-5)
    assert data.size == 518 and data.mean[0] == 0.485 and data.eval_crop == 1
    hybrid = architectures.values_of_timm("vit_small_r26_s32_224", {})
    assert hybrid["patch"] == 32 and Model(**hybrid).hybrid
    for name, found in (("resnet18", "a ResNet"), ("eva02_tiny_patch14_224", "a Eva")):
        assert f"expected a Vision Transformer; {name} is {found}" in refusal(f"init=timm:{name}")


def test_the_heads_of_a_joint_run_are_those_of_its_mpp(tmp_path: Path) -> None:
    new = ("recipe=joint", "optim.steps=2", "optim.warmup=1", "target=grid_color")
    ssl_vit.pretrain(altered(TINY, *new, f"out={tmp_path}", "name=joint"))
    one = encoders.resolve_one(str(tmp_path / "joint"), {})
    subject = encoders.load_subject(one, encoders.find_images(one, {}), count=2, shown=1)
    heads = load_file(tmp_path / "joint" / "export" / "heads.safetensors")
    assert subject.objective is not None and subject.objective.encoder is subject.encoder
    assert not subject.objective.training and not subject.encoder.training
    assert torch.equal(subject.objective.mask_token, heads["parts.mpp.mask_token"])
    assert torch.equal(subject.objective.head.weight, heads["parts.mpp.head.weight"])
    arrays = FIGURES["reconstruction"].compute(subject)
    assert arrays["panels"].shape == (1, 4, 16, 16, 3) and arrays["certainty"].shape == (1, 16, 16)


def test_normalised_pixels_are_said_where_they_are_drawn(tmp_path: Path) -> None:
    """On the run's page and on that of the figures tool; nothing is said of a certainty."""
    small = ["recipe=mae", "mae.width=16", "mae.depth=1", "mae.heads=2", "optim.steps=3"]
    folder = ssl_vit.pretrain(altered(TINY, *small, f"out={tmp_path}", "name=mae")).folder
    caption = "true; normalised pixels, without each patch"
    assert caption in (folder / "report.html").read_text()
    draw_figures.main([f"init={folder}", "figures=reconstruction", "images=2"])
    page = (folder / "figures" / "figures.html").read_text()
    assert "error; predicted and true: normalised pixels" in page and "certainty" not in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "init= is missing"),
        (["init=scratch,nowhere"], "init=nowhere: no such folder or file"),
        (["init=nowhere"], "init=nowhere: no such folder or file"),
        (
            ["init=scratch", "images=0"],
            "images=0: expected a whole number at least 1 and at most 2,048",
        ),
        (["init=scratch", "shown=1.5"], "shown=1.5: expected a whole number"),
        (["init=scratch", "figures=fliters"], "did you mean filters?"),
        (["init=scratch", "optim.lr=1"], "optim.lr=1: has no use here"),
        (
            ["init=scratch", "split=tset"],
            "split=tset: no such split with images; did you mean test",
        ),
        (["init=scratch", "data.sise=1"], "did you mean data.size?"),
        (["init=scratch", "data.path=nowhere"], "nowhere: no such file or folder"),
        (["init=scratch", "model=bit_r50x1"], "resnetv2_50x1_bit has no patches"),
        (["init=scratch", "name=../up"], "name=../up: expected a folder's name"),
        (["init=scratch", "figures=reconstruction", "images=2"], "none of these figures"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in refusal(*options)
    assert not list(tmp_path.iterdir())


def test_one_process_writes_figures_and_what_was_cut_off_is_completed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"init={run}", f"out={tmp_path}", "name=f", "figures=[filters,positions]", "images=2"]
    own, record, kind = draw_figures.OWN, draw_figures.RECORD, draw_figures.FigureRecord
    with OutputFolder("name", tmp_path / "f", own, record, kind).hold():
        process = launch("tools/figures.py", *words)
        printed = process.communicate(120)[0]
        assert process.returncode == 2 and "Traceback" not in printed
        assert f"error: name=f: {tmp_path}/f is being written by process " in printed
        assert [path.name for path in (tmp_path / "f").iterdir()] == ["lock"]
    written = drawing.write_atomically

    def cut_off(path: Path, content: str | bytes) -> None:
        if path.name == "positions.svg":
            raise KeyboardInterrupt
        written(path, content)

    monkeypatch.setattr(drawing, "write_atomically", cut_off)
    with pytest.raises(KeyboardInterrupt):
        draw_figures.main(words)
    monkeypatch.undo()
    (tmp_path / "f" / ".positions.svg.4711").write_text("torn")
    (tmp_path / "f" / ".notes.svg.4711").write_text("mine")
    draw_figures.main(words)
    names = [
        f"{name}.{form}" for name in ("filters", "positions") for form in ("npz", "png", "svg")
    ]
    there = {path.name for path in (tmp_path / "f").iterdir()}
    pages = {"figures.json", "figures.html"}
    assert there == {*names, *pages, "lock", ".notes.svg.4711"}
    assert json.loads((tmp_path / "f" / "figures.json").read_text())["figures"].keys() == {
        *("filters", "positions"),
    }


def test_up_to_2000_images_of_any_split_are_mapped(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones each time; the page has the figures inside."""
    whole = manifold.TSNE  # of a quarter of its iterations here
    monkeypatch.setattr(manifold, "TSNE", lambda **given: whole(max_iter=250, **given))
    place = [f"init={run}", f"out={tmp_path}", "figures=[image_map,attention_distance]"]
    draw_figures.main([*place, "name=f", "split=train"])
    assert "images      shapes, split train: 2,000 of 50,000" in capsys.readouterr().out
    with np.load(tmp_path / "f" / "image_map.npz") as file:
        assert file["tsne_0"].shape == (2000, 2)
        assert set(file["label_0"].tolist()) == set(range(10))
    with np.load(tmp_path / "f" / "attention_distance.npz") as file:
        assert file["images_0"] == 128
    page = (tmp_path / "f" / "figures.html").read_text()
    for path in ("image_map.svg", "attention_distance.svg"):
        content = (tmp_path / "f" / path).read_bytes()
        assert f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}" in page
    assert "shapes, split train: 2,000 of 50,000" in page and "mpp: " in page
    assert not re.findall(r"(?:src|href)=.(?!data:|#)", page)


def test_no_split_of_a_stream_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was trained on one."""
    monkeypatch.setattr(encoders, "data_of", lambda one, given: Data(stream=True, hub="a/b"))
    with pytest.raises(UserError, match=r"split=test: .*expected data\.stream=false"):
        encoders.find_images(None, {}, "test")


def test_a_folder_called_figures_is_not_taken_for_the_run_s_own(run: Path, tmp_path: Path) -> None:
    place = [f"out={tmp_path}", "name=figures", "figures=filters", "images=2"]
    draw_figures.main([f"init={run}", *place])
    before = (tmp_path / "figures" / "filters.npz").read_bytes()
    assert f"is of {run}; give another name=" in refusal("init=scratch", "model=vit_n8", *place)
    assert (tmp_path / "figures" / "filters.npz").read_bytes() == before


def test_nothing_is_written_over_and_no_option_is_ignored(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    place = [f"out={tmp_path}", "figures=filters", "images=2"]
    assert "holds something else" in refusal(f"init={run}", "name=notes", *place)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "mine"
    draw_figures.main([f"init={run}", "name=f", *place])
    before = (tmp_path / "f" / "filters.npz").read_bytes()
    assert f"is of {run}; give another name=" in refusal("init=scratch", "name=f", *place)
    assert (tmp_path / "f" / "filters.npz").read_bytes() == before
    assert f"init={run} describes its own model" in refusal(f"init={run}", "model=vit_n8", *place)


@pytest.mark.parametrize("content", [b"x", save({"other": torch.zeros(2)})])
def test_damaged_heads_are_one_line(run: Path, tmp_path: Path, content: bytes) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    heads = mine / "export" / "heads.safetensors"
    heads.write_bytes(content)
    forget_digests(mine / "export")
    with pytest.raises(UserError, match=f"init={mine}: {heads}: ") as caught:
        draw_figures.main([f"init={mine}", "figures=reconstruction", "images=3"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("record", ['{"mine": 1}', '{"encoder": 5, "figures": {}}', "{"])
def test_a_named_folder_with_a_record_of_others_stays_as_it_is(
    run: Path, tmp_path: Path, record: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "figures.json").write_text(record)
    with pytest.raises(UserError, match=r"figures\.json is damaged"):
        draw_figures.main([f"init={run}", "figures=filters", f"out={tmp_path}", "name=mine"])
    assert [path.name for path in (tmp_path / "mine").iterdir() if path.name != "lock"] == [
        "figures.json"
    ]
    assert (tmp_path / "mine" / "figures.json").read_text() == record


def test_what_another_figure_shows_is_named_where_it_is_asked_for(
    run: Path, tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """An objective predicts patches or something else; the one figure or the other shows it."""
    ssl_vit.pretrain(altered(tiny, "recipe=ijepa", "eval.collapse=null", "name=other"))
    few = ["images=2", "shown=2", "compute.threads=1", f"out={tmp_path}"]
    for init, lacks, has in (
        (run, "predicted", "reconstruction"),
        (tmp_path / "runs" / "other", "reconstruction", "predicted"),
    ):
        capsys.readouterr()
        draw_figures.main([f"init={init}", f"figures=filters,{lacks}", *few, f"name={lacks}"])
        text = capsys.readouterr().out
        assert f"left out    {lacks}: {init.name}: figure {has} shows" in text
        draw_figures.main([f"init={init}", *few, f"name={lacks}-all"])
        assert f"left out    {lacks}" not in capsys.readouterr().out


def test_weights_that_are_not_finite_are_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    weights = load_file(mine / "export" / "model.safetensors")
    weights["pos_embed"][0, 0, 0] = torch.nan
    save_file(weights, mine / "export" / "model.safetensors", {"format": "pt"})
    forget_digests(mine / "export")
    place = [f"out={tmp_path}", "name=f", "images=2"]
    assert "is not finite; expected weights that are" in refusal(f"init={mine}", *place)
    assert not (tmp_path / "f").exists()
