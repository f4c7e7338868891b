"""Objectives with a teacher: I-JEPA, which is one folder and a recipe, and the plugin that the guide
shows, docs/examples/teacher.py. What the workbench does for them without naming them: options,
plan, one-line errors, resuming, two processes, sweeps, page, card and figures; for the plugin also
when its file is gone. And the plugin's loss by hand; I-JEPA's is in test_ijepa.py."""

import html
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from helpers.exactness import assert_two_processes_learn_as_one, killed_and_resumed
from helpers.images import two_classes
from helpers.launching import launch, outcome
from helpers.options import ROOT, TINY, altered
from ssl_vit import costs, rng
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.lab import plan as plan_tool
from ssl_vit.models import encoder
from ssl_vit.objectives import building, corruption
from ssl_vit.objectives.base import Objective
from ssl_vit.recipe import declaration, recipe_files
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run

GRID = 4  # patches of a side of TINY's images


class Form(NamedTuple):
    """One of the two forms.

    Attributes:
        name: of the objective.
        start: the options that name it.
        plugin: its file.
        swept: an option and two values.
        mistakes: options, and what is said of them.
        page, card: what these say of it, in its declaration's words; of the first value.
    """

    name: str
    start: list[str]
    plugin: Path | None
    swept: str
    mistakes: dict[str, str]
    page: tuple[str, ...]
    card: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The options of a tiny run."""
        return altered(TINY, *self.start, "eval.collapse=null")


FIGURE = "how near the predicted features of"
PACKAGE = Form(
    name="ijepa",
    start=["recipe=ijepa"],
    plugin=None,
    swept="ijepa.visible=0.2,0.3",
    mistakes={
        "ijepa.visible=1.5": "above 0 and below 1",
        "ijepa.visible=0.6": "ijepa.blocks=4: 4 target blocks of 2 patches may leave 8 of an image's"
        " 16 for the context, and ijepa.visible takes 10",
        "ijepa.rate=0.6": "unknown key ijepa.rate; .*blocks, ijepa.area",
        "mae.rate=0.5": "objective=ijepa has no use for it",
    },
    page=("Prediction of a teacher's features (I-JEPA)", "feature spread (near 0: collapsed)"),
    card=("| `ijepa.visible` | 0.2 |", "- ijepa", FIGURE),
)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Form]:
    """A copy of the guide's plugin in a folder elsewhere."""
    path = tmp_path / "elsewhere" / "teacher.py"
    path.parent.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "teacher.py", path)
    yield Form(
        name="teacher",
        start=["recipe=mpp", f"plugin={path}", "objective=teacher"],
        plugin=path,
        swept="teacher.rate=0.4,0.6",
        mistakes={
            "teacher.rate=1.5": "above 0 and below 1",
            "teacher.rate=0.99": "leaves no.* visible; expected less than 0.96875",
            "teacher.width=3": "unknown key teacher.width; .*rate, teacher.momentum",
            "mae.rate=0.5": "objective=teacher has no use for it",
        },
        page=("Prediction of an EMA teacher's features", "teacher spread (near 0: collapsed)"),
        card=("| `teacher.rate` | 0.6 |", "- teacher", FIGURE),
    )
    declaration.withdraw("teacher")


@pytest.fixture(params=["package", "plugin"])
def form(request: pytest.FixtureRequest) -> Form:
    return PACKAGE if request.param == "package" else request.getfixturevalue("example")


def built(words: list[str]) -> Objective:
    """The objective of these options around a fresh encoder."""
    recipe = resolve(altered(words, "name=x"))
    torch.manual_seed(0)
    net = encoder.build_backbone(recipe.model, recipe.data, 0, 0)
    return building.build(building.Settings.of(recipe), net, 0)


def batch(count: int = 3) -> Batch:
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (count, 3, 4 * GRID, 4 * GRID), dtype=np.uint8)
    index = np.arange(count)
    parts = (image, np.full(count, -1), index, rng.key(0, 0, index))
    return Batch(*map(torch.from_numpy, parts))


def test_the_examples_loss_of_predicting_nothing_is_that_of_the_teachers_features(
    example: Form,
) -> None:
    """With a head of zeros: the mean smooth L1 norm of the normalised features of the hidden
    patches, computed from the encoder that the teacher is a copy of."""
    objective, given = built(altered(example.words, "teacher.rate=0.5")), batch()
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


def test_the_examples_hidden_patches_reach_the_prediction_by_the_teacher_alone(
    example: Form,
) -> None:
    objective, given = built(altered(example.words, "teacher.rate=0.5")), batch(1)
    drawn = corruption.sample(given.key, GRID**2, 0.5, mask=1.0, random=0.0)
    seen = []
    objective.head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    patch = int(drawn.corrupted_BK[0, 0])
    row, column = divmod(patch, GRID)
    changed = given.image.clone()
    changed[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] ^= 255
    losses = [objective(given).loss, objective(given._replace(image=changed)).loss]
    assert torch.equal(seen[0], seen[1]) and losses[0] != losses[1]


def test_the_examples_teacher_is_an_average_of_the_encoder_and_gets_no_gradient(
    example: Form,
) -> None:
    objective = built(altered(example.words, "teacher.momentum=0.9"))
    objective(batch()).loss.backward()
    assert all(p.grad is None for p in objective.teacher.parameters())
    assert all(p.grad is not None for p in objective.encoder.parameters())
    pairs = list(objective.averages(0)[1])
    assert {id(mean) for mean, _ in pairs} == {id(p) for p in objective.teacher.parameters()}
    assert [objective.averages(p)[0] for p in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1])
    assert not [name for name in objective.heads() if "teacher" in name]


