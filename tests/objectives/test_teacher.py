"""What every teacher is. The guide's plugin with one, docs/examples/teacher.py, by hand; and what the
workbench does for it and for I-JEPA, which is one folder and a recipe, without naming them: options,
one-line errors, resuming, two processes, sweeps, page, card and figures. For the plugin also when
its file is gone. I-JEPA's own loss is in test_ijepa.py."""

import html
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from helpers.built import built
from helpers.exactness import Unbroken, assert_a_killed_run_ends_as
from helpers.images import two_classes
from helpers.launching import launch, outcome
from helpers.options import ROOT, TINY, altered
from helpers.resolving import resolve
from helpers.view_batches import image_batch
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.objectives import corruption
from ssl_vit.recipe import declaration, recipe_files
from ssl_vit.runs.folder import Run
from ssl_vit.training.strategy import Strategy

GRID = 4  # patches of a side of TINY's images


class Form(NamedTuple):
    """One of the two forms.

    Attributes:
        name: of the objective.
        start: the options that name it.
        plugin: its file.
        mistakes: options, and what is said of them.
    """

    name: str
    start: list[str]
    plugin: Path | None
    mistakes: dict[str, str]

    @property
    def words(self) -> list[str]:
        """The options of a tiny run."""
        return altered(TINY, *self.start, "eval.collapse=null")


PACKAGE = Form(
    name="ijepa",
    start=["recipe=ijepa"],
    plugin=None,
    mistakes={
        "ijepa.visible=1.5": "above 0 and below 1",
        "ijepa.rate=0.6": "unknown key ijepa.rate; did you mean ijepa.area",
        "mae.rate=0.5": "has no effect",
    },
)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Form]:
    """A copy of the guide's plugin in a folder elsewhere."""
    path = tmp_path_factory.mktemp("elsewhere") / "teacher.py"
    shutil.copy(ROOT / "docs" / "examples" / "teacher.py", path)
    yield Form(
        name="teacher",
        start=["recipe=mpp", f"plugin={path}", "objective=teacher"],
        plugin=path,
        mistakes={
            "teacher.rate=1.5": "above 0 and below 1",
            "teacher.rate=0.99": "leaves no.* visible.* less than 0.96875",
            "teacher.width=3": "unknown key teacher.width; did you mean mae.width",
            "mae.rate=0.5": "has no effect",
        },
    )
    declaration.withdraw("teacher")


@pytest.fixture(scope="module", params=["package", "plugin"])
def form(request: pytest.FixtureRequest) -> Form:
    return PACKAGE if request.param == "package" else request.getfixturevalue("example")


def test_the_examples_loss_of_predicting_nothing_is_that_of_the_teachers_features(
    example: Form,
) -> None:
    """With a head of zeros: the mean smooth L1 norm of the normalised features of the hidden
    patches, computed from the encoder that the teacher is a copy of."""
    objective, given = built(*example.words, "teacher.rate=0.5"), image_batch(3)
    torch.nn.init.zeros_(objective.head.weight)
    drawn = corruption.sample(given.key, GRID**2, 0.5, mask=1.0, random=0.0)
    with torch.no_grad():
        feature_BND = objective.encoder.tokens(given.image)[:, 1:]
        centred = feature_BND - feature_BND.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        hidden = torch.stack([one[at] for one, at in zip(scaled, drawn.corrupted_BK, strict=True)])
        small = hidden.abs() < 1
        by_hand = torch.where(small, hidden.square() / 2, hidden.abs() - 0.5).mean()
        output = objective(given)
    torch.testing.assert_close(output.loss, by_hand)
    total, count = output.metrics["loss"]
    assert count == 3 and total / count == pytest.approx(by_hand.item(), rel=1e-5)
    spread, images = output.metrics["teacher_spread"]
    channels = hidden.double().std(1, correction=0).mean(-1)
    assert images == 3 and spread.item() == pytest.approx(channels.sum().item(), rel=1e-5)


TAUGHT = {
    # the options, the teacher's place, what it is an average of, how much of the way from the first
    # momentum to the last is left after a third of the run, and both
    "moco_v3": ("recipe=moco_v3", "momentum", ("encoder", "projector"), 0.75, (0.99, 1)),
    "dino": ("recipe=dino views.local=0", "teacher", ("encoder", "head"), 0.75, (0.99, 1)),
    "ibot": (
        "recipe=ibot views.local=0 ibot.shared=false ibot.own_head=true",
        *("teacher", ("encoder", "head"), 0.75, (0.99, 1)),
    ),
    "ijepa": ("recipe=ijepa", "teacher", ("encoder",), 2 / 3, (0.99, 1)),
    "target": (
        "target=teacher data2vec.momentum=[0.9,0.98]",
        *("target.teacher", ("encoder",), 2 / 3, (0.9, 0.98)),
    ),
    "example": ("", "teacher", ("encoder",), 2 / 3, (0.996, 1)),
}


