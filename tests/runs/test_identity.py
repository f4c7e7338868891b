"""Identity of a run: a result is reported, and a run resumed, only where the recipe, the images,
the initial weights, the plugin and the files are the same."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.hub_runs import refused
from helpers.images import png
from helpers.options import FREE, TINY, altered
from helpers.resolving import parse_request, resolve
from ssl_vit.data import fingerprints
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli, evaluate, image_facts
from ssl_vit.jobs import train as train_job
from ssl_vit.recipe.load import Resolved
from ssl_vit.recipe.records.run import Result
from ssl_vit.runs import lock
from ssl_vit.runs.folder import Run
from ssl_vit.runs.identity import check_finished, recipe_hash

# These change what the result says, at its end: an unfinished run may go on with another value.
FREE_UNTIL_FINISHED = {
    *("data.unreadable", "optim.nonfinite"),  # which stop a run
    "checkpoint.best",  # which weights are tested and exported
    *("probe.every", "probe.images", "eval.knn", "eval.images", "eval.test", "eval.real"),
}
# A finished run may be requested with another value of these, and an unfinished one goes on with
# it: they do not change what the result says. Everything else is refused by name.
ALWAYS_FREE = FREE - FREE_UNTIL_FINISHED - {"resume", "plugin"}
# Another valid value of each key whose type alone does not give one
WORDS = """
    objective=supervised target=pixels init=FINISHED plugin=PLUGIN resume=false
    data.path=MOVED data.hub=user/name data.size=32 data.train=test data.test=train
    data.share=0.5 data.share_seed=1 data.validation=0.25 data.stream=true
    data.image_column=image data.label_column=label data.classes=3 data.eval_mode=squash
    data.mean=[0.4,0.4,0.4] data.std=[0.4,0.4,0.4] data.mixup=0.1 data.cutmix=0.1
    model.timm=vit_small_patch16_224 model.patch=8 model.heads=4 model.args={"qkv_bias":false}
    model.activation=swiglu model.positions=sincos_2d
    views.blur=[0.5,0.1] views.blur_sigma=[0.2,2.0] views.solarize=[0.0,0.3]
    corruption.source=batch corruption.shape=blocks corruption.side=2
    supervised.loss=sigmoid supervised.pool=avg
    probe.measures=[knn] probe.pool=token probe.feature=hidden probe.layer=1 probe.shots=[2]
    probe.rates=[0.5]
    optim.name=sgd optim.batch=8 optim.schedule=linear optim.drops=[0.5] optim.decay=0.5
    optim.nonfinite=skip optim.betas=[0.8,0.9] optim.layer_decay=0.9 optim.average=0.9
    compute.batch=4 compute.precision=bfloat16 compute.patience=60 compute.resident=false
    checkpoint.best=accuracy log.trackers=[tensorboard,tensorboard] eval.real=REAL
    hub.repo=user/name hub.every=5
"""
VALUES = dict(word.split("=", 1) for word in WORDS.split())
SHARES = {  # which are changed together
    "corruption.mask": (0.7, 0.2, 0.1),
    "corruption.random": (0.7, 0.2, 0.1),
    "corruption.keep": (0.7, 0.1, 0.2),
}


def images(root: Path, first: int = 0) -> Path:
    """An image folder of two classes and two splits; an image follows from its number."""
    for split, count in (("train", 40), ("test", 12)):
        for i in range(count):
            path = root / split / ("ant", "bee")[i % 2] / f"{i:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(first + i + 1000 * (split == "test"), 16))
    return root


def options_of(root: Path, *more: str) -> list[str]:
    return altered(
        TINY,
        *("recipe=joint", "optim.steps=2", "optim.warmup=0", "eval.every=2", "eval.test=true"),
        *("probe.every=2", "probe.images=20", "probe.measures=[few_shot]", "probe.shots=[1]"),
        *(f"data.path={root}/a/own", f"out={root}/runs", "name=joint"),
        *("data.validation=0.2", "compute.batch=16", *more),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a moved copy of them, others under the same name, and runs/joint, which
    has finished."""
    root = tmp_path_factory.mktemp("identity")
    shutil.copytree(images(root / "a" / "own"), root / "b" / "own")
    images(root / "c" / "own", 500)
    (root / "plugin.py").write_text("")
    (root / "real.json").write_text("[]")
    run = Run(resolve(options_of(root)))
    run.reconcile()
    train_job.train(run)
    return root


