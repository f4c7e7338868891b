"""A model, a data set, a target and an objective of one's own, from outside the package."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ssl_vit
from helpers.hub_runs import refused
from helpers.options import PROBE, ROOT, altered
from helpers.resolving import resolve, resolved
from ssl_vit.data.batching import Batch
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.jobs import cli, draw_figures, evaluate
from ssl_vit.jobs import train as train_job
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.measurements import (
    NUMBER,
    find_baseline,
    find_metric,
    read_flat_name,
    use_plugin_rows,
)
from ssl_vit.models.encoder import build_encoder
from ssl_vit.objectives import building
from ssl_vit.pages import run_page
from ssl_vit.pages.run_record import read_run
from ssl_vit.recipe import declaration, plugins, recipe_files, schema
from ssl_vit.recipe.help import meaning, tool_help
from ssl_vit.recipe.schema import changes_experiment, computed_values
from ssl_vit.recipe.tools import PretrainOptions
from ssl_vit.runs.folder import Run, open_run
from ssl_vit.runs.identity import differences, keys_without_effect, recipe_hash, written_hash

EXAMPLES = ROOT / "docs" / "examples"
PLUGIN = '''
import torch
from ssl_vit.extend import Objective, Output, declare

@declare
class Counted(Objective):
    """Labels, by a head for their classes."""
    name, labels = "counted", True
    def __init__(self, encoder, classes):
        super().__init__(encoder)
        assert classes == 10
        self.head = torch.nn.Linear(encoder.width, classes)
    def logits(self, batch):
        return self.head(self.encoder.feature(batch.image, "avg")).float()
    def forward(self, batch):
        told = self.logits(batch)
        loss = torch.nn.functional.cross_entropy(told, batch.label, reduction="sum")
        loss = loss / (len(told) if batch.loss_denominator is None else batch.loss_denominator)
        return Output(loss, {"loss": (loss.detach(), torch.ones(()))})
'''


@pytest.fixture(autouse=True)
def _withdrawn() -> Iterator[None]:
    """What plugins have declared is known in a test alone."""
    yield
    for one in declaration.all_declared():
        declaration.withdraw(one.name)


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The guide's target and an objective in one file."""
    file = tmp_path / f"own_{tmp_path.name}.py"
    file.write_text((EXAMPLES / "brightness.py").read_text() + PLUGIN)
    return file


def trained(words: list[str]) -> Run:
    run = Run(resolve(words))
    train_job.train(run)
    return run


def test_a_target_of_ones_own(plugin: Path, tiny: list[str], capsys: pytest.CaptureFixture) -> None:
    run = trained(altered(tiny, f"plugin={plugin}", "target=brightness", "name=run"))
    first, last = run.rows()[0], run.rows()[-1]
    assert last["loss"] < first["loss"] and "validation/variance" in last
    assert resolve([f"recipe={run.folder}/recipe.yaml", f"plugin={plugin}"]).plugin == str(plugin)
    declaration.withdraw("brightness")
    draw_figures.main([f"init={run.folder}", "figures=[filters,reconstruction]", "images=2"])
    line = "left out    reconstruction: run: target=brightness comes from a plugin"
    assert line in capsys.readouterr().out
    # one that was changed drew other predictions and truths without a word
    for name, more, drawn in (("same", "", True), ("changed", "# changed", False)):
        file = plugin.with_name(f"{name}_{plugin.name}")
        file.write_text(plugin.read_text() + more)
        for one in [*filter(declaration.is_from_plugin, map(type, declaration.all_declared()))]:
            declaration.withdraw(one.name)
        words = [f"init={run.folder}", "figures=[filters,reconstruction]", "images=2"]
        draw_figures.main([*words, f"plugin={file}"])
        assert ("plugin's file has changed" not in capsys.readouterr().out) is drawn


def test_the_help_of_target_has_the_sentence_of_each(plugin: Path, tiny: list[str]) -> None:
    own = "brightness: its mean brightness"
    assert own not in meaning(schema.all_keys()["target"])
    resolve([*tiny, f"plugin={plugin}"])
    text = meaning(schema.all_keys()["target"])
    assert own in text and "mean_color: the mean colour in 3 bits" in text
    for target in declaration.targets().values():
        assert text.count(f" {target.name}: {target.sentence}") == 1


