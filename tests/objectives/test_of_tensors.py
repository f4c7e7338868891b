"""`ssl_vit.objectives.build`: the loss of a run in a loop of one's own."""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

import ssl_vit
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.options import ROOT, TINY, altered
from helpers.resolving import resolve
from helpers.runs import run
from ssl_vit import rng
from ssl_vit.data import pixel_values
from ssl_vit.data.batching import Batch, ImageDataset, Samples
from ssl_vit.data.loaders import MEASURED_KEY
from ssl_vit.data.open import open_splits
from ssl_vit.recipe import schema
from ssl_vit.training import optim
from ssl_vit.training.strategy import Strategy

SIZES = {"model": {"patch": 4, "width": 32, "depth": 2, "heads": 2, "mlp": 64}, "data.size": 16}
STEPS, SHOWN = 12, 3
# name -> the recipe's options of the objective, as Python values
OBJECTIVES: dict[str, dict[str, Any]] = {
    "mpp": {},
    "mpp teacher": {"target": "teacher"},
    "simmim": {"recipe": "simmim"},
    "mae": {},
    "ijepa": {},
    "moco_v3": {},
    "dino": {"views": {"local_size": 8}, "dino": {"prototypes": 32, "freeze": 0.0}},
    "dino freeze": {"views": {"local_size": 8}, "dino": {"prototypes": 32, "freeze": 0.1}},
    "ibot": {"views": {"local_size": 8}, "ibot": {"prototypes": 32, "freeze": 0.0}},
    "lejepa": {"views": {"local_size": 8}, "lejepa": {"slices": 32}},
    "distill": {},
    "supervised": {},
    "joint": {},
}


def images(count: int = 4, size: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def scratch() -> Any:
    return ssl_vit.load_encoder("scratch", SIZES)


def as_words(options: dict[str, Any]) -> list[str]:
    """The options as words of a command line."""
    return [
        f"{key}.{inner}={value[inner]}" if inner else f"{key}={value}"
        for key, value in options.items()
        if key != "recipe"
        for inner in (value if isinstance(value, dict) else [""])
    ]


class Step(NamedTuple):
    batch: Batch
    loss: float
    gradients: dict[str, Tensor]


def steps_of_a_run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[Step]]:
    """The state of the objective before the first step, and the first steps."""
    state: dict[str, Tensor] = {}
    passes: list[tuple[Batch, Tensor]] = []  # before the first step, a pass measures its time
    steps: list[Step] = []
    run_pass, update = Strategy.run_pass, Strategy.update

    def watched_pass(self: Strategy, batch: Batch, cast: Any, last: bool) -> Any:
        if not steps:
            state.update(
                {name: value.clone() for name, value in self.objective.state_dict().items()}
            )
        output = run_pass(self, batch, cast, last)
        passes.append((batch, output.loss.detach()))
        return output

    def watched_update(self: Strategy) -> Any:
        trained = self.objective.named_parameters()
        gradients = {name: p.grad.clone() for name, p in trained if p.grad is not None}
        batch, loss = passes[-1]
        steps.append(Step(batch, loss.item(), gradients))
        return update(self)

    with monkeypatch.context() as patched:
        patched.setattr(Strategy, "run_pass", watched_pass)
        patched.setattr(Strategy, "update", watched_update)
        run(words)
    return state, steps