class Copy(NamedTuple):
    """A copy of runs/joint, and the options that name it."""

    folder: Path
    options: list[str]

    def read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    def unfinish(self) -> None:
        (self.folder / "result.json").unlink()

    def contents(self) -> dict[str, bytes]:
        kept = ("recipe.yaml", "environment.json", "result.json", "metrics.jsonl")
        return {name: path.read_bytes() for name in kept if (path := self.folder / name).exists()}


@pytest.fixture
def made(place: Path, tmp_path: Path) -> Copy:
    shutil.copytree(place / "runs", tmp_path / "runs")
    return Copy(tmp_path / "runs" / "joint", options_of(place, f"out={tmp_path}/runs"))


def other(key: str, now: object, root: Path) -> list[str]:
    """Words that give a key another value."""
    if key in SHARES:
        shares = zip(("mask", "random", "keep"), SHARES[key], strict=True)
        return [f"corruption.{name}={share}" for name, share in shares]
    files = {"FINISHED": "runs/joint", "PLUGIN": "plugin.py", "MOVED": "b/own", "REAL": "real.json"}
    if value := VALUES.get(key):
        return [f"{key}={root / files[value] if value in files else value}"]
    if isinstance(now, bool):
        return [f"{key}={str(not now).lower()}"]
    if isinstance(now, float):
        return [f"{key}={now / 2 if now else 0.1}"]
    return [f"{key}={f'{now}x' if isinstance(now, str) else (now or 3) + 1}"]


def found(options: list[str]) -> tuple[Run, Result | None]:
    """What a tool does before it trains."""
    return cli.open_run(Resolved(resolve(options, here=False)))


def test_every_key_is_refused_by_name_or_is_free_for_a_reason(place: Path) -> None:
    """Of a finished run. The hash of its recipe leaves out what may change at some time."""
    base = resolve(options_of(place))
    values = base.values()
    for key, now in values.items():
        options = options_of(place, *other(key, now, place))
        if key.startswith("hub.") and key != "hub.repo":
            options.append("hub.repo=user/name")
        try:
            changed = resolve(options, here=False)
            assert (recipe_hash(changed) == recipe_hash(base)) == (key in FREE), key
            run, result = cli.open_run(Resolved(changed))
        except UserError as error:
            assert key not in ALWAYS_FREE, f"{key}: {error}"
            named = (key, f", .{key.partition('.')[2]}=")
            assert any(text in str(error) for text in named), f"{key}: {error}"
        else:
            again = key == "eval.real"  # with the weights that there are; eval.test was measured
            assert key in ALWAYS_FREE or again, f"{key} may change"
            assert run.recipe.values()[key] != now, f"{key} was not changed"
            assert (result is None) == (again or key in ("name", "out")), key


@pytest.mark.parametrize("key", sorted(FREE_UNTIL_FINISHED))
def test_an_unfinished_run_goes_on_with_what_is_free_until_its_end(
    place: Path, made: Copy, key: str
) -> None:
    made.unfinish()
    now = resolve(made.options).values()[key]
    run, result = found(altered(made.options, *other(key, now, place)))
    assert result is None and run.recipe.values()[key] != now


