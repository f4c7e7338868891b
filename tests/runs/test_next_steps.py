"""The end of a run says what to do next, as commands that run as printed."""

import shlex
import shutil
from pathlib import Path

import pytest

import ssl_vit
from helpers.hub_runs import refused
from helpers.images import parquet, two_classes
from helpers.options import LOADED, SHORT, TINY, TUNE, altered
from helpers.runs import run
from ssl_vit import formatting
from ssl_vit.formatting import option_text
from ssl_vit.jobs import cli
from ssl_vit.pages import run_verdict
from ssl_vit.recipe import recipe_files
from ssl_vit.runs.next_steps import NO_CLASSES, NO_LABELS, has_labels, next_steps

# So that a command takes seconds, not minutes
FASTER = {
    "evaluate": ["probe.steps=2", "probe.shots=[1]", "probe.neighbors=9", *LOADED],
    "finetune": SHORT,
    "figures": ["figures=filters,positions"],
    "embed": ["compute.threads=1"],
    "runs": [],
}


def pre_trained(out: Path, *splits: str) -> Path:
    own = [f"data.path={two_classes(out / 'IMAGES', *splits)}", f"out={out}", "name=first"]
    return run(altered(TINY, *SHORT, "eval.every=2", *own)).folder


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pre_trained(tmp_path_factory.mktemp("runs"))


def next_commands(folder: Path) -> dict[str, list[str]]:
    """{tool: options} of what is to be done next."""
    found = {}
    for step in next_steps(folder, folder.parent, recipe_files.read(folder / "recipe.yaml")):
        program = shlex.split(formatting.typed_command("TOOL"))[:-1]
        words = shlex.split(step.command)
        assert words[: len(program)] == program
        tool, *options = words[len(program) :]
        assert tool in (folder / "report.html").read_text()
        found[tool] = options
    return found


def run_all(commands: dict[str, list[str]]) -> None:
    for tool, options in commands.items():
        function = ssl_vit.list_runs if tool == "runs" else getattr(ssl_vit, tool)
        function([*options, *FASTER[tool]])


@pytest.mark.parametrize("splits", [["train", "test"], ["train", "val"], [""]])
def test_what_was_pre_trained_is_compared_and_used(splits: list[str], tmp_path: Path) -> None:
    """By commands that run; the study is of the same images and network: it gets as far as
    counting these images, which are too few. Without test images they ended in an error."""
    commands = next_commands(pre_trained(tmp_path, *splits))
    assert list(commands) == ["study", "evaluate", "finetune"]
    for tool in ("evaluate", "finetune"):
        assert ("data.test=0.2" in commands[tool]) == (splits == [""])
    worth = commands.pop("study")
    assert "objective=mpp" in worth and any(one.startswith("data.path=") for one in worth)
    assert "labelled images" in refused(ssl_vit.study, worth)
    run_all(commands)


def test_after_a_stream_images_of_another_place_are_asked_for(tmp_path: Path) -> None:
    """Its evaluation and its study ended in an error: a stream has no test images."""
    parquet(tmp_path / "IMAGES" / "train.parquet", range(40))
    words = [f"data.path={tmp_path}/IMAGES", "data.stream=true", f"out={tmp_path}", "name=first"]
    folder = run(altered(TINY, *SHORT, *words, "data.validation=0", "eval.every=2")).folder
    place = two_classes(tmp_path / "OTHER", "train", "test")
    for tool, options in next_commands(folder).items():
        (path,) = [one for one in options if one.startswith("data.path=")]
        assert path.endswith("LABELLED_IMAGES") and "data.stream=true" not in options
        if tool != "study":
            run_all({tool: [one.replace(path, f"data.path={place}") for one in options]})


def test_test_images_without_labels_are_none_and_learned_ones_are_not_tested_on(
    tmp_path: Path,
) -> None:
    """The printed evaluation ended in "no labels in its test split"; and after supervised training
    it was on images whose labels the run had learned."""
    root = two_classes(tmp_path / "IMAGES", "train")
    (root / "test").mkdir()
    for image in [*(root / "train").rglob("*.png")][:9]:
        shutil.copy(image, root / "test" / image.name)
    words = altered(TINY, *SHORT, "eval.every=2", f"data.path={root}", f"out={tmp_path}")
    own = run([*words, "name=own"]).folder
    assert "data.test=0.2" in next_commands(own)["evaluate"]
    learned = run(altered(words, "recipe=supervised", "name=learned")).folder
    assert any("LABELLED" in word for word in next_commands(learned)["evaluate"])


def test_of_folders_that_may_be_no_classes_other_labels_are_asked_for() -> None:
    """The next commands measured encoders by the months of photographs."""
    assert has_labels(None) and has_labels("the images have lists of labels")
    assert not has_labels(NO_LABELS) and not has_labels(f"{NO_CLASSES}: all are named as years")


def test_what_was_fine_tuned_is_looked_at_and_compared(first: Path, tmp_path: Path) -> None:
    words = altered(TUNE, "eval.test=false", f"init={first}", f"out={tmp_path}", "name=tuned")
    commands = next_commands(ssl_vit.finetune(words).folder)
    assert list(commands) == ["figures", "embed", "runs"]
    run_all(commands)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "features    40 held-out images"),
        (
            ["data.labels=false"],
            "verdict     It is not known how good this encoder is, because the features were not"
            " compared",
        ),
    ],
)
def test_the_end_of_a_run_says_what_was_compared_and_what_was_not(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Once each, and one next step; without labels features were not compared."""
    words = altered(TINY, *SHORT, "eval.every=2", "eval.knn=true", "eval.images=40", *more)
    cli.pretrain([*words, f"out={tmp_path}", "name=run"])
    _, found, end = capsys.readouterr().out.partition("\nfinished ")
    lines = f"{found}{end}".strip().splitlines()
    assert lines[0].endswith("/report.html")
    for begins in ("results ", "verdict ", "next ", says):
        assert len([line for line in lines if line.startswith(begins)]) == 1, begins
    command = shlex.split(lines[-1].partition("To measure whether pre-training helps: ")[2])
    assert "recipe=study/worth" in command


def test_a_fine_tuned_figure_stands_beside_scratch_without_a_verdict(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = [one for one in TINY if one.startswith(("model.", "data.size="))]
    tune = [*TUNE, *(one for one in recipe_words(first) if one.startswith("data.path="))]
    tune += ["data.size=16", f"out={tmp_path}"]

    def end(*words: str) -> list[str]:
        capsys.readouterr()
        cli.finetune(altered(tune, f"init={first}", *words))
        lines = capsys.readouterr().out.splitlines()
        (verdict,) = [line for line in lines if line.startswith("verdict ")]
        assert verdict.endswith(run_verdict.FINE_TUNED) or "commonest class" in verdict
        assert lines[-1].startswith("next ") and "recipe=study/worth" in lines[-1]
        return [line for line in lines if line.startswith("scratch ") or "from scratch, " in line]

    assert end("name=tuned") == []
    kept = [one for one in recipe_words(tmp_path / "tuned") if one.startswith(PIXELS)]
    run(altered(tune, *model, *kept, "init=scratch", "name=scratch"))
    head, row = end("name=again", "seed=1")
    assert head.split("  ")[-1] == "compute with pre-training" and "from scratch, scratch" in row


PIXELS = ("data.mean=", "data.std=", "supervised.pool=")


def recipe_words(folder: Path) -> list[str]:
    values = recipe_files.read(folder / "recipe.yaml").values()
    return [f"{key}={option_text(value)}" for key, value in values.items()]