@pytest.mark.parametrize("case", OBJECTIVES)
def test_losses_and_gradients_are_those_of_a_run(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the images themselves, of which the views are made from the keys; over several steps, in
    which the teacher moves and the schedules go on."""
    name, options = case.split()[0], dict(OBJECTIVES[case])
    name, recipe = ("mpp", name) if name == "simmim" else (name, name)
    if name == "distill":
        options["distill"] = {"teacher": str(of_timm(tmp_path / "teacher", embed_dim=48))}
    words = altered(
        [*TINY, *as_words(options)],
        *(f"recipe={recipe}", "optim.batch=8", "optim.clip=null", "optim.dropout=0"),
        *("optim.warmup=0", "optim.weight_decay_end=null", "eval.collapse=null", f"out={tmp_path}"),
    )
    given = resolve(words)
    state, steps = steps_of_a_run(words, monkeypatch)
    labels = {"classes": 10} if name in ("supervised", "joint") else {}
    objective = ssl_vit.objectives.build(name, scratch(), steps=STEPS, **labels, **options)
    objective.objective.load_state_dict(state)
    optimizer, schedule = optim.build_optimizer(objective.objective, given.optim)
    objective.follow(optimizer)
    source = open_splits(given.data).splits["train"]
    for step in steps[:SHOWN]:
        seen = step.batch.image
        if step.batch.views is not None:
            raw, _ = source.fetch(step.batch.index.numpy())
            seen = torch.stack([pixel_values.decoder(given.data)(image) for image in raw])
        output = objective(seen, label=step.batch.label, key=step.batch.key)
        output.loss.backward()
        assert output.loss.item() == pytest.approx(step.loss, rel=1e-6)
        trained = dict(objective.objective.named_parameters())
        gradients = {key: p.grad for key, p in trained.items() if p.grad is not None}
        frozen = objective.objective.frozen_weights(objective.progress)
        left_out = {key for key, p in trained.items() if any(p is other for other in frozen)}
        assert gradients.keys() == step.gradients.keys() - left_out
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, step.gradients[key], atol=1e-6, rtol=0, msg=key)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def test_a_teacher_moves_with_the_optimiser_or_there_is_an_error() -> None:
    objective = ssl_vit.objectives.build("dino", scratch(), steps=4, **OBJECTIVES["dino"])
    assert "objective.follow(optimizer)" in refused(objective, images())
    optimizer = torch.optim.SGD(objective.parameters(), 0.1)
    wrong = torch.optim.SGD(objective.objective.head.parameters(), 0.1)
    assert "does not have the weight encoder." in refused(objective.follow, wrong)
    objective.follow(optimizer)
    objective.follow(optimizer)  # counts each step once
    weight, followed = (
        encoder.backbone.blocks[0].mlp.fc1.weight
        for encoder in (objective.exported, objective.objective.encoder)
    )
    momentum = 1 - (1 - 0.99) * (1 + math.cos(math.pi / 4)) / 2
    before = weight.clone()
    objective(images()).loss.backward()
    optimizer.step()
    assert not torch.equal(followed, before)
    torch.testing.assert_close(weight, momentum * before + (1 - momentum) * followed)
    # the count of steps and calls goes on from a checkpoint
    other = ssl_vit.objectives.build("dino", scratch(), steps=4, **OBJECTIVES["dino"])
    other.load_state_dict(objective.state_dict())
    assert (other.steps_done, other.calls) == (1, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_grad_scaler_skips_moves_no_teacher(fused: bool) -> None:
    """GradScaler calls a fused optimiser even if it skips the step."""
    objective = ssl_vit.objectives.build("moco_v3", scratch(), steps=4)
    optimizer = torch.optim.AdamW(objective.parameters(), 1e-3, fused=fused)
    objective.follow(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    averages = [average for average, _ in objective.objective.averages(0.0)[1]]
    moved = []
    for factor in (1.0, math.inf, 1.0):
        scaler.scale(objective(images()).loss * factor).backward()
        before = [average.clone() for average in averages]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        pairs = zip(averages, before, strict=True)
        moved.append(any(not torch.equal(now, then) for now, then in pairs))
    assert moved == [True, False, True] and objective.steps_done == 2


@pytest.mark.parametrize("name", ["mae", "moco_v3"])
def test_a_compiled_objective_has_the_same_losses(name: str) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    losses = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        objective = ssl_vit.objectives.build(name, scratch(), steps=4)
        objective.follow(torch.optim.SGD(objective.parameters(), 0.1))
        if is_compiled:
            objective.compile(backend=backend)
        losses.append(objective(images(), key=torch.arange(4)).loss)
    assert graphs and torch.allclose(*losses)


def test_views_of_ones_own_and_keys() -> None:
    """Equal keys give an equal loss. Without keys, each call has others."""
    objective = ssl_vit.objectives.build("mae", scratch(), mae={"rate": 0.5})
    key = torch.arange(4)
    first, second = (objective(images(), key=key) for _ in range(2))
    assert torch.equal(first.loss, second.loss)
    assert len({objective(images()).loss.item() for _ in range(3)}) == 3
    corrupted, _ = first.metrics["corrupted"]
    assert corrupted == 4 * 8  # half of the 16 patches of each image
    views = torch.stack([images(), images().flip(0)], 1)
    compared = ssl_vit.objectives.build("moco_v3", scratch(), steps=1).eval()
    assert compared(views).loss.isfinite()
    assert compared(images(size=40)).loss.isfinite()  # cut from larger images


@pytest.mark.parametrize("name", ["dino", "moco_v3", "lejepa"])
def test_an_evaluation_has_the_views_of_a_run(name: str) -> None:
    """Whole images, or views of one's own: the batch is the one that a run measures."""
    options = OBJECTIVES[name]
    objective = ssl_vit.objectives.build(name, scratch(), steps=1, **options).eval()
    batches: list[Batch] = []
    objective.objective.register_forward_pre_hook(lambda _, given: batches.append(given[0]))
    whole = images(size=40)
    found = objective(whole)
    recipe, rows = objective.recipe, np.arange(len(whole))
    views = schema.compared_views(recipe)
    source: Any = None  # the pixels are decoded already
    run_data = ImageDataset(source, recipe.data, train=False, views=views)
    fields = run_data.pixel_fields([*whole], Samples(rows, rng.key(MEASURED_KEY, rows)))
    for field, value in fields.items():
        assert torch.equal(getattr(batches[0], field), value), field
    if not views.local:
        assert torch.equal(objective(fields["views"]).loss, found.loss)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "objective": ("maee", {}, "objective=maee: did you mean mae?"),
    "no such key": ("mae", {"mae": {"rat": 0.5}}, "unknown key mae.rat; did you mean mae.rate?"),
    "bounds": ("mae", {"mae": {"rate": 2.0}}, "mae.rate=2.0: "),
    "a key of a run": ("mae", {"optim": {"lr": 0.1}}, "optim.lr=0.1: only a run uses this key"),
    "another objective's": ("mae", {"dino": {"momentum": 0.9}}, "has no effect with objective=mae"),
    "relation": ("mae", {"mae": {"width": 30}}, "mae.width=30: must be a multiple of"),
    "steps": ("dino", {"views": {"local": 0}}, "steps=None: with objective=dino, "),
    "classes": ("supervised", {}, "classes=0: objective=supervised learns labels"),
    "no training": ("probe", {}, "objective=probe: this objective trains nothing"),
    "teacher": ("distill", {}, "distill.teacher="),
}