def test_the_result_is_told_of_what_it_is_over(made: Copy) -> None:
    result = found(made.options)[1]
    assert result and result.content() == made.read("result.json")
    untested = altered(made.options, "eval.test=false")
    assert "eval.test (True there, False here)" in refused(found, untested)
    record = made.read("environment.json")
    path = made.folder / "environment.json"
    path.write_text(json.dumps(record | {"options": record["options"] | {"eval.test": False}}))
    assert found(made.options)[1] is None  # it is measured now
    shutil.rmtree(made.folder / "checkpoints")
    line = refused(found, made.options)
    assert "eval.test (False there, True here)" in line and "name=" in line
    del record["options"]["eval.images"]  # not recorded is not known
    path.write_text(json.dumps(record))
    assert "eval.images (None there" in refused(found, made.options)


def test_a_finished_run_is_told_for_its_own_images_only(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    others, moved, gone = (f"data.path={path}/own" for path in (place / "c", place / "b", tmp_path))
    line = refused(found, options_of(place, others))
    assert "different images (test, train, validation)" in line
    assert found(options_of(place, moved))[1] is not None
    assert "warning" not in capsys.readouterr().out
    assert found(options_of(place, gone))[1] is not None
    assert "not compared" in capsys.readouterr().out
    assert "no such file or folder" in refused(found, options_of(place, gone, "name=new"))


def test_what_is_not_here_is_said_not_to_have_been_checked(place: Path, tmp_path: Path) -> None:
    run, _ = found(options_of(place))
    run.recipe.init, run.recipe.data.path, run.recipe.data.hub = f"{tmp_path}/gone", None, "me/pics"
    lines = check_finished(run, image_facts.fingerprint)
    assert [line.partition(":")[0] for line in lines] == [
        f"init={tmp_path}/gone",
        "data.hub=me/pics",
    ]
    assert all("not checked" in line or "not compared" in line for line in lines)


def test_folders_of_one_name_are_not_mixed_up(place: Path, made: Copy) -> None:
    """Under the run's default name, finished and not."""
    unnamed = [word for word in made.options if not word.startswith("name=")]
    here, there = (resolve(altered(unnamed, f"data.path={place}/{which}/own")) for which in "ac")
    assert here.name == there.name
    made = Copy(made.folder.rename(made.folder.with_name(here.name)), unnamed)
    assert found(unnamed)[1] is not None
    others = altered(unnamed, f"data.path={place}/c/own")
    differ = f"data.path={place}/c/own: "
    assert differ in refused(found, others)
    made.unfinish()
    before = made.contents()
    assert differ in refused(train_job.train, found(others)[0])
    assert made.contents() == before


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_recipe_that_was_edited_or_taken_away_is_refused(made: Copy, finished: bool) -> None:
    if not finished:
        made.unfinish()
    path = made.folder / "recipe.yaml"
    text = path.read_text()
    assert text.count("  lr: 0.001\n") == 1
    path.write_text(text.replace("  lr: 0.001\n", "  lr: 0.5\n"))
    for options in (made.options, altered(made.options, "optim.lr=0.5")):
        assert f"{path} is missing or has changed" in refused(found, options)
    path.unlink()
    assert f"{path} is missing" in refused(found, made.options)
    path.write_text(text)
    assert (found(made.options)[1] is not None) == finished


def test_nobody_is_told_to_remove_what_is_being_written(made: Copy) -> None:
    """The way out of a name that is taken was to remove a run that went on."""
    made.unfinish()
    others = altered(made.options, "optim.lr=0.5")
    with lock.hold(made.folder, "runs"):
        line = refused(found, others)
        assert "another name=" in line and "remove this folder" not in line
    assert "remove this folder" in refused(found, others)


def test_another_may_write_the_run_while_this_one_waits_for_the_lock(
    place: Path, tmp_path: Path
) -> None:
    """Whoever looked before it was there, and comes after another has begun or finished it, neither
    overwrites it nor trains it again."""
    options = options_of(place, f"out={tmp_path}/runs")
    late, same, elsewhere = (
        found(altered(options, *more))[0]
        for more in (
            ["optim.lr=0.5", "seed=3", "compute.workers=5"],
            [],
            [f"data.path={place}/c/own"],
        )
    )
    made = Copy(tmp_path / "runs" / "joint", options)
    shutil.copytree(place / "runs" / "joint", made.folder)
    before = made.contents()
    line = refused(train_job.train, late)
    assert "seed (0 there, 3 here)" in line and "optim.lr (0.001 there, 0.5 here)" in line
    assert line.startswith(f"name=joint: {made.folder} ") and line.count(" here)") == 2
    assert train_job.train(same).content() == made.read("result.json")
    assert "have different images" in refused(train_job.train, elsewhere)
    assert made.contents() == before
    made.unfinish()
    before = made.contents()
    assert "optim.lr (0.001 there, 0.5 here)" in refused(train_job.train, late)
    assert made.contents() == before


def evaluation(init: Path, out: Path, images: Path, *more: str) -> list[str]:
    own = [f"init={init}", f"data.path={images}", f"out={out}", "data.size=16", "name=look"]
    fast = ["compute.precision=float32", "compute.threads=1", "probe.measures=[knn]"]
    return altered(["recipe=evaluate", *own, *fast], *more)


def test_an_evaluation_checks_again_under_the_lock(place: Path, made: Copy) -> None:
    options = evaluation(made.folder, made.folder.parent, place / "a" / "own")
    late, first = found([*options, "probe.neighbors=3"])[0], found(options)[0]
    evaluate.evaluate(first)
    before = Copy(first.folder, options).contents()
    assert "probe.neighbors (20 there, 3 here)" in refused(evaluate.evaluate, late)
    assert Copy(first.folder, options).contents() == before and found(options)[1] is not None
    weights = made.folder / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert "different weights" in refused(found, options)


def plugin_that_tells(folder: Path) -> tuple[Path, Path]:
    """A plugin, and the file that it writes when it is run."""
    plugin, ran = folder / "theirs.py", folder / "ran"
    plugin.write_text(f"from pathlib import Path\nPath({str(ran)!r}).write_text('x')\n")
    return plugin, ran


def test_a_plugin_runs_only_where_the_command_line_names_it(
    place: Path, made: Copy, tmp_path: Path
) -> None:
    """Not one that a run's folder or a recipe file brings along."""
    plugin, ran = plugin_that_tells(tmp_path)
    path = made.folder / "recipe.yaml"
    assert path.read_text().count("plugin: null") == 1
    path.write_text(path.read_text().replace("plugin: null", f"plugin: {plugin}"))
    for typed in (made.options, [f"recipe={path}"], [f"recipe={path}", "name=again"]):
        assert f"plugin={plugin}" in refused(found, typed)
    options = evaluation(made.folder, tmp_path / "runs", place / "a" / "own")
    assert evaluate.evaluate(found(options)[0])["measurements"]
    found(["recipe=finetune", *altered(options[1:-1], "name=fine")])
    assert not ran.exists()
    # it was made without one
    assert "different plugin files" in refused(found, [*made.options, f"plugin={plugin}"])
    assert ran.exists()


def test_a_studys_file_runs_no_plugin_of_its_own(tmp_path: Path) -> None:
    plugin, ran = plugin_that_tells(tmp_path)
    study, own = tmp_path / "theirs.yaml", f", plugin: {plugin}"
    study.write_text(f"title: t\nruns: {{a: {{tool: pretrain, options: {{recipe: mpp{own}}}}}}}\n")
    line = refused(parse_request, [f"recipe={study}"])
    assert f"plugin: {plugin}: " in line and not ran.exists()
    study.write_text(study.read_text().replace(own, ""))
    assert parse_request([f"recipe={study}", f"plugin={plugin}"]).tasks and ran.exists()


def test_images_are_hashed_once_for_all_runs_that_share_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_facts._fingerprints.cache_clear()
    real, times = fingerprints.fingerprint_splits, []
    monkeypatch.setattr(fingerprints, "fingerprint_splits", lambda *a: times.append(1) or real(*a))
    for _ in range(2):
        found(options_of(place))
    assert len(times) == 1
