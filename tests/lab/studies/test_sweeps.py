"""Studies that vary keys, in a file and from the command line: arms, mistakes, and arms that die;
with stand-in tools."""

import json
import re

import pytest
from omegaconf import OmegaConf

import ssl_vit
from helpers.options import ROOT
from helpers.studies import GAP, RATE, Bench
from ssl_vit import formatting
from ssl_vit.config import declaration
from ssl_vit.config.recipe_files import RECIPES
from ssl_vit.config.resolve import resolve
from ssl_vit.costs import exaflop
from ssl_vit.errors import UserError
from ssl_vit.lab import study_tool
from ssl_vit.lab.studies import expand as plans
from ssl_vit.lab.studies import record, slurm, task_recipes
from ssl_vit.lab.studies.missing_places import without_missing
from ssl_vit.lab.studies.read_study import build, read
from ssl_vit.lab.studies.request import StudyRequest, parse_request, with_places
from ssl_vit.lab.study_tool import main

TWENTY = ",".join(f"{i / 20:g}" for i in range(1, 21))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, RATE)
    monkeypatch.setattr(formatting, "PROGRAM", made.program)
    # stand-in tools leave no recipe to compare
    monkeypatch.setattr(study_tool, "check_finished", lambda task, plan, folder: [])
    return made


def swept(*words):
    return parse_request(["recipe=mpp", *words])


def trained(plan):
    return {task.arm: task.options for task in plan.values() if task.part == "pretrain"}


# ---- from the command line


def test_a_sweep_pre_trains_and_probes_each_value():
    request = swept(
        "optim.steps=200",
        "probe.shots=[5]",
        "sweep",
        "corruption.rate=0.15,0.3,0.5",
        "seeds=2",
        "compute.threads=1",
    )
    assert request.name == "mpp-optim.steps=200-sweep-corruption.rate"
    assert len(request.plan) == 2 * 3 * 2
    assert {arm: words["corruption.rate"] for arm, words in trained(request.plan).items()} == {
        "rate=0.15": "0.15", "rate=0.3": "0.3", "rate=0.5": "0.5",
    }  # fmt: skip
    assert all(
        "probe.shots" not in words and words["optim.steps"] == "200"
        for words in trained(request.plan).values()
    )
    probe = request.plan["probe-rate=0.3-1"]
    assert probe.needs == ("pretrain-rate=0.3-1",)
    shared = {"recipe": "evaluate", "data": "shapes", "probe.shots": "[5]", "compute.threads": "1"}
    assert probe.options == shared | {"init": "{pretrain-rate=0.3-1}"}
    task_recipes.check(request.study, request.plan)


def test_several_keys_make_the_product():
    request = swept(
        "sweep",
        "corruption.rate=0.15,0.5",
        "optim.betas=[0.9,0.95],[0.9,0.999]",
        "model=vit_n8,vit_p8",
        "seeds=1",
    )
    words = trained(request.plan)
    assert len(words) == 8 and request.name == "mpp-sweep-corruption.rate-optim.betas-model"
    assert {(w["corruption.rate"], w["optim.betas"], w["model"]) for w in words.values()} == {
        (rate, betas, model)
        for rate in ("0.15", "0.5") for betas in ("[0.9,0.95]", "[0.9,0.999]") for model in ("vit_n8", "vit_p8")
    }  # fmt: skip
    task_recipes.check(request.study, request.plan)


