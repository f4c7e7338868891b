"""Identity of a run: a result is reported, and a run resumed, only where the recipe, the images,
the initial weights, the plugin and the files are the same."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.options import FREE, TINY, altered
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli, reuse
from ssl_vit.jobs import train as train_job
from ssl_vit.lab import engine, run_folder
from ssl_vit.lab.study.request import requested
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run

# A finished run may be requested with another value of these, and an unfinished one goes on with
# it: they do not change what the result says. Everything else is refused by name.
ALWAYS_FREE = {
    "name": "names another folder",
    "out": "names another folder",
    "data.path": "images may move; their fingerprint is compared",
    "compute.batch": "images of a pass; the global batch stays",
    "compute.compile": "how the same is computed",
    "compute.workers": "who reads the images",
    "compute.resident": "where the same batches are cut",
    "compute.threads": "how many cores compute",
    "compute.patience": "when a process is given up",
    "checkpoint.every": "what a kill costs",
    "eval.collapse": "when features are looked at, for rows and warnings",
    "checkpoint.keep": "what a kill costs",
    "checkpoint.background": "what a kill costs",
    "eval.every": "how often is looked; the result is of the last step",
    "log.every": "how often is looked",
    "log.trackers": "other copies of metrics.jsonl",
    "hub.repo": "where it is pushed",
    "hub.private": "who may see what is pushed",
    "hub.every": "how often is pushed",
    "hub.state": "what is pushed",
    "hub.wait": "how long is waited for a push",
}
# These change what the result says, at its end: an unfinished run may go on with another value.
FREE_UNTIL_FINISHED = {
    "data.unreadable": "a bound that stops the run",
    "optim.nonfinite": "policy where a run would otherwise stop",
    "checkpoint.best": "which weights are tested and exported",
    "probe.every": "which probes the result has",
    "probe.images": "what those probes learn from",
    "eval.knn": "whether the result has k-NN",
    "eval.images": "how many held-out images the result is over",
    "eval.test": "whether the result has the test split",
    "eval.real": "whether it has ImageNet-ReaL",
}
# Another valid value of each key whose type alone does not give one
VALUES = {
    "resume": "false",
    "checkpoint.best": "accuracy",
    "compute.resident": "false",
    "log.trackers": "[tensorboard,tensorboard]",
    "objective": "supervised",
    "target": "pixels",
    "init": "FINISHED",
    "plugin": "PLUGIN",
    "data.path": "MOVED",
    "data.hub": "user/name",
    "data.size": "32",
    "data.train": "test",
    "data.share": "0.5",
    "data.share_seed": "1",
    "data.validation": "0.25",
    "data.test": "train",
    "data.image_column": "image",
    "data.label_column": "label",
    "data.classes": "3",
    "data.eval_mode": "squash",
    "data.mean": "[0.4,0.4,0.4]",
    "data.std": "[0.4,0.4,0.4]",
    "data.stream": "true",
    "data.mixup": "0.1",
    "data.cutmix": "0.1",
    "model.timm": "vit_small_patch16_224",
    "model.patch": "8",
    "model.heads": "4",
    "model.args": "{qkv_bias: false}",
    "model.activation": "swiglu",
    "model.positions": "sincos_2d",
    "views.blur": "[0.5,0.1]",
    "views.blur_sigma": "[0.2,2.0]",
    "views.solarize": "[0.0,0.3]",
    "corruption.mask": "0.8",  # the three shares are changed together, below
    "corruption.source": "batch",
    "corruption.shape": "blocks",
    "corruption.side": "2",
    "supervised.loss": "sigmoid",
    "supervised.pool": "avg",
    "probe.measures": "[knn]",
    "probe.pool": "token",
    "probe.feature": "hidden",
    "probe.layer": "1",
    "probe.shots": "[2]",
    "probe.rates": "[0.5]",
    "optim.name": "sgd",
    "optim.batch": "8",
    "optim.schedule": "linear",
    "optim.drops": "[0.5]",
    "optim.nonfinite": "skip",
    "optim.betas": "[0.8,0.9]",
    "optim.layer_decay": "0.9",
    "optim.average": "0.9",
    "compute.batch": "4",
    "compute.precision": "bfloat16",
    "compute.patience": "60",
    "eval.real": "REAL",
    "hub.repo": "user/name",
    "hub.every": "5",
}
SHARES = {
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
            draw = np.random.default_rng(first + i + 1000 * (split == "test"))
            Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
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


def options_of(root: Path, *more: str) -> list[str]:
    few = [
        "recipe=joint",
        "optim.steps=2",
        "optim.warmup=0",
        "eval.every=2",
        "probe.every=2",
        "probe.images=20",
        "name=joint",
    ]
    own = [
        "probe.measures=[few_shot]",
        "probe.shots=[1]",
        "eval.test=true",
        f"data.path={root}/a/own",
        f"out={root}/runs",
    ]
    return altered(TINY, *few, *own, "data.validation=0.2", "compute.batch=16", *more)


def other(key: str, now: object, root: Path) -> list[str]:
    """Words that give a key another value."""
    if key in SHARES:
        return [
            f"corruption.{name}={share}"
            for name, share in zip(("mask", "random", "keep"), SHARES[key], strict=True)
        ]
    if key in VALUES:
        known = {
            "FINISHED": root / "runs" / "joint",
            "PLUGIN": root / "plugin.py",
            "MOVED": root / "b" / "own",
        }
        return [
            f"{key}={known.get(VALUES[key], root / 'real.json' if VALUES[key] == 'REAL' else VALUES[key])}"
        ]
    if isinstance(now, bool):
        return [f"{key}={str(not now).lower()}"]
    if isinstance(now, float):
        return [f"{key}={now / 2 if now else 0.1}"]
    return [f"{key}={f'{now}x' if isinstance(now, str) else (now or 3) + 1}"]


def value(recipe: object, key: str) -> object:
    for name in key.split("."):
        recipe = getattr(recipe, name)
    return recipe


def found(options: list[str]) -> tuple[Run, dict | None]:
    """What a tool does before it trains."""
    return cli.open_run(resolve(options, here=False))


def the_error(act, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        act(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_every_key_is_refused_by_name_or_is_free_for_a_reason(
    place: Path, tmp_path: Path, finished: bool
) -> None:
    root, free = place, ALWAYS_FREE | ({} if finished else FREE_UNTIL_FINISHED)
    assert {*ALWAYS_FREE, *FREE_UNTIL_FINISHED, "resume", "plugin"} == FREE, (
        "what the recipe's hash leaves out"
    )
    if not finished:
        root = tmp_path
        shutil.copytree(place, root, dirs_exist_ok=True)
        (root / "runs" / "joint" / "result.json").unlink()
    base = resolve(options_of(root))
    for key in base.values():
        now = value(base, key)
        options = options_of(root, *other(key, now, place))
        if key.startswith("hub.") and key != "hub.repo":
            options.append("hub.repo=user/name")
        try:
            run, result = found(options)
        except UserError as error:
            assert key not in free, f"{key}: {error}"
            named = (key, f", .{key.partition('.')[2]}=")
            assert any(text in str(error) for text in named), f"{key}: {error}"
        else:
            # with the weights that there are; of eval.test it has been measured
            again = finished and key == "eval.real"
            assert key in free or again, f"{key} may change without a reason"
            assert value(run.recipe, key) != now, f"{key} was not changed"
            known = finished and not again and key not in ("name", "out")
            assert (result is not None) == known, key


def test_the_same_options_give_the_result(place: Path) -> None:
    _, result = found(options_of(place))
    assert result.content() == json.loads((place / "runs" / "joint" / "result.json").read_text())


def test_a_result_that_does_not_record_what_it_is_over_is_refused(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    path = tmp_path / "runs" / "joint" / "environment.json"
    record = json.loads(path.read_text())
    del record["options"]["eval.images"]
    path.write_text(json.dumps(record))
    refused = the_error(found, options_of(place, f"out={tmp_path}/runs"))
    assert "eval.images (None there" in refused


def test_a_test_that_was_not_made_is_not_answered(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    options = options_of(place, "eval.test=false", f"out={tmp_path}/runs")
    text = the_error(found, options)
    assert "eval.test (True there, False here)" in text
    environment = tmp_path / "runs" / "joint" / "environment.json"
    record = json.loads(environment.read_text())
    environment.write_text(
        json.dumps(record | {"options": record["options"] | {"eval.test": False}})
    )
    assert found(options_of(place, f"out={tmp_path}/runs"))[1] is None  # it is measured now
    shutil.rmtree(tmp_path / "runs" / "joint" / "checkpoints")
    text = the_error(found, options_of(place, f"out={tmp_path}/runs"))
    assert "eval.test (False there, True here)" in text and "name=" in text


def test_a_finished_run_is_told_for_its_own_images_only(
    place: Path, tmp_path: Path, capsys
) -> None:
    assert "the images of test, train, validation differ" in the_error(
        found, options_of(place, f"data.path={place}/c/own")
    )
    assert found(options_of(place, f"data.path={place}/b/own"))[1] is not None
    assert "warning" not in capsys.readouterr().out
    assert found(options_of(place, f"data.path={tmp_path}/own"))[1] is not None  # gone
    assert "the images are the same was not checked" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no such file or folder"):
        found(options_of(place, f"data.path={tmp_path}/own", "name=new"))


def test_what_is_not_here_is_said_not_to_have_been_checked(place: Path, tmp_path: Path) -> None:
    run, _ = found(options_of(place))
    run.recipe.init, run.recipe.data.path, run.recipe.data.hub = f"{tmp_path}/gone", None, "me/pics"
    same = "are the same was not checked"
    assert reuse.check(run) == [
        f"init={tmp_path}/gone: is not here, so whether the weights {same}",
        f"data.hub=me/pics: is not read again, so whether its images {same}",
    ]


def test_folders_of_one_name_are_not_mixed_up(place: Path, tmp_path: Path) -> None:
    """Under the run's default name, finished and not."""
    unnamed = [
        word for word in options_of(place, f"out={tmp_path}/runs") if not word.startswith("name=")
    ]
    here, there = (altered(unnamed, f"data.path={place}/{which}/own") for which in "ac")
    run, _ = found(here)
    train_job.train(run)
    assert resolve(there).name == run.recipe.name
    assert f"data.path={place}/c/own: the images of" in the_error(found, there)
    (run.folder / "result.json").unlink()
    before = contents(run.folder)
    assert f"data.path={place}/c/own: the images of" in the_error(train_job.train, found(there)[0])
    assert contents(run.folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    kept = ("recipe.yaml", "environment.json", "result.json", "metrics.jsonl")
    return {name: (folder / name).read_bytes() for name in kept if (folder / name).exists()}


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_recipe_that_was_edited_or_taken_away_is_refused(
    place: Path, tmp_path: Path, finished: bool
) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "joint"
    if not finished:
        (folder / "result.json").unlink()
    path = folder / "recipe.yaml"
    text = path.read_text()
    assert text.count("  lr: 0.001\n") == 1
    path.write_text(text.replace("  lr: 0.001\n", "  lr: 0.5\n"))
    options = options_of(place, f"out={tmp_path}/runs")
    for typed in (options, altered(options, "optim.lr=0.5")):
        assert f"{path} is missing or not the recipe that" in the_error(found, typed)
    path.unlink()
    assert f"{path} is missing" in the_error(found, options)
    path.write_text(text)
    assert (found(options)[1] is not None) == finished


def test_another_may_finish_the_run_while_this_one_waits_for_the_lock(
    place: Path, tmp_path: Path
) -> None:
    """Whoever looked before it was there, and comes after it has finished, neither overwrites it
    nor trains it again."""
    options = options_of(place, f"out={tmp_path}/runs", "name=race")
    late, same, elsewhere = (
        found(altered(options, *more))[0]
        for more in (["optim.lr=0.5"], [], [f"data.path={place}/c/own"])
    )
    first, _ = found(options)
    result = train_job.train(first)
    before = contents(first.folder)
    assert "optim.lr (0.001 there, 0.5 here)" in the_error(train_job.train, late)
    assert train_job.train(same) == result
    assert "the images of" in the_error(train_job.train, elsewhere)
    assert contents(first.folder) == before


def test_another_may_begin_the_run_while_this_one_waits_for_the_lock(
    place: Path, tmp_path: Path
) -> None:
    options = options_of(place, f"out={tmp_path}/runs", "name=race")
    late = found(altered(options, "optim.lr=0.5"))[0]
    shutil.copytree(place / "runs" / "joint", tmp_path / "runs" / "race")
    (tmp_path / "runs" / "race" / "result.json").unlink()
    before = contents(late.folder)
    assert "optim.lr (0.001 there, 0.5 here)" in the_error(train_job.train, late)
    assert contents(late.folder) == before


def test_an_evaluation_checks_again_under_the_lock(place: Path, tmp_path: Path) -> None:
    from ssl_vit.jobs import evaluate

    common = [
        f"init={place}/runs/joint",
        f"data.path={place}/a/own",
        f"out={tmp_path}/runs",
        "name=look",
        "data.size=16",
    ]
    options = [
        "recipe=evaluate",
        *common,
        "compute.precision=float32",
        "compute.threads=1",
        "probe.measures=[knn]",
    ]
    late, first = found([*options, "probe.neighbors=3"])[0], found(options)[0]
    evaluate.evaluate(first)
    before = contents(first.folder)
    assert "probe.neighbors (20 there, 3 here)" in the_error(evaluate.evaluate, late)
    assert contents(first.folder) == before and found(options)[1] is not None
    weights = place / "runs" / "joint" / "export" / "model.safetensors"
    kept = weights.read_bytes()
    try:
        weights.write_bytes(kept + b" ")
        assert "the weights differ" in the_error(found, options)
    finally:
        weights.write_bytes(kept)


def test_a_plugin_runs_only_where_the_command_line_names_it(place: Path, tmp_path: Path) -> None:
    """Not one that a run's folder or a recipe file brings along."""
    plugin, ran = tmp_path / "theirs.py", tmp_path / "ran"
    plugin.write_text(f"from pathlib import Path\nPath({str(ran)!r}).write_text('x')\n")
    shutil.copytree(place / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "joint"
    path = folder / "recipe.yaml"
    assert path.read_text().count("plugin: null") == 1
    path.write_text(path.read_text().replace("plugin: null", f"plugin: {plugin}"))
    options = options_of(place, f"out={tmp_path}/runs")
    for typed in (options, [f"recipe={path}"], [f"recipe={path}", "name=again"]):
        text = the_error(found, typed)
        assert str(plugin) in text and "plugin" in text and f"add plugin={plugin}" in text
    assert not ran.exists()

    from ssl_vit.jobs import evaluate

    own = [
        f"data.path={place}/a/own",
        "data.size=16",
        f"out={tmp_path}/runs",
        "compute.precision=float32",
        "compute.threads=1",
    ]
    top1 = ["recipe=evaluate", f"init={folder}", *own, "probe.measures=[top1]", "name=look"]
    assert "top1" in evaluate.evaluate(found(top1)[0])["metrics"]
    found(["recipe=finetune", f"init={folder}", *own, "name=fine"])
    assert not ran.exists()
    # it was made without one
    assert "the file differs" in the_error(found, [*options, f"plugin={plugin}"])
    assert ran.read_text() == "x"


def test_a_studys_file_runs_no_plugin_of_its_own(tmp_path: Path) -> None:
    plugin, ran, study = tmp_path / "theirs.py", tmp_path / "ran", tmp_path / "theirs.yaml"
    plugin.write_text(f"from pathlib import Path\nPath({str(ran)!r}).write_text('x')\n")
    run = f"{{tool: pretrain, options: {{recipe: mpp, plugin: {plugin}}}}}"
    study.write_text(f"title: t\nruns: {{pretrain: {run}}}\n")
    refused = the_error(requested, [f"recipe={study}"])
    assert f"plugin: {plugin}: that is the command line's; leave it out" in refused
    assert not ran.exists()
    study.write_text(study.read_text().replace(f", plugin: {plugin}", ""))
    assert requested([f"recipe={study}", f"plugin={plugin}"]).tasks
    assert ran.read_text() == "x"


def test_a_studys_finished_task_is_compared_with_what_it_would_be_now(
    place: Path, tmp_path: Path, monkeypatch
) -> None:
    """Another run by its options is another task's; other images are an error."""
    run = tmp_path / "runs" / "joint-0"
    shutil.copytree(place / "runs" / "joint", run)
    path = run / "recipe.yaml"
    path.write_text(path.read_text().replace("name: joint\n", "name: joint-0\n"))
    options = [word for word in options_of(place) if not word.startswith(("name=", "out="))]

    def words(*more: str) -> list[str]:
        return altered(options, "seed=0", f"out={tmp_path}/runs", "name=joint-0", *more)

    def not_planned(*more: str, undecided: Collection[str] = (), folder: Path = run) -> str:
        computed = engine.computed_values(resolve(words(*more)))
        return run_folder.not_planned(folder, computed, words(*more), undecided)

    assert not_planned() == ""
    assert engine.changed_since(run, words()) == []
    for option, says in (
        ("optim.lr=0.01", "optim.lr (0.001 there, 0.01 here)"),
        ("model.width=64", "model.width (32 there, 64 here)"),
        ("eval.test=false", "eval.test (True there, False here)"),
    ):
        assert says in not_planned(option)
    assert not_planned("optim.lr=0.01", undecided=["optim.lr"]) == ""
    other = f"data.path={place}/c/own"
    assert not_planned(other) == ""
    assert "the images of" in the_error(lambda: engine.changed_since(run, words(other)))
    (doubt,) = engine.changed_since(run, words(f"data.path={tmp_path}/own"))
    assert "was not checked" in doubt
    path.write_text(path.read_text().replace("  lr: 0.001\n", "  lr: 0.01\n"))
    edited = "its result.json is of another recipe than its recipe.yaml"
    assert not_planned("optim.lr=0.01") == edited
    path.unlink()
    assert not_planned() == "its recipe.yaml is missing or damaged"
    assert not_planned(folder=tmp_path / "none") == ""


def test_images_are_hashed_once_for_all_runs_that_share_them(place: Path, monkeypatch) -> None:
    from ssl_vit.data import fingerprints

    reuse._fingerprints.cache_clear()
    real, times = fingerprints.fingerprint_splits, []
    monkeypatch.setattr(fingerprints, "fingerprint_splits", lambda *a: times.append(1) or real(*a))
    for _ in range(2):
        found(options_of(place))
    assert len(times) == 1
