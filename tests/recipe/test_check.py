"""Relations between keys: some recipe breaks each, and the error is one line with the key, its
value and what to do instead."""

import ast
import sys
from pathlib import Path

import pytest

from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.recipe import check

BIT, R50 = "model=bit_r50x1 data.size=64", "model=r50_vit_b16 data.size=64"
RESNET = f"recipe=supervised {BIT} optim.dropout=0"
HYBRID = f"recipe=supervised {R50}"
FURTHER = "recipe=mae init=timm:vit_tiny_patch16_224 data.size=224"
STREAM = "data.hub=a/b data.stream=true"
MPP_STREAM = f"recipe=mpp {STREAM}"
EVALUATE = "recipe=evaluate init=scratch"
MASK_ALL = "corruption.mask=1 corruption.random=0 corruption.keep=0"
SIGMOID = "recipe=supervised supervised.loss=sigmoid"
NO_TOKEN = 'model.args={"class_token":false}'
ATTEND = f"{EVALUATE} probe.measures=[attentive]"
SEGMENT = f"{EVALUATE} probe.measures=[segmentation]"
HIDDEN = f"{EVALUATE} probe.feature=hidden"
CONV = f"{EVALUATE} {BIT}"
WSD = "recipe=mpp optim.schedule=wsd optim.steps=30 optim.warmup=4"
TRUNK = f"{WSD} resume=runs/long@24"
DINO, IJEPA, LEJEPA, MOCO = (f"recipe={one}" for one in ("dino", "ijepa", "lejepa", "moco_v3"))
# Options, and the key and value that begin the error: by default the last word
BROKEN = f"""
recipe=mpp {BIT} -> model=bit_r50x1
recipe=mpp {R50} -> model=r50_vit_b16
recipe=supervised {BIT} -> optim.dropout=0.1
{RESNET} model.positions=none
{CONV} probe.layer=1
recipe=mpp model.patch=5 data.size=40 target=grid_color
recipe=mae data.channels=4 data.mean=[0.1,0.2] -> data.mean=[0.1, 0.2]
recipe=mae data.std=[0.1]
{RESNET} data.channels=4
recipe=mpp data.channels=4 -> target=mean_color
recipe=moco_v3 data.range=[0,4095] -> objective=moco_v3
recipe=mpp model.args={{"depth":3}} -> model.args={{depth: 3}}
recipe=mpp model.args={{"pretrained":true}} -> model.args={{pretrained: true}}
recipe=mpp model.positions=rotary model.width=36
{HYBRID} model.positions=rotary
recipe=dino {NO_TOKEN} -> objective=dino
recipe=supervised {NO_TOKEN} -> supervised.pool=token
{EVALUATE} {NO_TOKEN} -> probe.pool=null
{HYBRID} model.activation=swiglu
{RESNET} model.train=blocks:1
recipe=supervised init=timm:vit_base_r50_s16_224 data.size=224 model.train=blocks:1
{FURTHER} model.train=blocks:13
{FURTHER} model.train=lora:193
{FURTHER} model.train=lora:8 optim.average=0.9
recipe=mpp model.positions=sincos_2d model.width=130 model.heads=2 -> model.width=130
recipe=mpp data.mixup=0.8
recipe=supervised {STREAM} data.cutmix=0.5
recipe=mpp data.stream=true
{EVALUATE} {STREAM} -> objective=probe
recipe=supervised {STREAM} eval.test=true
{MPP_STREAM} data.test=0.1
{MPP_STREAM} data.group=x
{MPP_STREAM} data.share=0.1
{MPP_STREAM} data.validation=0.1
{MPP_STREAM} data.share_seed=1
recipe=mpp data.hub=a/b data.validation=val data.group=x
recipe=supervised data.labels=false
recipe=mpp data.validation_from=train data.validation=0 -> data.validation_from=train
recipe=mpp checkpoint.best=loss data.validation=0 -> checkpoint.best=loss
recipe=mpp eval.test=true
recipe=joint joint.supervised=0 eval.test=true
recipe=supervised eval.real=x.json
recipe=mpp data.size=33
recipe=mpp model.heads=7 -> model.width=128
recipe=mpp corruption.mask=0.5 -> corruption.mask + .random + .keep=0.7
recipe=mpp corruption.side=9
recipe=mpp corruption.rate=0.9999 {MASK_ALL} -> corruption.rate=0.9999
{MOCO} optim.batch=1
{MOCO} eval.images=1
{MOCO} views.blur_sigma=[2,1] -> views.blur_sigma=[2, 1]
{MOCO} views.local=2
{DINO} views.local_size=72
{DINO} views.local_size=30
{DINO} views.local_area=[0.4,0.1] -> views.local_area=[0.4, 0.1]
{DINO} views.local_area=[0.5,1] -> views.local_area=[0.5, 1]
{DINO} dino.balance=sinkhorn dino.centre_momentum=0.8
{DINO} checkpoint.best=loss
{IJEPA} checkpoint.best=loss
recipe=ibot checkpoint.best=view_loss
recipe=ibot checkpoint.best=patch_loss
recipe=mpp probe.every=100 probe.feature=hidden
{HIDDEN} probe.pool=avg -> probe.feature=hidden
{HIDDEN} probe.layer=2 -> probe.feature=hidden
recipe=mpp probe.every=9 probe.measures=[segmentation] -> probe.measures=segmentation
{SEGMENT} {BIT} -> probe.measures=segmentation
{SEGMENT} probe.feature=hidden -> probe.measures=segmentation
{SEGMENT} probe.pool=avg
recipe=mpp probe.every=9 probe.measures=[attentive] -> probe.measures=attentive
{ATTEND} {BIT} -> probe.measures=attentive
{ATTEND} probe.feature=hidden -> probe.measures=attentive
{ATTEND} probe.pool=avg
recipe=mpp optim.steps=10 optim.warmup=10
recipe=mpp compute.batch=3
{EVALUATE} probe.layer=99
{DINO} {BIT} -> model=bit_r50x1
{LEJEPA} {BIT} -> model=bit_r50x1
{LEJEPA} checkpoint.best=prediction_loss
recipe=ibot ibot.rate=[0.5,0.1] -> ibot.rate=[0.5, 0.1]
{RESNET} supervised.pool=avg
{SIGMOID} supervised.smoothing=0.1
recipe=joint joint.mpp=0 joint.supervised=0 -> joint.mpp=0 joint.supervised=0
{IJEPA} {BIT} -> model=bit_r50x1
{IJEPA} ijepa.area=[0.3,0.4] -> ijepa.blocks=4
{IJEPA} ijepa.visible=0.5 -> ijepa.blocks=4
{IJEPA} ijepa.area=[0.2,0.1] -> ijepa.area=[0.2, 0.1]
{IJEPA} ijepa.aspect=[2,1] -> ijepa.aspect=[2, 1]
{IJEPA} ijepa.context=[1,0.9] -> ijepa.context=[1, 0.9]
{IJEPA} ijepa.heads=7 -> ijepa.width=64
{MOCO} {BIT} -> model=bit_r50x1
{MOCO} {R50} -> moco.freeze_patches=true
{WSD} optim.decay=0.9
recipe=mpp resume=runs/long@24
{TRUNK} optim.decay=0.3 -> resume=runs/long@24
{TRUNK} optim.weight_decay_end=0.4
{TRUNK} checkpoint.best=loss
{TRUNK.replace("mpp", "lejepa")} -> resume=runs/long@24
{TRUNK} target=teacher -> resume=runs/long@24
recipe=mae mae.rate=0.9999
recipe=mae mae.width=6 mae.heads=2 -> mae.width=6
"""
IGNORED = f"""
recipe=mpp mae.rate=0.5
recipe=mpp data2vec.blocks=3
recipe=supervised target=pixels
recipe=mpp data.classes=5 eval.knn=false -> data.classes=5
recipe=joint joint.supervised=0 supervised.pool=avg
recipe=mpp data.image_column=x
recipe=segment init=scratch data.mask_column=a
{EVALUATE} probe.mask_images=100
{EVALUATE} probe.token_images=100
{EVALUATE} probe.every=100
{EVALUATE} optim.steps=100
{EVALUATE} model.train=blocks:1
recipe=mpp probe.steps=3
recipe=mpp hub.private=false
recipe=mpp data.eval_mode=squash data.eval_crop=0.9
{DINO} dino.koleo_group=4
{MOCO} views.local_size=16
"""
CASES = [line.partition(" -> ")[::2] for line in (BROKEN + IGNORED).split("\n") if line]