def test_probes_see_the_recipes_images_whole(tmp_path):
    """Also those that the recipe's file names; the share that is trained on and the crop are the
    pre-training's own."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"objective: mpp\nmodel: vit_n8\ndata: {{name: mine, path: {tmp_path}, size: 48, "
        f"label_column: kind, share: 0.5}}\n"
        "optim: {steps: 9, lr: 1.0e-3, batch: 8}\n"
    )
    request = parse_request([f"recipe={recipe}", "sweep", "data.crop_area=0.1,0.5"])
    probe = request.plan["probe-crop_area=0.1-0"].options
    assert {key: value for key, value in probe.items() if key.startswith("data")} == {
        "data.path": str(tmp_path), "data.size": "48", "data.label_column": "kind", "data.eval_crop": "0.875",
    }  # fmt: skip
    request = swept(
        "data=cifar10", f"data.path={tmp_path}", "data.validation=0.1", "sweep", "data.share=0.1,1"
    )
    probe = request.plan["probe-share=0.1-0"].options
    assert (probe["data"], probe["data.validation"]) == (
        "cifar10",
        "0.1",
    ) and "data.share" not in probe
    task_recipes.check(request.study, request.plan)


SWEEPS = {
    "an unknown key": (
        ["sweep", "corruption.rat=1,2"],
        "unknown option corruption.rat; did you mean corruption.rate?",
    ),
    "a key without use": (
        ["sweep", "supervised.smoothing=0,0.1"],
        "objective=mpp has no use for it",
    ),
    "what is not computed": (
        ["sweep", "log.every=1,2"],
        "log.every: changes nothing that is computed",
    ),
    "one value": (
        ["sweep", "corruption.rate=0.1"],
        "corruption.rate=0.1: expected two values at least after sweep",
    ),
    "no key": (["sweep", "seeds=2"], "sweep: no key follows"),
    "a value twice": (
        ["sweep", "corruption.rate=0.1,0.10"],
        "corruption.rate: a value is there twice",
    ),
    "an empty value": (["sweep", "corruption.rate=0.1,"], "corruption.rate=0.1,: a value is empty"),
    "a value of another type": (
        ["sweep", "corruption.rate=a,b"],
        "corruption.rate=a: expected a number",
    ),
    "a value out of bounds": (
        ["sweep", "corruption.rate=0.5,7"],
        "arm rate=7.0: corruption.rate=7.0: expected a number above 0",
    ),
    "seeds": (["sweep", "seed=0,1"], "seed=0,1: say seeds=0,1"),
    "list values without sweep": (
        ["corruption.rate=0.1,0.2"],
        "recipe=mpp: is no study; to sweep it, say sweep and keys with several values",
    ),
    "a study": (
        ["recipe=study/gap", "sweep", "optim.lr=1,2"],
        "recipe=study/gap: sweep starts from an ordinary recipe",
    ),
    "what trains nothing": (
        ["recipe=evaluate", "sweep", "probe.layer=1,2"],
        "recipe=evaluate: trains nothing",
    ),
    "match of an unknown kind": (
        ["match=flops", "sweep", "optim.lr=1,2"],
        "match=flops: unknown; did you mean exaflop?",
    ),
    "match of what is swept": (
        ["match=exaflop", "sweep", "optim.steps=200,300"],
        "optim.steps=200: is what is matched",
    ),
}


@pytest.mark.parametrize(("words", "says"), SWEEPS.values(), ids=SWEEPS)
def test_a_sweeps_mistake_starts_nothing_and_is_one_line(words, says, bench):
    words = words if any("recipe=" in word for word in words) else ["recipe=mpp", *words]
    with pytest.raises(UserError) as caught:
        main([f"out={bench.folder}/runs", *words])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not list((bench.folder / "runs").glob("*/study.json")) and bench.started() == []


# ---- in a file


def test_vary_makes_arms_of_what_pre_trains(bench):
    request = parse_request(bench.words)
    assert list(request.study.arms.items()) == [
        ("rate=0.15", "corruption.rate=0.15"),
        ("rate=0.5", "corruption.rate=0.5"),
    ]
    assert "corruption.rate" not in request.plan["probe-rate=0.15-1"].options
    task_recipes.check(request.study, request.plan)
    bench.runs.mkdir()
    record.write_plan(request.study, request.name, request.plan, request.folder)
    about = json.loads((bench.runs / "study.json").read_text())
    assert (about["vary"], about["match"]) == (
        {"rate=0.15": {"corruption.rate": 0.15}, "rate=0.5": {"corruption.rate": 0.5}},
        "steps",
    )


def test_a_study_that_varies_nothing_says_nothing_of_it(tmp_path):
    study = build(GAP, "x")
    record.write_plan(study, "gap", plans.tasks(study, {}, {}), tmp_path)
    assert not {"vary", "match"} & json.loads((tmp_path / "study.json").read_text()).keys()


def test_settings_of_several_keys_have_names():
    settings = [
        {
            "name": "70/20/10",
            "corruption.mask": 0.7,
            "corruption.random": 0.2,
            "corruption.keep": 0.1,
        },
        {"corruption": {"mask": 1.0, "random": 0, "keep": 0}},
        {"name": "base"},
    ]
    study = build(RATE | {"vary": settings, "report": {}}, "x")
    assert list(study.vary) == ["70_20_10", "mask=1.0,random=0.0,keep=0.0", "base"]
    plan = plans.tasks(study, {}, {})
    assert plan["pretrain-base-0"].options == {
        "recipe": "mpp",
        "optim.steps": "200",
        "optim.warmup": "20",
    }
    task_recipes.check(study, plan)


def test_arms_of_the_file_stand_beside():
    study = json.loads(json.dumps(RATE)) | {"arms": {"supervised": "labels"}}
    study["parts"]["pretrain"]["by_arm"] = {"supervised": {"recipe": "supervised"}}
    study = build(study, "x")
    assert (
        list(study.arms) == ["rate=0.15", "rate=0.5", "supervised"]
        and "supervised" not in study.vary
    )
    plan = plans.tasks(study, {}, {})
    assert plan["pretrain-supervised-1"].options["recipe"] == "supervised"
    assert plan["pretrain-rate=0.5-1"].options["recipe"] == "mpp" and "probe-supervised-0" in plan


def test_words_of_the_command_line_go_to_who_can_use_them(bench):
    request = parse_request(
        [
            *bench.words,
            "corruption.mask=1",
            "corruption.random=0",
            "corruption.keep=0",
            "optim.steps=50",
        ]
    )
    assert request.plan["pretrain-rate=0.5-0"].options["corruption.mask"] == "1"
    assert "corruption.mask" not in request.plan["probe-rate=0.5-0"].options
    task_recipes.check(request.study, request.plan)
    with pytest.raises(
        UserError, match=r"corruption\.rate=0\.3: the study varies it; leave it out"
    ):
        parse_request([*bench.words, "corruption.rate=0.3"])


# ---- equal terms


@pytest.mark.parametrize("words", [[], ["optim.steps=70", "optim.warmup=7"], ["optim.batch=32"]])
def test_arms_matched_by_exaflop_cost_what_the_base_costs(bench, words):
    """In whole steps; the warm-up keeps its share of them. What the command line says holds for the
    base too."""
    vary = {"model.depth": [2, 8], "model.patch": [4, 16], "optim.batch": [64, 256]}
    vary = {
        key: values
        for key, values in vary.items()
        if not any(word.startswith(key) for word in words)
    }
    OmegaConf.save(
        OmegaConf.create(RATE | {"vary": vary, "match": "exaflop", "report": {}}),
        bench.folder / "gap.yaml",
    )
    base = resolve(["recipe=mpp", *(words or ["optim.steps=200", "optim.warmup=20"])])
    if words == ["optim.batch=32"]:
        base = resolve(["recipe=mpp", "optim.steps=200", "optim.warmup=20", *words])
    whole = exaflop(base, base.optim.steps * base.optim.batch)
    for options in trained(parse_request([*bench.words, *words]).plan).values():
        recipe = resolve([f"{key}={value}" for key, value in options.items()])
        step = exaflop(recipe, recipe.optim.batch)
        assert abs(recipe.optim.steps * step - whole) <= step / 2 * (1 + 1e-9)
        assert abs(recipe.optim.warmup - recipe.optim.steps / 10) <= 0.5


def test_match_on_the_command_line(bench):
    assert parse_request([*bench.words, "match=exaflop"]).study.match == "exaflop"
    # of vit_n8 at 64 px, 65 tokens, 33 of which do not attend in the last block; the head's 512
    # outputs for 32 patches
    block = 4 * 65 * 128**2 + 2 * 65**2 * 128 + 2 * 65 * 128 * 512
    rest = 64 * 192 * 128 - 33 * (2 * 128**2 + 2 * 65 * 128 + 2 * 128 * 512) + 32 * 128 * 512
    steps = round(300 * (4 * block + rest) / (2 * block + rest))
    assert trained(swept("match=exaflop", "sweep", "model.depth=2,4").plan)["depth=2"][
        "optim.steps"
    ] == str(steps)


def test_one_arm_has_nothing_to_be_matched_with(bench):
    study = {key: value for key, value in RATE.items() if key != "vary"} | {"report": {}}
    OmegaConf.save(OmegaConf.create(study | {"arms": {"a": "alone"}}), bench.folder / "gap.yaml")
    line = r"^match=steps: the study has one arm, and nothing to match it with$"
    with pytest.raises(UserError, match=line):
        parse_request([*bench.words, "match=steps"])


def test_a_setting_that_cannot_be_matched_is_named(bench):
    study = RATE | {"vary": {"model.patch": [8, 7]}, "match": "exaflop", "report": {}}
    OmegaConf.save(OmegaConf.create(study), bench.folder / "gap.yaml")
    with pytest.raises(
        UserError, match=r"match=exaflop: part pretrain, arm patch=7: data\.size=64: no multiple"
    ):
        parse_request(bench.words)


# ---- processes


def test_twenty_arms_survive_the_death_of_one_and_go_on(bench, capsys):
    words = [
        "recipe=mpp",
        f"out={bench.folder}/runs",
        "name=gap",
        "parallel=4",
        "sweep",
        f"corruption.rate={TWENTY}",
    ]
    (bench.folder / "runs" / "behave.json").write_text(json.dumps({"pretrain-rate=0.3-0": "die"}))
    assert main(words) == 1
    dead = {"pretrain-rate=0.3-0", "probe-rate=0.3-0"}
    names = set(parse_request(words).plan)
    assert len(names) == 40 and set(bench.finished()) == names - dead
    options = capsys.readouterr().out
    assert "failed    pretrain-rate=0.3-0: killed by SIGKILL" in options
    assert "left out  probe-rate=0.3-0: needs pretrain-rate=0.3-0" in options
    before = len(bench.started())
    bench.behave()
    assert main(words) == 0
    assert sorted(bench.started()[before:]) == sorted(dead) and set(bench.finished()) == names


def test_a_job_array_repeats_the_sweeps_words(bench, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm, "_sbatch", lambda path, after, jobs: str(100 + len(jobs)))
    words = [
        "recipe=mpp",
        f"out={bench.folder}/runs",
        "name=gap",
        "sweep",
        "corruption.rate=0.15,0.5",
    ]
    assert main([*words, "launcher=slurm"]) == 0
    text = (bench.runs / "slurm" / "probe.sh").read_text()
    assert "name=gap sweep corruption.rate=0.15,0.5 only=probe" in text
    assert swept(*words[1:], "only=probe", "index=1").own.index == 1


OWN = """
from ssl_vit.config.declaration import declare
from ssl_vit.objectives.mpp import MppDeclaration

