"""The pages that are made from the code: docs/options.md and docs/python.md.

for page in options python; do python docs/make_reference.py $page > docs/$page.md; done
"""

import inspect
import re
import sys
import textwrap
from operator import attrgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ssl_vit
from ssl_vit.__main__ import TOOLS
from ssl_vit.evaluation.embedding import Neighbor
from ssl_vit.formatting import markdown_table, option_text
from ssl_vit.jobs.draw_figures import DrawnFigures
from ssl_vit.jobs.embed import EmbeddedImages
from ssl_vit.jobs.run_result import RunResult
from ssl_vit.lab.estimate import RunEstimate
from ssl_vit.lab.report import Report
from ssl_vit.lab.report_pages import RunPage
from ssl_vit.lab.runs.tool import RunTable
from ssl_vit.lab.study.estimate import StudyEstimate
from ssl_vit.lab.study.tool import StudyOutcome
from ssl_vit.recipe.help import allowed, groups, heading, meaning, members
from ssl_vit.recipe.keys import Key, summary
from ssl_vit.recipe.records.run import Measurement
from ssl_vit.recipe.tool import LISTS_ALL_KEYS, ToolOptions

OPTIONS = """# Options

Every option is `key=value`. This page is generated from ssl_vit/recipe/schema.py, recipe/tools.py
and lab/options.py: `python docs/make_reference.py options > docs/options.md`.

## Recipes

`recipe=` names a file of recipes/ (or a path). `data=` and `model=` name a row of
recipes/tables/datasets.yaml and recipes/tables/models.yaml. A recipe replaces some defaults:
`ssl-vit pretrain recipe=mpp --help` shows the values of a recipe.

Keys marked * do not change what is computed. You may change these keys when you resume a run.
"""
TOOLS_HEAD = """## Tools

`ssl-vit TOOL --help` shows the same options, with examples. `pretrain`, `finetune` and `evaluate`
take the keys above and `--json`.
"""
RUNS = "pretrain", "finetune", "evaluate"
OTHERS = "resolve", "load_encoder", "save_encoder", "load_run"
RESULTS = (
    RunResult,
    Measurement,
    EmbeddedImages,
    Neighbor,
    DrawnFigures,
    StudyOutcome,
    RunEstimate,
    StudyEstimate,
    Report,
    RunPage,
    RunTable,
)
PYTHON = """# From Python

Every tool is also a Python function. This page shows how to give options to the functions, and
lists all functions and results. For a notebook with these functions, open
[example.ipynb](example.ipynb).

```python
import ssl_vit

result = ssl_vit.pretrain(recipe="mpp", data={"path": "photos"}, optim={"steps": 200})
result.metrics["loss"].value, result.folder
tuned = ssl_vit.finetune(recipe="finetune", init=result.folder)
ssl_vit.report(result.folder)
```

The functions print what the command prints. In a notebook, the progress bar is redrawn in the same
place, and a result is displayed as the page of the run, the report of the study, or the figures.
Elsewhere a result is printed as the last lines of the command. Most results have
`result.content()`, a dictionary with the content that `--json` prints.

## The numbers of a run

`result.metrics` has the numbers by name. A pre-training measures the loss and, if the images have
labels, a k-NN classifier on held-out images. The number of this classifier is called `probe_knn`.
In an evaluation, it is called `knn`:

```python
short = {"steps": 20, "warmup": 2, "batch": 16}
data = {"size": 32, "validation": 0.2, "test": 0.2}
result = ssl_vit.pretrain(recipe="mae", model="vit_n8", data=data, images=photos, optim=short)
result.metrics["loss"].value  # on held-out images
result.metrics["probe_knn"].value  # accuracy of k-NN on held-out images, from 0 to 1
result.metrics["fresh_probe_knn"].value  # the same with untrained weights

measured = ssl_vit.evaluate(recipe="evaluate", init=result)
measured.metrics["knn"].value  # on test images
measured.metrics["fresh_knn"].value  # the same with untrained weights
measured.metrics["knn"].split, measured.metrics["knn"].n, measured.metrics["knn"].interval

tuned = ssl_vit.finetune(recipe="finetune", init=result, optim=short)
tuned.metrics["top1"].value  # accuracy of the fine-tuned classifier
```

`sorted(result.metrics)` lists all names. [Measures](evaluate.md#measures) explains them.

This page is generated from the code: `python docs/make_reference.py python > docs/python.md`.

## Options

The options are the same as on the command line ([options.md](options.md)). You can write options as
keyword arguments (nested or not), as a dictionary with dotted keys, or as the words of the command
line in a list or in a string. These three calls are the same:

```python
import ssl_vit

recipe = ssl_vit.resolve(recipe="mpp", data={"size": 16}, model={"patch": 4}, optim={"steps": 300})
dotted = {"recipe": "mpp", "data.size": 16, "model.patch": 4}
assert recipe == ssl_vit.resolve(dotted, optim={"steps": 300})
assert recipe == ssl_vit.resolve("recipe=mpp data.size=16 model.patch=4 optim.steps=300")
```

Values are strings, numbers, True, False, None, paths, and lists of such values. `data={"name":
"cifar10", "path": "photos"}` is the same as `data=cifar10 data.path=photos`. An unknown key, or a
key with two values, raises a `ssl_vit.UserError` with a message of one line. The functions refuse
options that only make sense on a command line (`--json`, `only=`).

A string from Python stays a string: `optim={"steps": "300"}` is refused, and `data={"group":
"none"}` groups the images by a column called none. On a command line, `data.group=none` means no
group, and `data.group='"none"'` names this column.

## Your own images

Pass your images as `images=` if they are not files that `data.path=` reads, for example a torch
`Dataset`:

```python
photos = torchvision.datasets.CIFAR10("cifar", train=True)
tests = torchvision.datasets.CIFAR10("cifar", train=False)
result = ssl_vit.pretrain(recipe="mae", images={"train": photos, "test": tests})
ssl_vit.finetune(recipe="finetune", init=result.folder)  # the images of the run
```

`images` is one of these, or a dictionary of them with a key for each split:

- A torch `Dataset` with a length. An item is an image, or an image and a label. Each image is
  stored as a PNG without loss, or as an array if it has more channels than RGB or 16 bits. The
  names of the classes are those of `dataset.classes`, if there are any.
- A `datasets.Dataset`. The encoded images and all other columns are stored as they are.
- A list of paths or of (path, label), or a torchvision `ImageFolder` without transforms. The files
  are linked (hard links), or copied if they are on another disk.

An image is a PIL image, an array (H, W, C) or a tensor (C, H, W), with uint8 pixels, with other
integers from -32768 to 65535, or with floating-point pixels from 0 to 1 (`ToTensor`). Integers that
are not uint8 need `data.range=`, the values that become black and white. For example,
`data={"channels": 1, "range": [-1024, 3071]}` reads slices of computed tomography in Hounsfield
units. A label is an integer, a text, a list of integers, or None. None and the integer
-1 stand for no label.

The images are written once, into a hidden folder of `out=` (default `runs`), and a line says where.
Therefore a run resumes exactly, also from the command line, and `ssl-vit finetune init=RUN` finds
the images of the run. The copy takes disk space, so pass paths if your images are large files. To
delete copies, delete the folder `runs/.images`: runs then need `images=` again. Each call reads the
data set again, to see that the images are the same. To save this time, pass `data={"path": FOLDER}`
with the folder that the line names.

Pass the data set without random transforms: if reading an image twice gives different pixels,
`pretrain` refuses the data set. A data set without a length (an `IterableDataset`) is refused, too.

`finetune`, `evaluate`, `embed` and `study` also take `images=`. `finetune` and `evaluate` need test
images: pass `images={"train": photos, "test": test_photos}`, or add `data={"test": 0.2}`. If an
encoder was trained at another size than that of the images, add for example `data={"size": 32}` to
keep the encoder's size.

## Your own augmentations

With `augment=`, a function or object changes each training image before the random crop and flip.
With objectives that compare views, it changes each view:

```python
from torchvision.transforms import v2

turned = v2.Compose([v2.RandomRotation(20), v2.ColorJitter(0.3)])
result = ssl_vit.pretrain(recipe="mae", images=photos, augment=turned)
```

```python
import albumentations

noisy = albumentations.Compose([albumentations.GaussNoise(p=0.5), albumentations.RandomRotate90()])
result = ssl_vit.pretrain(recipe="mae", images=photos, augment=noisy)
```

A transform of albumentations gets an array (H, W, C). Any other function gets a uint8 tensor (C, H,
W). Both return an image of the same type and with the same channels, of any size. To turn off the
crop and flip that follow, set `data={"crop_area": 1, "flip": False}`.

Fine-tuning and evaluations do not take over the augmentation of the pre-training. To fine-tune with
an augmentation, pass `augment=` to `finetune`.

Before each call, ssl_vit seeds the generators of `random`, `numpy.random`, `torch` and
albumentations from the image and the epoch. Therefore the images do not depend on the number of
processes and data workers, and a resumed run sees the same images as an uninterrupted run. An
augmentation that draws from a generator of its own is refused before the first step.

The recipe records the name of the augmentation, such as `data.augment=Compose-8cb18769`. The number
is a hash of the code and the parameters, so a run cannot be resumed with another augmentation. If
the code is not available, ssl_vit asks for a name of your choice, `augment_name=`.

On the command line, and in studies, augmentations come from a
[plugin](extend.md#an-augmentation-of-your-own).

## Your own training loop

`ssl_vit.load_encoder` returns an encoder as a `torch.nn.Module`, and `ssl_vit.objectives.build`
puts the loss of an objective around the encoder. You write the loop, with your own data, optimiser
and logging. No run folder is made. This loop trains MAE on `images`, a dataset of uint8 tensors
(3, 64, 64):

```python
import ssl_vit
import torch

encoder = ssl_vit.load_encoder("scratch", model="vit_n8", data={"size": 64})
objective = ssl_vit.objectives.build("mae", encoder)
optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(images, batch_size=128, shuffle=True)
for epoch in range(10):
    for batch in loader:
        loss = objective(batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
ssl_vit.save_encoder(objective.exported, "mae_encoder")
encoder = ssl_vit.load_encoder("mae_encoder")
```

timm opens the folder `mae_encoder`, too ([how](hub.md)), and `init=mae_encoder` evaluates or
fine-tunes the encoder.

The loss and the gradient are those of a run, for the same images, keys and weights. A run crops and
flips images before the loss, and here your dataset does that. Only an objective that compares
views, such as DINO, makes its crops itself.

In DINO, iBOT, MoCo v3, I-JEPA and LeJEPA, a teacher or a schedule moves with each step of the
optimiser. Tell such an objective how many `steps` you train, and which optimiser to `follow`.
Without these two, it raises an error. If a `GradScaler` skips a step because a gradient is not
finite, the step does not count: the teacher and the schedules stay. Call `objective.compile()` to
compile the objective, because `torch.compile(objective)` fails. With Lightning:

```python
import lightning
import ssl_vit
import torch


class Pretraining(lightning.LightningModule):
    def __init__(self, steps):
        super().__init__()
        encoder = ssl_vit.load_encoder("scratch", model="vit_n8", data={"size": 64})
        self.objective = ssl_vit.objectives.build("dino", encoder, steps=steps)

    def training_step(self, batch):
        return self.objective(batch).loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        self.objective.follow(optimizer)
        return optimizer


loader = torch.utils.data.DataLoader(images, batch_size=128, shuffle=True)
pretraining = Pretraining(steps=10 * len(loader))
lightning.Trainer(max_steps=10 * len(loader)).fit(pretraining, loader)
ssl_vit.save_encoder(pretraining.objective.exported, "dino_encoder")
```

## Functions
"""


