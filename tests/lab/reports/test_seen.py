"""Test images that pre-training has seen: recorded with the run, on its page, in its study's report
and in rankings. By small runs on 30 images, of which 6 are for testing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ssl_vit
from helpers.arm_studies import task
from helpers.images import put
from helpers.options import PROBE, SHORT, TINY, TUNE, altered
from helpers.reports import write
from ssl_vit.errors import UserError
from ssl_vit.hub import card
from ssl_vit.lab import report_tool, reports, runs_tool, study_tool
from ssl_vit.lab.run_table import index_page, listed_run, ranking
from ssl_vit.lab.studies import task_recipes
from ssl_vit.lab.studies.request import parse_request

SPLIT = "data.test=0.2"
# arm -> how its weights were pre-trained; on all images where no share is cut off for testing
ARMS = {
    "clean": ["recipe=supervised", "eval.test=false", SPLIT],
    "learned": ["recipe=supervised", "eval.test=false"],
    "looked": ["recipe=mpp"],
    "partly": ["recipe=joint", "eval.test=false", "data.label_column=few"],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder, of an arm each with a fine-tuned and a probed run."""
    place = tmp_path_factory.mktemp("images") / "IMAGES"
    rows = []
    for name in "ab":
        put(place / name, 15)
        rows += [
            {"file_name": f"{name}/{n}.png", "label": name, "few": name if n % 2 else None}
            for n in range(15)
        ]
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder = tmp_path_factory.mktemp("runs") / "s"
    tasks: list[dict[str, Any]] = []
    for arm, how in ARMS.items():
        more = ["eval.every=2", f"data.path={place}", f"out={folder}"]
        ssl_vit.pretrain(altered(TINY, *SHORT, *more, *how, f"name=pretrain-{arm}-0"))
        start = [f"init={folder}/pretrain-{arm}-0", SPLIT, "data.label_column=label"]
        start.append(f"out={folder}")
        ssl_vit.finetune(altered(TUNE, *start, f"name=final-{arm}-0"))
        ssl_vit.evaluate(altered(PROBE, *start, f"name=probe-{arm}-0"))
        needs = [f"pretrain-{arm}-0"]
        tasks += [
            task("pretrain", arm, 0, "pretrain"),
            task("final", arm, 0, needs=needs),
            task("probe", arm, 0, "evaluate", needs=needs),
        ]
    report = {"final": "final", "probes": ["probe"], "baseline": "clean", "candidate": "learned"}
    arms = {arm: arm for arm in ARMS}
    plan = {"name": "s", "title": "s", "arms": arms, "seeds": [0], "report": report}
    write(folder / "study.json", plan | {"tasks": tasks})
    return folder


def recorded(run: Path) -> dict[str, Any]:
    """What a run has recorded of the one run before it."""
    (one,) = json.loads((run / "environment.json").read_text())["seen"]
    return one


@pytest.mark.parametrize(
    ("arm", "images", "labels"), [("clean", 0, 0), ("learned", 5, 5), ("looked", 5, 0)]
)
def test_a_run_records_what_its_first_weights_have_seen(
    study: Path, arm: str, images: int, labels: int
) -> None:
    """Pre-training on all 30 holds one out, which is one of the 6."""
    for part in ("final", "probe"):
        one = recorded(study / f"{part}-{arm}-0")
        assert one["run"] == f"pretrain-{arm}-0" and one["of"]["test"] == 6
        assert (one["images"]["test"], one["labels"]["test"]) == (images, labels)
    assert json.loads((study / "pretrain-clean-0" / "environment.json").read_text())["seen"] == []


def test_only_labels_that_there_were_count_as_learned(study: Path) -> None:
    """Half of the images had one; these are not all of the 6."""
    one = recorded(study / "final-partly-0")
    assert one["images"]["test"] == 5 and 0 < one["labels"]["test"] < 5


