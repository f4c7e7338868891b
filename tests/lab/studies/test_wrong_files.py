"""Wrong study files: the first mistake, in one line that begins with the file and names the place,
the key and what is expected."""

from typing import Any

import pytest

from helpers.studies import (
    GAP,
    IMAGES_CURVE,
    LABELS,
    PRETRAIN,
    PROBE,
    RATE,
    TWO_ARMS,
    changed,
)
from ssl_vit.errors import UserError
from ssl_vit.lab.studies.read_study import build

Node = dict[str, Any]
VARIED: Node = RATE | {"report": {}}
CURVE: Node = LABELS | {"labels": [{"share": 0.1, "steps": 5}, {"share": 1, "steps": 9}]}
LENGTHS: Node = IMAGES_CURVE | {"images": None, "compute": [{"steps": 10}, {"steps": 30}]}
SHARE = {"data.share": "{share}"}


def probed(by_arm: Node, named: str = "probe") -> Node:
    """CURVE with a probe of both arms, and what its report names."""
    part = {"tool": "evaluate", "options": {"recipe": "evaluate", "init": "{final}"}}
    return changed(CURVE, ("parts/probe", part | {"by_arm": by_arm}), ("report/probes", [named]))


# A study, (the key, its wrong value; ... for none), and a part of what is said
FILES: list[tuple[Node, tuple[str, Any], str]] = [
    # keys of the study
    (GAP, ("titel", "x"), "unknown key titel; did you mean title?"),
    (GAP, ("title", ""), "title: is missing"),
    (GAP, ("parts", ...), "parts: is missing"),
    (GAP, ("options", [1]), "options: expected a mapping"),
    (GAP, ("seeds", ["a"]), "seeds: [a]: expected different whole numbers"),
    (GAP, ("seeds", [0, 0]), "seeds: [0,0]: expected different whole numbers"),
    (GAP, ("seeds", [10**22]), "expected different whole numbers, each of 64 bits"),
    (GAP, ("seeds", 0), "seeds: 0: expected 1 to 1000, or a list"),
    (GAP, ("places", 3), "places: expected a list"),
    (GAP, ("places", [3]), "places: 3: expected a name of letters"),
    (GAP, ("places", ["seed"]), "places: seed: is each task's seed"),
    (GAP, ("places", ["final"]), "final is a place and a part"),
    (GAP, ("arms", ["mpp"]), "arms: expected a mapping"),
    (GAP, ("arms/a b", "x"), "arms: a b: expected a name of letters"),
    (
        {"title": "x", "parts": {"pretrain": PRETRAIN | {"by_arm": {"a": {}}}}},
        ("arms", {"a": "one", "c": "other"}),
        "arms: c: is in no part; name it in a part's by_arm",
    ),
    (GAP, ("match", "exaflp"), "match=exaflp: unknown; did you mean exaflop?"),
    # parts
    (GAP, ("parts/final", 3), "part final: expected a mapping"),
    (GAP, ("parts/final/option", {}), "part final: unknown key option; did you mean options?"),
    (GAP, ("parts/final/tool", "finetun"), "tool=finetun: unknown; did you mean finetune?"),
    (GAP, ("parts/final/tool", ...), "part final: tool: is missing; choices: pretrain, finetune"),
    (GAP, ("parts/final/seeds", [True]), "part final: seeds: [true]: expected different whole"),
    (GAP, ("parts/odd", {"extends": "none"}), "part odd: extends=none: expected a part that"),
    (GAP, ("parts/final/options/seed", 3), "seed=3: that is the study's seeds; leave it out"),
    (GAP, ("parts/final/options/name", "x"), "name=x: that is the task's; leave it out"),
    (GAP, ("parts/final/options/name2", "???"), "name2=???: cannot be taken as a value"),
    (GAP, ("parts/final/options/init", ...), "part final: arm scratch: init= is missing"),
    (GAP, ("parts/final/options/init", "{pretain}"), "{pretain}: no such part or place; did you"),
    (GAP, ("parts/final/options/init", "{pretrain@mpp}"), "{pretrain@mpp}: no such part or place"),
    (GAP, ("parts/probe/options/init", "{sweep}"), "part sweep has several runs"),
    (GAP, ("parts/final/by_arm", {"mp": {}}), "by_arm: unknown arm mp; did you mean mpp?"),
    (GAP, ("parts/final/by_arm", {"mpp": 3}), "by_arm: mpp: expected a mapping"),
    (GAP, ("parts/pretrain/by_arm/mpp", ...), "that part has no arm mpp"),
    (GAP, ("parts/final/best", {"of": "sweep"}), "best: expected of (a part) and by (a metric)"),
    (GAP, ("parts/final/best", {"off": "sweep"}), "best: unknown key off; did you mean of?"),
    (GAP, ("parts/final/best/of", "sweeps"), "of=sweeps: no part with a grid; did you mean sweep?"),
    (GAP, ("parts/final/best/of", "pretrain"), "of=pretrain: no part with a grid"),
    (GAP, ("parts/final/best/of", 3), "best: of=3: no part with a grid"),
    (GAP, ("parts/final/best/by", "top1"), "best: by=top1: that is of the test images"),
    (TWO_ARMS, ("parts/pre/options/init", "{fin}"), "parts in a circle: "),
    # the grid of a part
    (GAP, ("parts/sweep/grid", True), "part sweep: grid: expected a mapping"),
    (GAP, ("parts/sweep/grid", {"optim.lr": 1}), "grid: optim.lr: expected a list of values"),
    (GAP, ("parts/sweep/grid", {"optim.lr": []}), "grid: optim.lr: expected a list of values"),
    (GAP, ("parts/sweep/grid", {"optim.lr": [1, 1]}), "grid: optim.lr: a value is there twice"),
    (GAP, ("parts/sweep/grid", {"optim.lr": ["{no}", 1]}), "{no}: no such part or place"),
    (
        GAP,
        ("parts/sweep/grid", {"mixing": [{"data.mixup": 0.8}, 0.1]}),
        "grid: mixing: expected values, or mappings of the same keys",
    ),
    (
        GAP,
        ("parts/sweep/grid", {"mixing": [{"data.mixup": 0.8}, {"data.cutmix": 1}]}),
        "grid: mixing: expected values, or mappings of the same keys",
    ),
    (
        GAP,
        ("parts/sweep/grid", {"optim.lr": [0.1], "both": [{"optim": {"lr": 0.2, "wd": 0}}]}),
        "grid: optim.lr: is swept twice",
    ),
    # what is varied
    (VARIED, ("vary", {"corruption.rat": [1, 2]}), "unknown key corruption.rat; did you mean"),
    (VARIED, ("vary", {"corruption.rate": [0.5]}), "corruption.rate: one value cannot be compared"),
    (VARIED, ("vary", {"corruption.rate": 0.5}), "corruption.rate: expected a list of values"),
    (VARIED, ("vary", {"optim.lr": [0.1, "x"]}), "vary: optim.lr=x: expected a number"),
    (VARIED, ("vary", [{"name": "a"}]), "expected keys with lists of values, or two settings or"),
    (VARIED, ("vary", [{"name": "a"}, 3]), "vary: 3: a setting is a mapping of keys to values"),
    (VARIED, ("vary", [{"name": "a"}, {"seed": 1}]), "vary: seed: say seeds= for that"),
    (VARIED, ("vary", [{}, {"optim.lr": 0.1}]), "vary: a setting without keys needs a name"),
    (
        VARIED,
        ("vary", [{"name": "a"}, {"name": "a", "optim.lr": 0.1}]),
        "vary: a: two settings have that name",
    ),
    (
        VARIED,
        ("vary", [{"optim.lr": 0.1}, {"name": "b", "optim.lr": 0.1}]),
        "=0.1: a setting is there twice",
    ),
    (VARIED, ("arms", {"rate=0.5": ""}), "arms: rate=0.5 is the name of a setting"),
    (VARIED, ("parts", {"probe": PROBE}), "vary: no part with tool: pretrain"),
    (VARIED, ("parts/pretrain/tool", "pretrian"), "tool=pretrian: unknown; did you mean pretrain?"),
    (VARIED, ("match", "time"), "match=time: unknown; choices: steps, exaflop"),
    (
        {"title": "x", "arms": {"a": "alone"}, "parts": {"pretrain": PRETRAIN}},
        ("match", "steps"),
        "match: expected several arms, there is one",
    ),
    (VARIED, ("report/axis", "optim.lr"), "axis: optim.lr is not varied; choices: corruption.rate"),
    (GAP, ("report/axis", "optim.lr"), "axis: the study varies nothing that it could be about"),
    # a curve over shares of the labels
    (LABELS, ("labels", 3), "labels: expected two shares or more"),
    (LABELS, ("labels", [{"share": 0.1}]), "labels: expected two shares or more"),
    (LABELS, ("labels", [{"share": 0.1}, 7]), "labels: 7: expected a mapping with share"),
    (LABELS, ("labels", [{"share": 0.1}, {"steps": 1}]), "share=None: expected a number in (0, 1]"),
    (LABELS, ("labels", [{"share": 0.1}, {"share": 2}]), "share=2: expected a number in (0, 1]"),
    (LABELS, ("labels", [{"share": 1, "n": 1}, {"share": 0.1}]), "n: is missing in some shares"),
    (CURVE, ("labels", [{"share": 1}, {"share": 0.1}]), "{steps}: no such part or place"),
    (
        CURVE,
        ("labels", [{"share": 0.1, "steps": 1}, {"share": 0.1, "steps": 2}]),
        "share: a value is there twice",
    ),
    (
        CURVE,
        ("labels", [{"share": 1, "steps": 1, "lr": 1}, {"share": 0.1, "steps": 1, "lr": 2}]),
        "lr: no part has {lr} in its options",
    ),
    (
        CURVE,
        ("labels", [{"share": 1, "sweep": 1}, {"share": 0.1, "sweep": 2}]),
        "sweep: is also a part or a place",
    ),
    (
        CURVE,
        ("parts/final_0.1", LABELS["parts"]["pretrain"]),
        "final_0.1: is what final is called at that share",
    ),
    (CURVE, ("parts/x", {"extends": ["sweep"]}), "part x: extends=['sweep']: expected a part"),
    (CURVE, ("parts/x", "{share}"), "part x_0.1: expected a mapping"),
    (CURVE, ("parts/final/toll", 1), "part final_0.1: unknown key toll"),
    (
        CURVE,
        ("parts/final/options/data.share", 0.5),
        "part final_0.1, arm scratch: data.share=0.5: expected {share}",
    ),
    (
        CURVE,
        ("parts/final/by_arm/mpp/data.share", "half"),
        "part final_0.1, arm mpp: data.share=half: expected {share}",
    ),
    (CURVE, ("report/final", "pretrain"), "final: pretrain: expected a part with {share}"),
    (CURVE, ("report/extra", ["pretrain"]), "extra: pretrain: no {share} in its options"),
    (CURVE, ("report/probes", [{"a": 1}]), "probes: unknown {'a': 1}"),
    (CURVE, ("report/probes", ["pretrain"]), "probes: pretrain: is no part of tool evaluate"),
    (
        probed({"mpp": SHARE}, "probe_0.1"),
        ("title", "x"),
        "probes: probe_0.1: is probe at one share; expected probe",
    ),
    (
        probed({"mpp": SHARE, "scratch": {"data.share": 0.1}}),
        ("title", "x"),
        "part probe_1, arm scratch: data.share=0.1: expected {share}",
    ),
    (
        probed({"mpp": SHARE, "scratch": {}}),
        ("title", "x"),
        "part probe_0.1, arm scratch: data.share=None: expected {share}",
    ),
    (CURVE, ("report", {"final": "final"}), "report: missing: baseline, candidate"),
    # a curve over images or compute
    (IMAGES_CURVE, ("labels", [{"share": 0.1}, {"share": 1}]), "labels and images: expected one"),
    (IMAGES_CURVE, ("images", [{"share": 0.1}, {"share": 2}]), "share=2: expected a number in"),
    (
        IMAGES_CURVE,
        ("parts", {"final": IMAGES_CURVE["parts"]["final"] | {"options": {"init": "{share}"}}}),
        "images: expected data.share: {share} in the parts that pre-train",
    ),
    (LENGTHS, ("title", "x"), "compute: expected optim.steps: {steps} in the parts that pre-train"),
    (LENGTHS, ("match", "steps"), "compute: expected match: exaflop"),
    (LENGTHS, ("compute", [{"steps": 10}, {"steps": 1.5}]), "expected a whole number above 0"),
    (LENGTHS, ("compute", [{"steps": 10}]), "compute: expected two lengths or more"),
    # the report
    (GAP, ("report/finul", 1), "report: unknown key finul; did you mean final?"),
    (GAP, ("report/final", "finl"), "report: final: unknown finl; did you mean final?"),
    (GAP, ("report/final", "pretrain"), "report: pretrain is no part of tool finetune"),
    (GAP, ("report/candidate", "mp"), "report: candidate: unknown mp; did you mean mpp?"),
    (GAP, ("report/reference", "z"), "report: reference: unknown z; choices: scratch, mpp"),
    (GAP, ("report/candidate", "scratch"), "baseline, candidate and reference are scratch"),
    (GAP, ("report/probes", ["prob"]), "report: probes: unknown prob; did you mean probe?"),
    (GAP, ("report/extra", 3), "report: extra: expected a list"),
    (GAP, ("report/paper", {"q": 1}), "report: paper: unknown q"),
    (GAP, ("report/paper", {"mpp": True}), "report: paper: mpp: True: expected a number"),
    (GAP, ("report/differs", [1]), "report: differs: expected texts"),
    (GAP, ("report/pairs", "a:b"), "report: pairs: expected a list"),
    (GAP, ("report/pairs", ["mpp:mpp"]), "report: pairs=mpp:mpp: "),
    (GAP, ("report/pairs", ["mpp:c"]), "no arm c"),
    (
        GAP,
        ("parts/final/by_arm", {"scratch": {}}),
        "report: candidate: mpp: is not in part final, whose arms are compared",
    ),
]


@pytest.mark.parametrize(("study", "change", "says"), FILES, ids=[row[2][:40] for row in FILES])
def test_a_wrong_file_is_named_in_one_line(study: Node, change: tuple[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        build(changed(study, change), "x.yaml")
    text = str(caught.value)
    assert says in text and text.startswith("x.yaml: ") and "\n" not in text