def options() -> str:
    """The text of docs/options.md."""
    parts = [OPTIONS]
    for group, about in groups().items():
        table = markdown_table(
            ("key", "default", "values", "meaning"), [_row(option) for option in members(group)]
        )
        parts.append("\n".join([f"### {group or 'run'}", "", about, "", table, ""]))
    parts.append(TOOLS_HEAD)
    parts += [_tool(name, tool) for name, tool in TOOLS.items() if tool.recipes != LISTS_ALL_KEYS]
    return "\n".join(parts)


def _row(option: Key) -> tuple[str, ...]:
    mark = "" if option.effect == "compute" else " *"
    default = option_text(option.default)
    shown = f"`{default}`" if default else ""
    return f"`{option.name}`{mark}", shown, allowed(option), meaning(option)


def _tool(name: str, tool: type[ToolOptions]) -> str:
    rows = [(f"`{heading(one)}`", allowed(one), meaning(one)) for one in tool.options().values()]
    rows += [(f"`{keys.heading}`", "", keys.meaning) for keys in tool.uses]
    table = markdown_table(("option", "values", "meaning"), rows)
    return "\n".join([f"### {name}", "", summary(tool), "", table, ""])


def python() -> str:
    """The text of docs/python.md."""
    tools = [name for name in ssl_vit.__all__ if name not in (*RUNS, *OTHERS) and name[0].islower()]
    parts = [PYTHON]
    parts += [_function(name) for name in (*RUNS, *tools, *OTHERS, "objectives.build")]
    parts.append("## Results\n")
    parts += [f"### {kind.__name__}\n\n{_prose(kind)}\n" for kind in RESULTS]
    return "\n".join(parts)