def test_the_page_the_card_and_the_json_of_a_run_say_it(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (study / "final-learned-0" / "report.html").read_text()
    line = "pretrain-learned-0 was trained on 5 test and 1 held-out images, with their labels"
    assert f"{line}: what is measured on the test images is no measure" in text
    clean = (study / "final-clean-0" / "report.html").read_text()
    assert "pretrain-clean-0 was trained on none of the test and held-out images." in clean
    assert "is no measure" not in clean
    for name, is_said in (("final-learned-0", True), ("final-looked-0", False)):
        shown = card.write(ssl_vit.load_run(study / name), study / name / "export")
        assert ("test and 1 held-out images, with their labels: what" in shown) == is_said
    report_tool.main([str(study / "final-learned-0"), "--json"])
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["seen"] == [recorded(study / "final-learned-0")]


def test_a_studys_report_names_the_arms_and_the_counts(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_tool.main([str(study), "--json"])
    *printed, last = capsys.readouterr().out.splitlines()
    partly = recorded(study / "final-partly-0")["labels"]["test"]
    says = "Not sound, as first weights had learned labels of the images that these arms are tested"
    assert printed[0].startswith(
        f"{says} on: learned in final (5 of 6 test images); partly in final ({partly} of 6 test"
    )
    assert "clean in" not in printed[0].partition(". ")[0]
    found = json.loads(last)
    assert found["answer"].startswith(says)
    seen = {(one["part"], one["arm"]): one for one in found["numbers"]["seen"]}
    assert seen.keys() == {
        (part, arm) for part in ("final", "probe") for arm in ("learned", "looked", "partly")
    }
    assert seen["probe", "learned"] == {
        "part": "probe",
        "arm": "learned",
        "images": 5,
        "labels": 5,
        "of": 6,
        "unknown": [],
    }
    text = " ".join((study / "report.md").read_text().split())
    assert "| final | looked | 6 | 5 | 0 |" in text
    assert text.index(says) < text.index("Differences in pairs")


def test_a_report_of_runs_that_saw_no_test_images_says_nothing_of_it(
    study: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    shutil.copytree(study, folder)
    plan = json.loads((folder / "study.json").read_text())
    kept = [one for one in plan["tasks"] if one["arm"] == "clean"]
    report = {"final": "final"}
    write(folder / "study.json", plan | {"tasks": kept, "arms": {"clean": ""}, "report": report})
    assert reports.write(folder).numbers.seen == []
    assert "Training images in the test split" not in (folder / "report.md").read_text()


def test_runs_are_ranked_with_those_alone_that_had_learned_none_of_the_labels(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = listed_run.read_runs(study)
    found = ranking.rank(runs, "top1")
    groups = [sorted(run.name for run in group.runs) for group in found.groups]
    assert sorted(groups) == [
        ["final-clean-0", "final-looked-0"],
        ["final-learned-0"],
        ["final-partly-0"],
    ]
    assert found.differing == ["labels learned before"]
    runs_tool.main([str(study), "best=top1"])
    warning = "warning: the first weights had learned the labels of 5 of these images"
    assert warning in capsys.readouterr().out
    runs_tool.main([str(study)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "(labels learned before)" in lines["final-learned-0"]
    assert "(labels learned before)" not in lines["final-clean-0"]
    index_page.write(study)
    assert "labels learned before" in (study / "index.html").read_text()


def test_a_ranking_says_of_which_runs_it_is_not_known_what_their_weights_saw(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("final-clean-0", "final-looked-0"):
        shutil.copytree(study / name, tmp_path / name)
    facts = json.loads((tmp_path / "final-looked-0" / "environment.json").read_text())
    write(
        tmp_path / "final-looked-0" / "environment.json",
        facts | {"seen": [{"run": "gone", "unknown": ": it is not here"}]},
    )
    runs_tool.main([str(tmp_path), "best=top1"])
    says = "which images the first weights saw is not known of some runs: final-looked-0\n"
    assert says in capsys.readouterr().out


def test_a_copy_of_the_images_is_known_by_its_fingerprint(study: Path, tmp_path: Path) -> None:
    """In another folder of another name, whose images are the same."""
    run = study / "pretrain-learned-0"
    data = ssl_vit.load_run(run).recipe.data
    there = shutil.copytree(str(data.path), tmp_path / "COPY")
    more = [f"init={run}", f"data.path={there}", SPLIT, f"out={tmp_path}", "name=tuned"]
    ssl_vit.finetune(altered(TUNE, *more))
    assert recorded(tmp_path / "tuned") == recorded(study / "final-learned-0")


def test_a_test_split_that_is_a_copy_of_the_training_split_is_seen(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            put(tmp_path / "IMAGES" / split / name, 12)
    more = ["eval.every=2", f"data.path={tmp_path}/IMAGES", f"out={tmp_path}"]
    own = ["recipe=supervised", "data.validation=0.25", "eval.test=false", "name=first"]
    ssl_vit.pretrain(altered(TINY, *SHORT, *more, *own))
    ssl_vit.finetune(altered(TUNE, f"init={tmp_path}/first", f"out={tmp_path}", "name=tuned"))
    one = recorded(tmp_path / "tuned")
    assert (one["of"]["test"], one["labels"]["test"]) == (24, 18)


def test_what_was_recorded_stays_where_a_run_before_is_gone(study: Path, tmp_path: Path) -> None:
    """Of a run that goes on from a checkpoint."""
    first = shutil.copytree(study / "pretrain-learned-0", tmp_path / "first")
    more = [f"init={first}", *SHORT, "eval.every=2", f"out={tmp_path}", "name=second"]
    ssl_vit.pretrain(altered(TINY, *more))
    words = altered(TUNE, f"init={tmp_path}/second", SPLIT, f"out={tmp_path}", "name=tuned")
    ssl_vit.finetune(words)
    before = (tmp_path / "tuned" / "environment.json").read_text()
    found = {one["run"]: one["labels"]["test"] for one in json.loads(before)["seen"]}
    assert found == {"second": 0, "first": 5}
    shutil.rmtree(first)
    (tmp_path / "tuned" / "result.json").unlink()
    ssl_vit.finetune(words)
    after = (tmp_path / "tuned" / "environment.json").read_text()
    assert json.loads(after)["seen"] == json.loads(before)["seen"]


def test_a_run_that_is_tested_only_since_it_was_resumed_says_what_was_seen(
    study: Path, tmp_path: Path
) -> None:
    """It began with eval.test=false, and had no test images to count then."""
    words = [f"init={study}/pretrain-learned-0", SPLIT, f"out={tmp_path}", "name=tuned"]
    ssl_vit.finetune(altered(TUNE, *words, "eval.test=false"))
    assert "test" not in recorded(tmp_path / "tuned")["of"]
    (tmp_path / "tuned" / "result.json").unlink()
    ssl_vit.finetune(altered(TUNE, *words, "eval.test=true"))
    assert recorded(tmp_path / "tuned") == recorded(study / "final-learned-0")


def ranked(folder: Path, images: Path, metric: str, runs: dict[str, list[str]]) -> list[list[str]]:
    """The names of runs on one folder of images, by the groups within which a metric compares."""
    for name, own in runs.items():
        base = ["recipe=supervised", "eval.every=2", "data.validation=0.2", f"out={folder}"]
        words = [*SHORT, *base, f"data.path={images}", *own, f"name={name}"]
        ssl_vit.pretrain(altered(TINY, *words))
    return groups(folder, metric)


def groups(folder: Path, metric: str) -> list[list[str]]:
    found = ranking.rank(listed_run.read_runs(folder), metric)
    return sorted(sorted(run.name for run in group.runs) for group in found.groups)


def test_held_out_images_left_by_another_test_share_are_another_question(
    study: Path, tmp_path: Path
) -> None:
    """What of the training images is held out depends on what is cut off before it."""
    runs = {
        "share": [SPLIT],
        "again": [SPLIT, "seed=1"],
        "larger": ["data.test=0.4"],
        "split": [],
        "half": ["data.share=0.5"],
    }
    runs = {name: [*own, "eval.test=false"] for name, own in runs.items()}
    folder = tmp_path / "runs"
    apart = [["again", "share"], ["half"], ["larger"], ["split"]]
    assert ranked(folder, images_of(study), "accuracy", runs) == apart
    for run in folder.iterdir():  # as earlier versions recorded it
        facts = json.loads((run / "environment.json").read_text())
        write(run / "environment.json", {key: facts[key] for key in facts if key != "held_out"})
    assert groups(folder, "accuracy") == [sorted(runs)]


def images_of(study: Path) -> Path:
    return Path(str(ssl_vit.load_run(study / "pretrain-clean-0").recipe.data.path))


def test_runs_tested_on_other_images_are_another_question(study: Path, tmp_path: Path) -> None:
    """Another share of a split, or a share by groups; the same share is the same question."""
    images = shutil.copytree(images_of(study), tmp_path / "IMAGES")
    lines = [f"{name}/{n}.png,{name}{n // 3}" for name in "ab" for n in range(15)]
    (images / "metadata.csv").write_text("\n".join(["file_name,patient", *lines]) + "\n")
    runs = {
        "share": [SPLIT],
        "again": [SPLIT, "seed=1"],
        "larger": ["data.test=0.4"],
        "patients": [SPLIT, "data.group=patient"],
    }
    runs = {name: [*own, "eval.test=true"] for name, own in runs.items()}
    apart = [["again", "share"], ["larger"], ["patients"]]
    assert ranked(tmp_path / "runs", images, "top1", runs) == apart


@pytest.mark.parametrize(
    ("arm", "learned"), [("clean", False), ("learned", True), ("looked", False)]
)
def test_a_study_that_starts_from_a_run_is_refused_for_what_that_run_has_learned(
    arm: str, learned: bool, study: Path, tmp_path: Path
) -> None:
    options = {"recipe": "finetune", "init": "{init}", "data.test": 0.2}
    parts = {"final": {"tool": "finetune", "options": options}}
    raw = {"title": "t", "arms": {"a": "a"}, "places": ["init"], "parts": parts}
    write(tmp_path / "mine.yaml", raw | {"report": {"final": "final"}})
    words = [f"recipe={tmp_path}/mine.yaml", f"init={study}/pretrain-{arm}-0", f"out={tmp_path}"]
    request = parse_request(words)
    if not learned:
        assert list(task_recipes.check(request.study, request.plan)) == ["final-a-0"]
        return
    with pytest.raises(UserError) as caught:
        study_tool.main(words)
    line = str(caught.value)
    assert line.startswith("part final, arm a: data.test=0.2: ") and "\n" not in line
    assert f"{study}/pretrain-{arm}-0 (data.train=train data.test=test) has learned" in line
    assert not (tmp_path / "mine").exists()
    assert task_recipes.check(request.study, request.plan, labels_seen=True)
