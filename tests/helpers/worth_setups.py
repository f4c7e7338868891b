"""A setup of study/worth for 1,280 images: 10 steps an epoch."""

from helpers.resolving import resolve
from ssl_vit.lab.study.read import build
from ssl_vit.lab.study.tasks import Tasks, plan_tasks
from ssl_vit.lab.study.worth.content import StudySize, study_file
from ssl_vit.lab.study.worth.study_setup import StudyImages, StudySetup
from ssl_vit.recipe.given import Given

IMAGES = StudyImages({"data.test": 0.2}, 1280, 1000, 10, 60, 150, 400)
ASKED = StudySetup(
    objective="mae",
    init="",
    shared_options={"data.path": "/no", "compute.threads": 1},
    pretraining_options={},
    images=IMAGES,
    recipe=resolve(["recipe=mae", "data.path=/no/such/place"], here=False),
    model={"model": "vit_n8"},
    pool="avg",
    supervised_ratio=1.0,
    fine_ratio=0.5,
)


def tasks_of(asked: StudySetup, extent: StudySize) -> Tasks:
    return plan_tasks(build(study_file(asked, extent, 1), "x"), {}, Given())