@pytest.mark.parametrize(("start", "name", "sources", "left", "ends"), TAUGHT.values(), ids=TAUGHT)
def test_a_teacher_is_a_running_average_of_what_is_trained(
    start: str, name: str, sources: tuple[str, ...], left: float, ends: tuple, example: Form
) -> None:
    """It begins as a copy and gets no gradient; half way it is m 1 + (1 - m) 3, with m half way from
    its first value to its last, and stays where an update is skipped."""
    objective = built(*(start.split() or example.start))
    first, third, half, last = (objective.averages(share)[0] for share in (0, 1 / 3, 0.5, 1))
    assert (first, last) == pytest.approx(ends) and half == pytest.approx((last + first) / 2)
    assert third == pytest.approx(last - left * (last - first))
    pairs = list(objective.averages(0.5)[1])
    owned = [p for source in sources for p in getattr(objective, source).parameters()]
    assert [id(p) for _, p in pairs] == [id(p) for p in owned if p.requires_grad]
    assert all(torch.equal(average, p) for average, p in pairs)
    assert not any(p.requires_grad for p in objective.get_submodule(name).parameters())
    if name != "momentum":
        teacher = objective.train().get_submodule(name)
        assert not any(part.training for part in teacher.modules())
    assert not [key for key in objective.heads() if name in key]
    if name in ("momentum", "target.teacher"):
        assert objective.exported is objective.encoder
    strategy = object.__new__(Strategy)
    strategy.objective = objective
    with torch.no_grad():
        for average, p in pairs:
            average.fill_(1.0)
            p.fill_(3.0)
    for skipped, wanted in ((True, 1.0), (False, 3 - 2 * half)):
        strategy.update_momentum(0.5, torch.tensor(skipped))
        assert all(torch.allclose(average, torch.tensor(wanted)) for average, _ in pairs)


# What the workbench does for both


def test_its_options_and_mistakes_need_no_network(form: Form) -> None:
    code = (
        "import sys; from ssl_vit.recipe.help import tool_help;"
        "from ssl_vit.recipe.tools import PretrainOptions;"
        f"text = tool_help(PretrainOptions, [*{form.start}, 'all']);"
        f"assert '{form.name}.momentum=0.99' in text and 'moco.' not in text;"
        # a plugin may import torch at its beginning
        f"assert {form.plugin is not None} or not {{'torch', 'numpy'}} & {{*sys.modules}}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option, says in form.mistakes.items():
        with pytest.raises(UserError, match=says) as caught:
            resolve(altered(form.words, option, "name=x"))
        assert option.partition("=")[0] in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"objective={form.name} needs patches of pixels"):
        resolve([*form.start, "model=bit_r50x1", "data.size=64"])


@pytest.fixture(scope="module")
def whole(form: Form, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return Unbroken.of(form.words, tmp_path_factory.mktemp(form.name))


def test_a_killed_run_goes_on_to_the_same_end(form: Form, whole: Unbroken) -> None:
    assert_a_killed_run_ends_as(whole)
    # of the package "teacher.encoder.NAME", of the example "teacher.NAME"
    found = whole.state()
    teacher = {name.partition("backbone.")[2]: v for name, v in found.items() if "teacher." in name}
    assert teacher and any(
        not torch.equal(v, found[f"encoder.backbone.{name}"]) for name, v in teacher.items() if name
    )


def test_the_encoder_that_is_exported(form: Form, whole: Unbroken) -> None:
    """I-JEPA's is its teacher, by the mean of its patches; the predictor is a head."""
    start = {"ijepa": "teacher.encoder.backbone.", "teacher": "encoder.backbone."}[form.name]
    state, export = whole.state(), whole.folder / "export"
    for name, value in load_file(export / "model.safetensors").items():
        assert torch.equal(state[start + name], value)
    heads = load_file(export / "heads.safetensors")
    assert torch.equal(heads["predictor.mask_token"], state["predictor.mask_token"])
    assert '"global_pool": "avg"' in (export / "config.json").read_text()


def test_page_and_card_say_what_it_is(form: Form, whole: Unbroken) -> None:
    title = {"ijepa": "I-JEPA", "teacher": "Prediction of an EMA teacher's features"}[form.name]
    assert title in html.unescape((whole.folder / "report.html").read_text())
    trained = Run(recipe_files.read(whole.folder / "recipe.yaml"))
    assert f"- {form.name}" in card.render(trained, whole.folder / "export")


def test_an_examples_sweep_is_read_where_its_file_is_gone(example: Form, tmp_path: Path) -> None:
    """The page of a task has no picture of its predictions, because drawing needs the plugin."""
    file = shutil.copy(example.plugin, tmp_path / "gone.py")
    start = [f"plugin={file}" if word.startswith("plugin=") else word for word in example.start]
    words = [word for word in example.words if word not in example.start]
    short = ["optim.steps=4", "optim.warmup=0", "probe.measures=[knn]", "probe.neighbors=2"]
    place = f"data.path={two_classes(tmp_path / 'images')}"
    study = ["tools/study.py", *start, *altered(words, *short), place, f"out={tmp_path}"]
    swept = ("name=study", "seeds=1", "sweep", "teacher.rate=0.4,0.6")
    codes, outputs = outcome([launch(*study, *swept)])
    assert codes == [0], outputs
    folder = next((tmp_path / "study").glob("pretrain-*0.4*"))
    file.unlink()
    wanted = ("images=4", "shown=2", "figures=predicted,filters")
    figures = launch("tools/figures.py", f"init={folder}", *wanted)
    pages = [launch("tools/report.py", str(one)) for one in (folder, tmp_path / "study")]
    codes, outputs = outcome([figures, *pages])
    assert codes == [0, 0, 0], outputs
    assert "objective=teacher comes from a plugin" in outputs[0]
    assert not (folder / "figures" / "predictions.png").exists()
    assert "teacher" in (folder / "report.html").read_text()
    assert "teacher.rate" in (tmp_path / "study" / "report.md").read_text()
