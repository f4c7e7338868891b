"""How often the warnings of eval.collapse= are right: of tiny runs that should have none, and of
runs that are made to collapse, which with a teacher as slow as the recipes' takes three times the
steps.

    python robustness/collapse.py seeds=5 steps=300 out=FOLDER

Every run has the same tiny encoder, the embedded images of 16 px, 32 prototypes where there are
any, local views of 8 px, and otherwise its recipe's own values. One JSON object comes out.
tests/evaluation/test_collapse.py does four shorter runs.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.config.resolve import resolve
from ssl_vit.jobs import train as train_job
from ssl_vit.runs.folder import Run

ENCODER = "data.size=16 model.patch=4 model.width=32 model.depth=2 model.heads=2 model.mlp=64"
CALM = "log.tensorboard=false compute.precision=float32 compute.threads=1 eval.images=24"
CHECKS = 10  # after step 0
# Without what keeps DINO and iBOT from collapsing (Caron et al., 2021, section 5.3), alone and with
# a temperature that leaves each image one prototype
COLLAPSING = {
    "not centred": ("centre_momentum=1",),
    "not centred, sharp": ("centre_momentum=1", "teacher_temperature=[0.001,0.001]"),
}
TOO_HIGH = "optim.lr=0.3"  # 300 times the recipes', for those without prototypes
LONGER = 3
TEACHERS = ("dino", "ibot")
OTHERS = ("mpp", "mae", "moco_v3", "ijepa")


def options(recipe: str, steps: int, own: tuple[str, ...] = ()) -> list[str]:
    """The options of a run; `own` are keys of the objective."""
    length = [f"optim.steps={steps}", f"optim.warmup={steps // 10}", "optim.batch=32"]
    often = [f"eval.every={steps}", f"eval.collapse={steps // CHECKS}", "data.validation=0.0064"]
    words = [f"recipe={recipe}", *ENCODER.split(), *CALM.split(), *length, *often]
    if recipe in TEACHERS:
        words += ["views.local_size=8", f"{recipe}.prototypes=32"]
    return [*words, *(f"{recipe}.{one}" for one in own)]


def outcome(words: list[str], out: str, name: str) -> dict[str, Any]:
    """What a run's checks found: the step of the first warning or null, and the first and the last
    values of each measure."""
    run = Run(resolve([*words, f"out={out}", f"name={name.replace(', ', '-').replace(' ', '_')}"]))
    with contextlib.redirect_stdout(sys.stderr):
        train_job.train(run)
    warnings = [
        line.partition("step ")[2]
        for line in (run.folder / "log.txt").read_text().splitlines()
        if "features may be collapsing" in line
    ]
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    checks = [row for row in rows if "features/effective_rank" in row]
    ends = {
        key.removeprefix("features/"): [round(checks[0][key], 4), round(checks[-1][key], 4)]
        for key in checks[0]
        if key.startswith("features/")
    }
    first = int(warnings[0].partition(":")[0]) if warnings else None
    return {"warned at": first, "says": warnings, **ends}


def main(words: list[str]) -> None:
    given = {"seeds": "5", "steps": "300", **dict(word.split("=", 1) for word in words)}
    steps, seeds, out = int(given["steps"]), range(int(given["seeds"])), given["out"]
    arms = {recipe: options(recipe, steps) for recipe in (*OTHERS, *TEACHERS)}
    for recipe in TEACHERS:
        for why, own in {"longer": (), **COLLAPSING}.items():
            arms[f"{recipe}, {why}"] = options(recipe, LONGER * steps, own)
    for recipe in OTHERS:
        arms[f"{recipe}, rate too high"] = [*options(recipe, steps), TOO_HIGH]
    found = {
        arm: [outcome([*own, f"seed={seed}"], out, f"{arm}-{seed}") for seed in seeds]
        for arm, own in arms.items()
    }
    warned = {arm: sum(one["warned at"] is not None for one in runs) for arm, runs in found.items()}
    print(json.dumps({"steps": steps, "seeds": len(seeds), "warned": warned, "runs": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