def error_of(options: str) -> str:
    """Empty where there is none."""
    try:
        resolve(options.split())
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def answers() -> tuple[dict[str, str], set[int]]:
    """The error of each of these options, and the lines of check.py where a function ended with one
    of them."""
    lines: set[int] = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename != check.__file__:
            return None
        if event == "exception" or (event, frame.f_code.co_name) == ("return", "why_unused"):
            lines.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        errors = {options: error_of(options) for options, _ in CASES}
    finally:
        sys.settrace(before)
    return errors, lines


@pytest.mark.parametrize(("options", "named"), CASES)
def test_the_error_names_key_value_and_reason(options: str, named: str, answers) -> None:
    found = answers[0][options]
    assert found.startswith(f"{named or options.split()[-1]}: ") and "\n" not in found


@pytest.mark.parametrize(
    ("size", "patch", "fits"), [(32, 64, "16"), (60, 8, "6"), (33, 8, "11"), (31, 8, "")]
)
def test_a_patch_that_does_not_fit_into_an_image_may_be_smaller(size, patch, fits) -> None:
    """Larger images were the only remedy. Of a prime side no patch divides it."""
    found = error_of(f"recipe=mpp data.size={size} model.patch={patch}")
    assert found.partition("or model.patch=")[2].rstrip(".") == fits


def test_every_relation_and_every_kind_of_ignored_option_is_among_these(answers) -> None:
    ends: set[int] = set()
    for function in ast.walk(ast.parse(Path(check.__file__).read_text())):
        if isinstance(function, ast.FunctionDef) and function.name[0] in ("_", "w"):
            for node in ast.walk(function):
                refuses = isinstance(node, ast.Call) and ast.unparse(node.func) == "r.refuse"
                returns = isinstance(node, ast.Return) and function.name == "why_unused"
                if refuses or returns or isinstance(node, ast.Raise):
                    ends.add(node.lineno)
    assert len(ends) > 53 and ends - answers[1] == set()


def test_labels_that_only_k_nn_or_a_share_for_testing_reads_can_be_named(tmp_path: Path) -> None:
    """With two columns of labels the one that k-NN is measured by could not be chosen."""
    images = f"recipe=mpp data.path={tmp_path} data.label_column=kind"
    line = "data.label_column=kind: "
    assert error_of(f"{images} eval.knn=false").startswith(line)
    assert not error_of(images) and not error_of(f"{images} eval.knn=false data.test=0.2")


def test_what_is_pooled_can_be_chosen_beside_a_measure_of_patches() -> None:
    assert not error_of(f"{EVALUATE} probe.measures=[knn,attentive] probe.pool=avg")


def test_a_model_without_a_name_is_shown_as_one() -> None:
    """The error printed the whole model."""
    recipe = resolve(["recipe=mpp"])
    recipe.model.name, recipe.model.timm = "", "resnet50"
    with pytest.raises(UserError, match=r"^model=: "):
        check.check(recipe)