def test_the_guides_objective_has_simmims_losses(tiny: list[str]) -> None:
    file = EXAMPLES / "simmim.py"
    words = altered(tiny, "recipe=simmim", "log.every=1", "optim.steps=4")
    own = trained([*words, f"plugin={file}", "objective=own_simmim", "name=own"]).rows()
    rows = trained([*words, "name=run"]).rows()
    assert [row["loss"] for row in own] == [row["loss"] for row in rows]
    assert own[-1]["validation/loss"] == rows[-1]["validation/loss"]


def test_the_guides_loss_is_that_of_a_plain_implementation(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """NT-Xent (Chen et al., 2020, equation 1), view by view; and a run says what is to be beaten."""
    text = (ROOT / "docs" / "extend.md").read_text()
    (block,) = re.findall(r"```python\n(# simclr\.py: .*?)```", text, re.DOTALL)
    file = tmp_path / "simclr.py"
    file.write_text(block)
    words = altered(tiny, "recipe=moco_v3", "eval.images=6", f"plugin={file}", "objective=simclr")
    run = trained([*words, "name=run"])
    out = capsys.readouterr().out
    assert "views found 9.1% (guessing)" in out and "encoder.feature" not in out  # 1 of 11
    assert {"loss", "found"} <= run.rows()[0].keys()
    network = build_encoder(run.recipe.model, run.recipe.data)
    objective = building.build_objective(building.Settings.from_recipe(run.recipe), network, 0)
    view_BV3HW = torch.randint(256, (3, 2, 3, 16, 16), dtype=torch.uint8)
    number_B = torch.arange(3)
    step = objective(Batch(view_BV3HW[:, 0], number_B, number_B, number_B, views=view_BV3HW))
    rows = [network.feature(view_BV3HW[b, v][None], "token") for b in range(3) for v in range(2)]
    z = [objective.projector(row)[0].detach().double().numpy() for row in rows]
    z = [one / np.linalg.norm(one) for one in z]
    losses = []
    for i, j in ((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)):
        others = sum(np.exp(z[i] @ z[k] / 0.1) for k in range(6) if k != i)
        losses.append(np.log(others) - z[i] @ z[j] / 0.1)
    assert step.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert step.metrics["loss"][1].item() == 3, "of images, not of views"


@pytest.mark.parametrize("key", ["objective", "target"])
def test_an_unknown_name_leads_to_plugins(key: str, tmp_path: Path) -> None:
    line = refused(resolve, ["recipe=mpp", f"{key}=whirl"])
    assert f"{key}=whirl: choices: " in line and "plugin=FILE.py" in line
    (tmp_path / "own.py").write_text("whirl = 1")
    line = refused(resolve, ["recipe=mpp", f"{key}=whirl", f"plugin={tmp_path}/own.py"])
    assert "own.py: the file declares no objective and no target" in line
    # of what no plugin can add to
    assert "plugin" not in refused(resolve, ["recipe=mpp", "optim.name=whirl"])


def test_an_objective_of_ones_own_is_told_how_many_classes_there_are(
    plugin: Path, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """And its classifier can be tested once more. Its loss is not of the feature that is exported,
    which nothing said."""
    own = [f"plugin={plugin}", "objective=counted"]
    run = trained([*altered(tiny, "eval.every=100"), *own, "name=run"])
    assert [row["loss"] for row in run.rows() if "loss" in row]
    assert "pool=avg. The probes and the export use pool=token" in capsys.readouterr().out
    out = next(option for option in tiny if option.startswith("out="))
    probed = Run(resolve([*PROBE, f"init={run.folder}", own[0], out, "probe.measures=[top1]"]))
    result = evaluate.evaluate(probed)
    assert result is not None and 0 <= result.metrics["top1"].value <= 1


@pytest.mark.parametrize(("pool", "said"), [("", True), ('pool = "token"', False)])
def test_a_loss_of_tokens_has_no_feature_that_is_known(
    pool: str, said: bool, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A loss of the patches' mean, by tokens(), was probed by the class token without a word."""
    file = tmp_path / f"own_{tmp_path.name}.py"
    file.write_text(OWN_KEYS.replace('    title = "Which', f'    {pool}\n    title = "Which'))
    trained([*altered(tiny, f"plugin={file}", "objective=turned"), "name=run"])
    assert ("the plugin declares no pool" in capsys.readouterr().out) is said


def test_an_encoder_that_is_not_trained_is_told(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Its head alone was trained without a word."""
    file = tmp_path / "turned.py"
    frozen = "super().__init__(encoder.requires_grad_(False))"
    file.write_text(OWN_KEYS.replace("super().__init__(encoder)", frozen))
    for objective in ("turned", "mpp"):
        trained(altered(tiny, f"plugin={file}", f"objective={objective}", f"name={objective}"))
        told = f"{file}: Network: no weight of the encoder is trained" in capsys.readouterr().out
        assert told is (objective == "turned")


def test_a_run_goes_on_with_a_plugin_that_has_moved_and_with_no_other(
    plugin: Path, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if each look at a plugin were the first one of its process
    monkeypatch.setattr(plugins, "file_hash", lambda path: "")
    words = altered(tiny, "objective=counted", "name=run", "optim.steps=4")
    named = f"plugin={plugin}"
    run = trained([*words, named])
    assert run.result() is not None
    assert "corruption.rate" in refused(resolve, [*words, named, "corruption.rate=0.3"])
    with monkeypatch.context() as patch:
        # the old code was trained, and the new file's hash recorded
        patch.setattr(plugins, "file_hash", lambda path: "another")
        assert "the file has changed" in refused(resolve, [*words, named])
    text = plugin.read_text()
    plugin.write_text(f"{text}# another\n")
    assert "different plugin files" in refused(cli.open_run, resolved([*words, named]))
    moved = tmp_path / f"moved_{tmp_path.name}.py"
    moved.write_text("")  # its names are there already: the text of the first file is what was run
    words.append(f"plugin={moved}")
    (run.folder / "result.json").unlink()
    assert "different plugin files" in refused(cli.open_run, resolved(words))
    moved.write_text(text)
    train_job.train(cli.open_run(resolved(words))[0])
    assert cli.open_run(resolved(words))[1] is not None


OWN_KEYS = """
# ruff: noqa
from ssl_vit.recipe.declaration import Group, ObjectiveDeclaration, declare
from ssl_vit.recipe.keys import Keys, key
from ssl_vit.metrics import Metric

class TurnOptions(Keys):
    '''Which way up an image stands.

    Attributes:
        turns: Ways that an image may stand.
    '''

    turns: int = key(2, gt=1, le=2)

class Turned(ObjectiveDeclaration):
    name = "turned"
    title = "Which way up"
    options = Group("turned", TurnOptions)
    metrics = (Metric("upright", "upright ones"),)
    def build(self, settings, encoder, classes):
        import torch
        from ssl_vit.objectives.base import Objective, Output

        class Network(Objective):
            def __init__(self):
                super().__init__(encoder)
                self.head = torch.nn.Linear(encoder.width, settings.group(TurnOptions).turns)
            def forward(self, batch):
                way = batch.key % 2
                image = torch.where(way[:, None, None, None] == 1, batch.image.flip(-2), batch.image)
                told = self.head(self.encoder(self.encoder.patch(image))[:, 0]).float()
                loss = torch.nn.functional.cross_entropy(told, way, reduction="none")
                count = torch.tensor(float(len(way)))
                upright = (way == 0).double().sum()
                return Output(
                    loss.mean(), {"loss": (loss.detach().sum(), count), "upright": (upright, count)}
                )
        return Network()

declare(Turned())
"""


def test_a_plugin_brings_options_and_its_runs_are_read_without_its_file(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Help, bounds and a run as of an objective of the package; page, card and list of runs, in a
    process that does not know it, have its name and those of its metrics."""
    file = tmp_path / "turned.py"
    file.write_text(OWN_KEYS)
    code = (
        "import sys; from ssl_vit.recipe.help import tool_help;"
        "from ssl_vit.recipe.tools import PretrainOptions;"
        f"words = ['recipe=mpp', 'objective=turned', 'plugin={file}', 'turned'];"
        "text = tool_help(PretrainOptions, words);"
        "assert 'turned.turns=2' in text and 'torch' not in sys.modules, text"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = altered(tiny, "objective=turned", f"plugin={file}", "name=run")
    assert "turned.turns=5: " in refused(resolve, [*words, "turned.turns=5"])
    run = trained([*words, "turned.turns=2"])
    assert "turned:\n  turns: 2" in (run.folder / "recipe.yaml").read_text()
    file.unlink()
    code = (
        "import sys; from pathlib import Path; from ssl_vit.pages import run_page;"
        "from ssl_vit.hub import card; from ssl_vit.runs.folder import Run;"
        "from ssl_vit.recipe import recipe_files; from ssl_vit.lab.runs import tool as runs_tool;"
        "folder = Path(sys.argv[1]); page = run_page.render(run_page.write(folder));"
        "assert 'upright' in page and 'Which way up' in page;"
        "run = Run(recipe_files.read(folder / 'recipe.yaml'));"
        "assert 'Which way up, an objective of a plugin' in card.render(run, folder / 'export');"
        "runs_tool.main([str(folder.parent)]); import ssl_vit; ssl_vit.load_encoder(folder)"
    )
    command = [sys.executable, "-c", code, str(run.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout
    words = [f"recipe={run.folder}/recipe.yaml", f"plugin={file}"]
    assert f"plugin={file}: no such Python file" in refused(resolve, words)


TARGET_KEYS = """
from ssl_vit.recipe.declaration import Group, TargetDeclaration, declare
from ssl_vit.recipe.keys import Keys, key

class GradientOptions(Keys):
    cells: int = key(2, "Cells of a patch.", gt=0, le=4)

class Gradient(TargetDeclaration):
    name, options = "gradient", Group("gradient", GradientOptions)
    def build(self, settings, encoder):
        raise NotImplementedError

declare(Gradient())
"""


def test_a_recipe_with_a_targets_options_is_read_without_its_plugin(
    tmp_path: Path, tiny: list[str]
) -> None:
    """Nothing that starts from such a run could read it: "unknown key gradient.cells"."""
    file, written = tmp_path / "gradient.py", tmp_path / "recipe.yaml"
    file.write_text(TARGET_KEYS)
    recipe = resolve(altered(tiny, f"plugin={file}", "target=gradient", "gradient.cells=3"))
    written.write_text(schema.dump(recipe))
    values = recipe.values()
    declaration.withdraw("gradient")
    assert recipe_files.read(written).values() == values
    written.write_text(schema.dump(recipe).replace("batch:", "bach:"))
    assert "optim.bach" in refused(recipe_files.read, written)


NOTE = 'note: str = key("", "What to remember.", effect="run")'
SHARED_KEYS = OWN_KEYS.replace("le=2)", f"le=2)\n    {NOTE}").replace(
    'title = "Which way up"', 'title, shared = "Which way up", ("corruption",)'
)


@pytest.fixture
def shared(tmp_path: Path) -> list[str]:
    """Options of an objective with a shared group of keys, and a key that computes nothing."""
    file = tmp_path / "turned.py"
    file.write_text(SHARED_KEYS)
    return [f"plugin={file}", "objective=turned"]


def test_without_its_plugin_a_recipe_keeps_the_shared_groups_it_has(
    shared: list[str], tiny: list[str]
) -> None:
    """They were dropped, and runs of two rates compared as equal."""
    recipes = [resolve(altered(tiny, *shared, f"corruption.rate={rate}")) for rate in (0.3, 0.6)]
    written = [recipe.values() for recipe in recipes]
    declaration.withdraw("turned")  # as in a process that does not know it
    read = [schema.build(one) for one in written]
    assert [one.values()["corruption.rate"] for one in read] == [0.3, 0.6]
    assert [one.key for one in differences(*map(computed_values, read))] == ["corruption.rate"]
    no_target = {"target": None}
    assert [one.values() | no_target for one in read] == [one | no_target for one in written]


def test_a_key_that_computes_nothing_counts_for_nothing_without_its_plugin(
    shared: list[str], tiny: list[str]
) -> None:
    recipe = resolve(altered(tiny, *shared, "turned.note=first"))
    known, written = recipe_hash(recipe), recipe.values()
    assert (free := keys_without_effect(recipe)) == ["turned.note"]
    declaration.withdraw("turned")
    other = written | {"turned.turns": 1}
    assert written_hash(written, free) == known != written_hash(other, free)
    assert changes_experiment("turned.note"), (
        "what a run recorded of its keys holds for that run alone"
    )


def test_a_fine_tuning_of_ones_own_is_finetune_s(plugin: Path, tiny: list[str]) -> None:
    """What learns labels, from weights that are trained."""
    words = altered(tiny, f"plugin={plugin}", "objective=counted", "init=timm:vit_tiny_patch16_224")
    assert resolve(altered(words, "init=scratch")).training_tool == "pretrain"
    assert resolve(words, here=False).training_tool == "finetune"


def test_what_differs_from_a_recipe_file_is_said_of_other_groups_too(
    shared: list[str], tiny: list[str]
) -> None:
    options = altered(tiny, "objective=joint", "joint.mpp=2")
    differs = resolved(options).recipe_file()["differs"]
    assert differs["objective"] == "mpp" and differs["joint.mpp"] == 1.0


TURNS = "key(2, gt=1, le=2)"
NO_GROUP = "no group of keys can have this name"
WRONG = [
    ('name = "turned"', 'name = ""', "Turned: the objective has no name"),
    ('name = "turned"', 'name = "mae"', "objective=mae: "),
    (
        'title = "Which way up"',
        'shared = ("view",)',
        "shared=view: unknown name, did you mean views",
    ),
    ('title = "Which way up"', 'pool = "mean"', "objective=turned: pool=mean: expected token or"),
    ("declare(Turned())", "declare(Turned)", "declare(Turned): expected an instance"),
    ("declare(Turned())", "declare(Turned(", "SyntaxError: '(' was never closed (turned.py, line"),
    ("declare(Turned())", "declare(Turned())\nraise OSError('broken')", "broken"),
    # became a method of recipes
    *(('Group("turned"', f'Group("{one}"', NO_GROUP) for one in ("values", "trains", "a.b")),
    *(
        ('Group("turned"', f'Group("{one}"', "two groups of keys have this name")
        for one in ("mae", "target")
    ),
    ("def build(", "def built(", "Turned: expected a method build"),
    # made runs that nothing reads
    (TURNS, 'key(5, "h.", le=3)', "turned.turns: the default 5 "),
    (TURNS, 'key(..., "h.")', "turned.turns: key(...) declares no default"),
    ("turns: int", "effect: int", "shadows an attribute in parent"),
]


def written(file: Path, source: str, was: str, now: str, tiny: list[str]) -> list[str]:
    """Write a plugin with a mistake, and return the options of a run with the plugin."""
    assert source.count(was) == 1
    file.write_text(source.replace(was, now))
    return altered(tiny, f"plugin={file}", "objective=turned")


@pytest.mark.parametrize(("was", "now", "says"), WRONG)
def test_a_plugin_that_cannot_be_is_refused_at_once_and_leaves_nothing(
    tmp_path: Path, tiny: list[str], was: str, now: str, says: str
) -> None:
    """So that its file, mended, can be run."""
    file = tmp_path / "turned.py"
    words = written(file, OWN_KEYS, was, now, tiny)
    mae = declaration.objectives()["mae"]
    assert says in refused(resolve, words)
    assert declaration.objectives()["mae"] is mae
    assert not {"", "turned"} & declaration.objectives().keys() and resolve(tiny)
    file.write_text(OWN_KEYS)
    assert resolve(words).objective == "turned"


DECLARED = """
import torch
from ssl_vit.extend import Metric, Objective, Options, Output, declare, option, sums

@declare
class Turned(Objective):
    name, title = "turned", "Which way up"
    metrics = (Metric("upright", "upright ones"),)

    class Options(Options):
        turns: int = option(2, "Ways that an image may stand.", gt=1, le=4)

    @classmethod
    def check(cls, recipe):
        if recipe.group(cls.Options).turns == 3:
            raise recipe.error("turned.turns", "expected 2 or 4")

    def __init__(self, encoder, turns):
        super().__init__(encoder)
        self.head = torch.nn.Linear(encoder.width, turns)

    def forward(self, batch):
        loss_B = self.head(self.encoder.feature(batch.image)).float().logsumexp(1)
        return Output(loss_B.mean(), sums(loss=loss_B, upright=torch.ones_like(loss_B)))
"""


def test_a_class_declares_an_objective(tmp_path: Path, tiny: list[str]) -> None:
    file = tmp_path / "turned.py"
    file.write_text(DECLARED)
    words = altered(tiny, f"plugin={file}", "objective=turned")
    assert {"loss", "upright"} <= trained([*words, "turned.turns=4", "name=run"]).rows()[0].keys()
    text = tool_help(PretrainOptions, ["recipe=mpp", f"plugin={file}", *words[-1:], "turned"])
    assert "turned: Which way up." in text and "Ways that an image may stand." in text
    for turns, says in (
        (3, "expected 2 or 4"),
        (5, "expected a whole number above 1 and at most 4"),
    ):
        assert f"turned.turns={turns}: {says}" in refused(
            resolve, [*words, f"turned.turns={turns}"]
        )


UNDECLARED = [
    ("title =", "titel =", "Turned: titel: unknown attribute, did you mean title?"),
    ('upright ones"),)', 'upright ones"))', "expected a tuple"),
    ("class Options(", "class Option(", "Turned: class Option: expected class Options(Options)"),
    ("Options(Options)", "Options", "Turned: class Options: expected class Options(Options)"),
    ("    @classmethod\n", "", "Turned.check: expected a class method"),
    ("encoder, turns)", "encoder, turn)", "Write def __init__(self, encoder, turns)."),
    ("(Objective)", "", "@declare Turned: expected a subclass of Objective or of Target"),
]


@pytest.mark.parametrize(("was", "now", "says"), UNDECLARED)
def test_a_class_with_a_mistake_is_refused(
    tmp_path: Path, tiny: list[str], was: str, now: str, says: str
) -> None:
    line = refused(resolve, written(tmp_path / "turned.py", DECLARED, was, now, tiny))
    assert says in line and "\n" not in line


LOSS, PAIR = '"loss": (loss.detach().sum(), count), ', '"upright": (upright, count)'
ACCURACY = "brightness", '{"loss"', '{"accuracy": output_BKA > truth_BK1, "loss"'
NOT_SO = [
    ("turned", "def forward(", "def forwards(", "Network: methods .*forward"),
    ("turned", "loss.mean(), {", "loss, {", r"Network: the loss has shape \(\d+,\)"),
    ("turned", PAIR, '"upright": upright', r"Network: metric upright .*\(sum, count\)"),
    ("turned", LOSS, "", "Network: the metric 'loss' is missing"),
    ("turned", PAIR, '"uprigt": (upright, count)', "metric uprigt .*did you mean upright"),
    ("turned", "loss.mean(), {", "loss.mean().detach(), {", "Network: the loss has no gradient"),
    ("turned", "return Network()", "Network()", "Turned: build returns NoneType"),
    ("brightness", "def render(", "def draw(", "MeanBrightness: methods .*render"),
    (*ACCURACY, r"metrics: accuracy has shape \(\d+, 8, 1\)"),
    ("brightness", "b (h w) 1", "b h w", "ground_truth has shape "),
    (
        "brightness",
        "1, 1, 3)",
        "1, 1, 1)",
        "MeanBrightness: render returns torch.uint8 .*, 1, 1, 1",
    ),
    ("brightness", ".byte()", "", r"render returns torch.float32 .*uint8 \(B, N, c, c, 3\)"),
    ("brightness", '"variance"', '"varianc"', "baseline varianc .*did you mean variance"),
]


@pytest.mark.parametrize(("name", "was", "now", "says"), NOT_SO)
def test_what_a_plugin_gives_is_checked_before_the_first_step(
    tmp_path: Path, tiny: list[str], name: str, was: str, now: str, says: str
) -> None:
    """Some were tracebacks of the package's code; of others nothing was said and a metric or a
    baseline was missing, or broadcast to one that cannot be."""
    text = OWN_KEYS if name == "turned" else (EXAMPLES / "brightness.py").read_text()
    assert text.count(was) == 1
    file = tmp_path / "own.py"
    file.write_text(text.replace(was, now))
    key = "objective" if name == "turned" else "target"
    with pytest.raises(UserError, match=f"^{file}: .*{says}"):
        trained(altered(tiny, f"plugin={file}", f"{key}={name}", "name=run"))


def test_a_baseline_is_of_a_metric_and_is_measured(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    """With a slip in either name nothing was to be beaten, and nothing was said."""
    text = OWN_KEYS.replace("import Metric", "import Baseline, Metric")
    metric = 'metrics = (Metric("upright", "upright ones"),'
    for number, name in enumerate(("uprigt", "upright")):
        file = tmp_path / f"turned{number}.py"
        file.write_text(
            text.replace(metric, f'{metric} Baseline("flat", "guessing", ("{name}",)),')
        )
        words = altered(tiny, f"plugin={file}", "objective=turned", f"name=run{number}")
        if name == "uprigt":
            assert "did you mean upright" in refused(trained, words)
        else:
            trained(words)
    assert "warning: baseline flat " in capsys.readouterr().out


def test_a_share_above_one_ends_the_run(tmp_path: Path, tiny: list[str]) -> None:
    """It was reported as 300%, which beats guessing."""
    file = tmp_path / "turned.py"
    text = OWN_KEYS.replace('"upright", "upright ones"', '"above", unit="share"')
    file.write_text(text.replace('"upright": (upright,', '"above": (upright + 3 * count,'))
    with pytest.raises(UserError, match=rf"^{file}: Network: above is 3\.\d+"):
        trained(altered(tiny, f"plugin={file}", "objective=turned", "name=run"))


NAMED = """
import torch
from ssl_vit.metrics import Baseline, Metric
from ssl_vit.objectives.base import Objective, Output
from ssl_vit.recipe.declaration import ObjectiveDeclaration, declare

class Network(Objective):
    def forward(self, batch):
        feature = self.encoder.feature(batch.image, "avg").float()
        loss, one = feature.square().mean(), torch.ones(())
        given = {"loss": loss.detach(), "variance": 0.25 * one, "knn": 0.5 * one}
        return Output(loss, {name: (value, one) for name, value in given.items()})
    def baselines(self, batch):
        one = torch.ones(())
        return {"chance": (0.75 * one, one)}

class Declaration(ObjectiveDeclaration):
    name = "NAME"
    title = "Spread"
    metrics = (
        Metric("variance", "LABEL", higher=HIGHER, unit="share"),
        Metric("knn", "neighbours of LABEL", unit="number"),
        Baseline("chance", "guessing LABEL", ("variance",)),
    )
    def build(self, settings, encoder, classes):
        return Network(encoder)

declare(Declaration())
"""


def test_metrics_of_a_plugin_may_have_any_name(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """`variance` is a baseline of the package and `knn` a metric: declaring them was a ValueError.
    Two plugins with a metric of one name are shown each by its own label, unit and direction, in
    the process that trains them and in one without them."""
    out = f"{tmp_path}/runs"
    folders = []
    for name, label, higher in (("spread", "spread of views", True), ("loss_of", "errors", False)):
        file = tmp_path / f"{name}.py"
        text = NAMED.replace("LABEL", label).replace("HIGHER", str(higher)).replace("NAME", name)
        file.write_text(text)
        words = altered(tiny, f"plugin={file}", f"objective={name}", f"out={out}", f"name={name}")
        folders.append(trained(words).folder)
        printed = capsys.readouterr().out
        assert (
            f"{label} 25.0% (to beat 75.0%)" in printed and f"neighbours of {label} 0.5" in printed
        )
    mpp = trained(altered(tiny, f"out={out}", "name=mpp", "target=pixels")).folder
    capsys.readouterr()
    for one in declaration.all_declared():
        declaration.withdraw(one.name)

    spread, errors = (
        " ".join((run_page.write(f).folder / "report.html").read_text().split()) for f in folders
    )
    assert "75.00% (guessing spread of views)" in spread and "75.00% (guessing errors)" in errors
    assert "the training mean" in (run_page.write(mpp).folder / "report.html").read_text()
    runs_tool.main([out, "best=variance"])
    printed = capsys.readouterr().out
    assert printed.startswith("variance: lower or higher is better, as each plugin declares")
    assert printed.count("to beat 75.00%") == 2
    for folder, label in zip(folders, ("spread of views", "errors"), strict=True):
        assert f"guessing {label}" in card.render(open_run(folder), folder / "export")
    with use_plugin_rows(read_run(folders[0]).environment.plugin_rows):
        assert find_metric(read_flat_name("probe_knn")).unit == NUMBER
    assert find_metric(read_flat_name("knn")).words == "k-NN"
    baseline = find_baseline(read_flat_name("variance"))
    assert baseline is not None and baseline.called == "the training mean"


def test_a_number_as_plugin_is_a_path():
    """A recipe that names a plugin which was never run."""
    assert "plugin=3: no such Python file" in refused(
        ssl_vit.resolve, {"recipe": "mpp", "plugin": 3}
    )