class Own(MppDeclaration):
    name = "own_of_sweeps"

declare(Own())
"""


def test_a_sweep_takes_the_plugin_that_the_command_line_names(bench, monkeypatch):
    """Found again from any folder; the probes need none."""
    (bench.folder / "own.py").write_text(OWN)
    monkeypatch.chdir(bench.folder)
    words = ["recipe=mpp", "plugin=own.py", "objective=own_of_sweeps", "out=runs", "name=gap"]
    words += ["sweep", "corruption.rate=0.15,0.5", "seeds=1"]
    bench.behave()
    try:
        assert main(words) == 0
        plan = parse_request(words).plan
    finally:
        declaration.withdraw("own_of_sweeps")
    found = {task.name: task.options.get("plugin") for task in plan.values()}
    own = str(bench.folder / "own.py")
    assert set(bench.finished()) == found.keys() and len(found) == 4
    assert all(value == (own if "pretrain" in name else None) for name, value in found.items())
    started = json.loads((bench.runs / "pretrain-rate=0.5-0" / "words.json").read_text())
    assert started["plugin"] == own


def table4(*given: str) -> StudyRequest:
    return parse_request(["recipe=study/table4", "init=/e", *given])


def test_table_4_is_swept_as_the_paper_says() -> None:
    """The grids, steps and held-out shares of Table 4 and B.1.1, and the final runs on all."""
    places = [f"{arm}=/x" for arm in ("imagenet", "cifar10", "cifar100", "pets", "flowers102")]
    request = table4(*places)
    assert request.left_out == []
    small = [0.001, 0.003, 0.01, 0.03]
    paper = {
        "imagenet": (20_000, 0.01, [0.003, 0.01, 0.03, 0.06]),
        "cifar10": (10_000, 0.02, small),
        "cifar100": (10_000, 0.02, small),
        "pets": (500, 0.1, small),
        "flowers102": (500, 0.1, small),
    }
    for arm, (steps, share, rates) in paper.items():
        tasks = [task for task in request.plan.values() if task.arm == arm]
        swept = [task for task in tasks if task.part == "sweep"]
        final = [task for task in tasks if task.part == "final"]
        assert [task.values["optim.lr"] for task in swept] == rates
        assert {task.seed for task in swept} == {0} and [task.seed for task in final] == [0, 1, 2]
        assert all(set(task.needs) == {one.name for one in swept} for task in final)
        for task, held_out in ((swept[0], share), (final[0], 0)):
            options = [f"{key}={value}" for key, value in task.options.items() if key != "init"]
            recipe = resolve([*options, "init=scratch"], here=False)
            assert (recipe.optim.steps, recipe.data.validation) == (steps, held_out)
            assert recipe.optim.batch == 512 and recipe.data.size == 384
            assert recipe.eval.test == (task.part == "final")


def test_data_sets_that_are_not_given_are_left_out_and_named() -> None:
    request = table4("cifar10=/c")
    assert {task.arm for task in request.plan.values()} == {"cifar10"}
    assert list(request.study.arms) == ["cifar10"] and len(request.plan) == 7
    assert request.left_out[0] == "imagenet is left out: imagenet= is missing"
    assert len(request.left_out) == 4
    assert set(request.left_out) < set(request.study.report["differs"])


def test_pairs_and_published_values_of_arms_that_are_left_out_go_too() -> None:
    """Whatever study it is; the arms are told by their values."""
    vary = {"data.path": ["{a}", "{b}", "{c}"]}
    report = {"probes": ["probe"], "pairs": ["{a}:{b}", "{a}:{c}"]}
    study = build(RATE | {"places": ["a", "b", "c"], "vary": vary, "report": report}, "x")
    arms = list(study.arms)
    found, left_out = without_missing(study, {"a": "/a", "b": "/b"})
    assert list(found.arms) == arms[:2] and found.places == ("a", "b")
    assert found.report["pairs"] == ["{a}:{b}"]
    assert left_out == [f"{arms[2]} is left out: c= is missing"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["recipe=study/table4", "init=/e"],
            "no arm has its places; expected some of imagenet=",
        ),
        (["recipe=study/table4", "cifar10=/c"], "init= is missing: the study needs the places"),
    ],
)
def test_a_study_without_any_of_its_places_is_one_line(given: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_request(given)
    assert str(caught.value).startswith(says)


def test_a_place_that_is_none_is_not_given() -> None:
    """From Python, as `null` on a command line; a folder of that name is ./null."""
    given = ["recipe=study/table4", "cifar10=/c", "init=/e"]
    left_out = parse_request(given).plan
    assert parse_request([*given, "imagenet=null"]).plan == left_out
    assert parse_request([*given, "imagenet=./null"]).plan != left_out
    places = {"cifar10": "/c", "tinyimagenet": None}
    two_places = ROOT / "results" / "gap_cifar10.yaml"
    with pytest.raises(
        UserError, match=r"^tinyimagenet= is missing: the report compares arm supervised"
    ):
        ssl_vit.study(f"recipe={two_places}", **places)
    assert with_places([f"recipe={two_places}", "cifar10=null"])[1:] == [
        "cifar10=cifar10",
        "tinyimagenet=tinyimagenet",
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{imagenet: {optim.lr", "{imagnet: {optim.lr", "grid_by_arm: unknown arm imagnet"),
        ("{optim.lr: [0.003", "{optim.warmup: [0.003", "grid_by_arm: imagenet: unknown key optim."),
    ],
)
def test_mistakes_in_grids_of_arms(tmp_path, old: str, new: str, says: str) -> None:
    text = (RECIPES / "study" / "table4.yaml").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=re.escape(says)):
        read(path)