def _function(name: str) -> str:
    function = attrgetter(name)(ssl_vit)
    parameters = inspect.signature(function).parameters
    kinds = {one: parameter.kind for one, parameter in parameters.items()}
    named = [f"**{one}" if kinds[one] is inspect.Parameter.VAR_KEYWORD else one for one in kinds]
    returned = str(inspect.signature(function).return_annotation)
    result = re.sub(r"<class '(?:\w+\.)*(\w+)'>|(?:\w+\.)+(\w+)", r"\1\2", returned)
    call = f"`{name}({', '.join(named)})` returns `{result}`"
    if (tool := TOOLS.get(name.removeprefix("list_"))) and tool.recipes != LISTS_ALL_KEYS:
        call += f". Its options: [options.md](options.md#{name.removeprefix('list_')})"
    return f"### {name}\n\n{call}\n\n{_prose(function)}\n"


def _prose(thing: object) -> str:
    """A docstring: its sections as lists."""
    parts = []
    for part in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        title, colon, rest = part.partition(":\n")
        if not colon or " " in title:
            parts.append(part)
            continue
        if title == "Returns":
            parts.append(f"Returns: {' '.join(rest.split())}")
            continue
        entries = re.split(r"\n(?! )", textwrap.dedent(rest))
        items = [f"- {' '.join(entry.split())}" for entry in entries]
        parts.append("\n".join([f"{title}:", "", *items]))
    return "\n\n".join(parts)


PAGES = {"options": options, "python": python}


if __name__ == "__main__":
    (page,) = sys.argv[1:]
    print(PAGES[page](), end="")