@pytest.mark.parametrize(("name", "options", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_one_line(name: str, options: dict[str, Any], says: str) -> None:
    assert says in refused(lambda: ssl_vit.objectives.build(name, scratch(), **options))


def test_wrong_images_and_labels_are_one_line() -> None:
    build = ssl_vit.objectives.build
    assert "not Linear" in refused(build, "mae", torch.nn.Linear(2, 2))
    labelled = build("supervised", scratch(), classes=3)
    assert "label=" in refused(labelled, images())
    dino = {"views": {"local_size": 8}, "dino": {"koleo": 0.1, "koleo_group": 3}}
    grouped = build("dino", scratch(), steps=1, **dino).eval()
    assert "dino.koleo_group=3: " in refused(grouped, images())
    views = torch.stack([images(6), images(6)], 1)
    assert "views.local=4: " in refused(grouped, views)
    with pytest.raises(TypeError, match=r"are a list.*objective\(batch\[0\]\)"):
        build("mae", scratch())([images(), torch.zeros(4).long()])
    with pytest.raises(ValueError, match=r"\(4, 3, 20, 20\). Use the shape \(B, 3, 16, 16\)"):
        build("mae", scratch())(images(size=20))
    with pytest.raises(ValueError, match=r"\(4, 16, 16, 3\). Use the shape \(B, 3, H, W\)"):
        build("moco_v3", scratch(), steps=1).eval()(images().permute(0, 2, 3, 1))
    with pytest.raises(TypeError, match="float32"):
        labelled(images().float(), label=torch.zeros(4).long())


def test_a_loaded_encoder_can_be_trained_and_saved(tmp_path: Path) -> None:
    encoder = scratch().train()
    optimizer = torch.optim.SGD(encoder.parameters(), 0.1)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.feature(images(), "avg").square().sum().backward()
    trained = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert {name for name, p in encoder.named_parameters() if p.grad is not None} == trained
    optimizer.step()
    changed = {
        name for name, value in encoder.state_dict().items() if (value != before[name]).any()
    }
    assert changed >= trained - {"backbone.cls_token"}
    folder = ssl_vit.save_encoder(encoder, tmp_path / "encoder")
    assert ssl_vit.save_encoder(encoder, folder) == folder  # again, in its place
    other = ssl_vit.load_encoder(folder)
    assert torch.equal(other.feature(images()), encoder.eval().feature(images()))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        found = theirs(encoder.normalize(images()))
        torch.testing.assert_close(found, encoder.feature(images()), atol=1e-5, rtol=0)
    (tmp_path / "recipe.yaml").touch()
    assert "the folder of a run" in refused(ssl_vit.save_encoder, encoder, tmp_path)


def blocks() -> list[str]:
    text = (ROOT / "docs" / "python.md").read_text()
    return [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "build(" in block
    ]


def test_the_loop_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = blocks()[0]
    assert len([line for line in loop.splitlines() if line]) <= 15
    names: dict[str, Any] = {"images": images(4, 64)}
    exec(loop, names)
    assert names["encoder"].pool == "avg" and (tmp_path / "mae_encoder" / "config.json").exists()


@pytest.mark.filterwarnings("ignore")
def test_the_lightning_loop_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"images": images(4, 64)}
    exec(blocks()[1], names)
    objective = names["pretraining"].objective
    assert objective.steps_done == objective.steps == 10
    saved = ssl_vit.load_encoder(tmp_path / "dino_encoder").state_dict()
    teacher = objective.exported.state_dict()
    assert all(torch.equal(saved[name], teacher[name]) for name in saved)