def test_its_options_and_mistakes_need_no_torch(form: Form) -> None:
    code = (
        "import sys; from ssl_vit.recipe.help import tool_help;"
        "from ssl_vit.recipe.tools import PretrainOptions;"
        f"text = tool_help(PretrainOptions, [*{form.start}, 'all']);"
        f"assert '{form.name}.momentum=0.99' in text and 'moco.' not in text;"
        "assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option, says in form.mistakes.items():
        with pytest.raises(UserError, match=says) as caught:
            resolve(altered(form.words, option, "name=x"))
        assert option.partition("=")[0] in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"objective={form.name} needs patches of pixels"):
        resolve([*form.start, "model=bit_r50x1", "data.size=64"])


def test_plan_counts_its_work(form: Form, capsys: pytest.CaptureFixture) -> None:
    plan_tool.main([*form.words, "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    recipe = resolve(altered(form.words, "name=x"))
    assert found["exaflop"] == pytest.approx(costs.exaflop(recipe, 12 * 16))


def test_a_killed_run_goes_on_to_the_same_end(form: Form, tmp_path: Path) -> None:
    found = killed_and_resumed(form.words, tmp_path)
    # of the package "teacher.encoder.NAME", of the example "teacher.NAME"
    teacher = {name.partition("backbone.")[2]: v for name, v in found.items() if "teacher." in name}
    assert teacher and any(
        not torch.equal(v, found[f"encoder.backbone.{name}"]) for name, v in teacher.items() if name
    )


def test_two_processes_learn_as_one(form: Form, tmp_path: Path) -> None:
    assert_two_processes_learn_as_one(form.words, tmp_path)


def test_a_sweep_page_card_and_figures_say_what_it_is(form: Form, tmp_path: Path) -> None:
    """Those of a plugin's run in processes where its file is gone say its name."""
    words = [word for word in form.words if word not in form.start]
    key, _, values = form.swept.partition("=")
    place = f"data.path={two_classes(tmp_path / 'images')}"
    study = ["tools/study.py", *form.start, *words, place, f"out={tmp_path}", "name=study"]
    study += ["probe.measures=[knn]", "probe.neighbors=2"]
    codes, outputs = outcome([launch(*study, "seeds=1", "sweep", form.swept)])
    assert codes == [0], outputs
    folder = next((tmp_path / "study").glob(f"pretrain-*{values.split(',')[0]}*"))
    drawn = (folder / "figures" / "predictions.png").read_bytes()
    figures = ["tools/figures.py", f"init={folder}", "images=4", "shown=2"]
    if form.plugin:
        named = f"plugin={form.plugin}"
        codes, outputs = outcome([launch(*figures, "figures=predicted", named)])
        assert codes == [0], outputs
        predicted = (folder / "figures" / "predicted.png").read_bytes()
        declaration.withdraw(form.name)
        form.plugin.unlink()
    codes, outputs = outcome([launch(*figures, "figures=predicted,filters")])
    assert codes == [0], outputs
    if form.plugin:
        reason = f"objective={form.name} is a plugin's; add plugin=FILE"
        assert outputs[0].count(reason) == 1
        assert (folder / "figures" / "predicted.png").read_bytes() == predicted
    assert (folder / "figures" / "predictions.png").read_bytes() == drawn
    (folder / "report.html").unlink()
    written = [launch("tools/report.py", str(place)) for place in (folder, tmp_path / "study")]
    codes, outputs = outcome(written)
    assert codes == [0, 0], outputs
    text = " ".join(html.unescape((folder / "report.html").read_text()).split())
    # of a plugin's run whose file is gone, its name
    assert all(words in text for words in ((form.name,) if form.plugin else form.page))
    assert form.plugin or text.count(FIGURE) >= 2  # of both pictures
    trained = Run(recipe_files.read(folder / "recipe.yaml"))
    card_text = card.write(trained, folder / "export")
    assert all(words in card_text for words in ((form.name,) if form.plugin else form.card))
    assert key in (tmp_path / "study" / "report.md").read_text()


def test_the_examples_picture_shows_where_predictions_are_near_the_teachers(example: Form) -> None:
    """White where they are the same, black where they are opposite; visible patches as they are."""
    objective, given = built(altered(example.words, "teacher.rate=0.5")), batch()
    drawn = corruption.sample(given.key, GRID**2, 0.5, mask=1.0, random=0.0)
    hidden = torch.zeros(3, GRID**2, dtype=torch.bool).scatter(1, drawn.corrupted_BK, True)
    hidden = hidden.unflatten(1, (GRID, GRID)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    hidden = hidden[:, None].expand_as(given.image)
    objective.head.weight.data.zero_()
    for sign, level in ((1, 255), (-1, 0)):
        feature_BND = torch.full((len(given.key), GRID**2, 32), 1.0)
        objective.teach = lambda image, feature_BND=feature_BND: feature_BND
        objective.head.bias.data.fill_(float(sign))
        with torch.no_grad():
            found = objective.panels(given)
        assert torch.equal(found["original"], given.image)
        assert (found["similarity"][hidden] == level).all()
        assert torch.equal(found["similarity"][~hidden], given.image[~hidden])
