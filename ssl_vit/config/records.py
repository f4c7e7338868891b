"""What is read from JSON files that others may have edited, as typed records: the files of run and
study folders, of exports and of checkpoints. Pydantic checks them, which `--help` does not import.

A record's fields are what this package reads. More keys may be there: later versions write them.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from .parsing import read_json

LARGEST = 2**1000  # a whole number above it is no float
Kind = TypeVar("Kind")


def _fits_float(value: int | float) -> int | float:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError("expected a number that a float holds")
    return value


Number = Annotated[int | float, AfterValidator(_fits_float)]
Whole = Annotated[int, AfterValidator(_fits_float)]
Scalar = str | bool | Number | None


class Record(BaseModel):
    """A JSON object. A bool is no number, and a number no text."""

    model_config = ConfigDict(strict=True, extra="allow")

    def __getitem__(self, name: str) -> Any:
        """A field, or another key: results are mappings in users' scripts."""
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self.model_fields_set

    def has(self, *names: str) -> bool:
        """Whether the file has all these keys."""
        return self.model_fields_set.issuperset(names)

    def content(self) -> dict[str, Any]:
        """The keys of the file and their values, others than the declared ones too."""
        return self.model_dump(exclude_unset=True)


class WithRecipe(Record):
    """A file of a run that has the recipe's hash."""

    recipe: str | None = None


class Measured(Record):
    """A metric of result.json, and of how many images or patches it is."""

    value: Number
    split: str
    n: Whole | None = None


class WithMetrics(Record):
    """A result of which the metrics alone are read."""

    metrics: dict[str, Measured]


class WithSeconds(Record):
    """A result of which the time alone is read."""

    seconds: Number


class Best(Record):
    """The evaluation whose weights checkpoint.best chose; nulls where none was finite."""

    metric: str
    step: Whole | None
    value: Number | None


def _is_whole(best: Best) -> Best:
    if (best.step is None) != (best.value is None):
        raise ValueError("expected step and value, or nulls for both")
    return best


class Result(WithRecipe):
    """result.json. Exaflop are null where they were not counted."""

    steps: Whole
    seconds: Number
    metrics: dict[str, Measured]
    finished: str
    images: Number = 0
    exaflop: Number | None = 0
    device_hours: Number = 0
    total_exaflop: Number | None = None
    total_device_hours: Number | None = None
    best: Annotated[Best, AfterValidator(_is_whole)] | None = None
    measured_on: dict[str, Whole] | None = None
    pool: str | None = None  # of an evaluation


class QuestionKeys(Record):
    """declaration.Question of a kind of metric."""

    keys: list[str]
    difficulty: list[str]


class Row(Record):
    """A row of metrics/registry.py, which checks the rest of it."""

    name: str


class ObjectiveFacts(Record):
    """What a run records of its objective (runs/objective_facts.py)."""

    title: str
    tag: str
    sentence: str
    fine_tunes: bool
    class_token_is_trained: bool = False
    figure: str = ""
    questions: dict[str, dict[str, QuestionKeys | None]] = {}
    metrics: list[Row] = []
    free: list[str] = []  # its own keys that do not change what is computed
    baselines: list[Row] = []


class Cost(Record):
    """What the runs took that first weights come from."""

    exaflop: Number | None
    device_hours: Number


class RecipeFile(Record):
    """The recipe file that a run came from, and the keys at which the run differs from it."""

    name: str
    differs: dict[str, Any]


class Sharding(Record):
    """How a run's weights and gradients were spread over processes."""

    strategy: str
    machines: Whole
    deepspeed: str | None = None
    offload: dict[str, str] = {}


class Environment(WithRecipe):
    """environment.json."""

    objective: ObjectiveFacts | None = None
    data: dict[str, Any] = {}
    images: dict[str, Whole] = {}  # of a split that is no stream
    measured_on: dict[str, Whole] | None = None
    init: dict[str, Any] | None = None
    before: Cost | None = None
    host: dict[str, Any] | None = None
    packages: dict[str, Any] | None = None
    revision: str | None = None
    plugin: dict[str, Any] | None = None
    real: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    earlier_recipes: list[str] = []
    recipe_file: RecipeFile | None = None
    sharding: Sharding | None = None
    device: str | None = None
    processes: Whole | None = None
    threads: Whole | None = None
    precision: str | None = None
    python: str | None = None
    device_batch: Whole | None = None
    accumulation: Whole | None = None
    classes: list[str] | None = None


class FileFacts(Record):
    """A file of a checkpoint."""

    bytes: Whole
    sha256: str


class Manifest(Record):
    """manifest.json of a checkpoint, and the best step when it was written."""

    files: dict[str, FileFacts]
    best: Whole | None = None


class BestStep(Record):
    """That of a training state."""

    step: Whole | None


class UploadedState(Record):
    """A training state from the Hub, as far as is read before it is loaded."""

    step: Whole
    best: BestStep | None = None


class PushedBranch(Record):
    """What hub.json says of a branch: of which state it is, and as which commit."""

    stamp: str
    commit: str


class NotFinite(Record):
    """not_finite.json: steps whose update was skipped, and the samples of each."""

    steps: dict[str, Any]


class Task(Record):
    """A task of study.json. Without options it is a study of other means."""

    name: str
    part: str
    tool: str
    arm: str
    seed: Whole
    values: dict[str, Scalar | list[Scalar]]
    needs: list[str]
    best: str | None = None
    by: str | None = None
    options: list[str] | None  # as on a command line
    coordinates: dict[str, Any] | None = None  # {axis: value}; None: of an earlier version


class Claim(Record):
    """Which arm is said to be better than which, and by what."""

    better: str
    worse: str
    measure: str | None = None
    source: Scalar = None
    says: Scalar = None


class Report(Record):
    """What the report of a study compares."""

    final: str | None = None
    baseline: str | None = None
    candidate: str | None = None
    reference: str | None = None
    measure: str | None = None
    axis: str | None = None
    extra: list[str] | None = None
    probes: list[str] | None = None
    differs: list[str] | None = None
    paper: dict[str, Number] | None = None
    pairs: list[str] | None = None  # A:B
    claim: Claim | None = None

    @property
    def roles(self) -> dict[str, str]:
        """{role: its arm} of the roles that are given."""
        found = {role: self[role] for role in ("baseline", "candidate", "reference")}
        return {role: arm for role, arm in found.items() if arm}


class CurvePoint(Record):
    """A place along a study's curve: its final part and the parts beside it."""

    share: Number
    final: str
    extra: list[str]


class StudyPlan(Record):
    """study.json."""

    name: str
    title: str
    arms: dict[str, Any]
    report: Report
    tasks: list[Task]
    vary: dict[str, dict[str, Any]] | None = None
    match: str | None = None
    benchmark: str | None = None
    labels: list[CurvePoint] = []
    curve: str = "labels"  # what lies along it


class Figure(Record):
    """What figures.json says of a figure: the images that it was computed over."""

    images: str
    count: Whole = 0


class Figures(Record):
    """figures.json, as the page of a run reads it."""

    figures: dict[str, Figure]


class OverlapSplit(Record):
    """A split that tools/overlap.py looked through, and the fingerprint of its images."""

    data: str
    images: Whole
    print: str


class Overlap(Record):
    """An entry of overlap.json."""

    train: OverlapSplit
    test: OverlapSplit
    exact: Whole
    near: Whole
    bits: Whole


class PretrainedConfig(Record):
    """pretrained_cfg of an export's config.json."""

    mean: list[Number] = []
    std: list[Number] = []
    input_size: list[Whole] = []
    interpolation: str = ""


class Pixels(Record):
    """`pixels` of an export's config.json, of images that are not RGB of 8 bits."""

    channels: Whole
    range: Annotated[list[Whole], Field(min_length=2, max_length=2)]
    mean: list[Number] = []
    std: list[Number] = []


class ExportConfig(Record):
    """config.json of an export, timm's or transformers': formats with many more keys."""

    architecture: str = ""
    model_type: str = ""
    num_classes: Whole | None = None
    global_pool: str | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: PretrainedConfig = PretrainedConfig()
    label_names: list[str] | None = None
    pixels: Pixels | None = None


class OwnPretrainedConfig(PretrainedConfig):
    """That of an export that this package made."""

    mean: list[Number]
    std: list[Number]
    input_size: list[Whole]
    interpolation: str


class OwnExportConfig(ExportConfig):
    """config.json of an export that this package made."""

    num_classes: Whole
    global_pool: str
    pretrained_cfg: OwnPretrainedConfig


class RunEnvironment(Environment):
    """That of a run, which has the fingerprints of its images."""

    data: Annotated[dict[str, str], Field(min_length=1)]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    strict = None if isinstance(kind, type) and issubclass(kind, BaseModel) else {"strict": True}
    return TypeAdapter(kind, config=strict)  # type: ignore[arg-type]


def check(value: Any, kind: type[Kind]) -> Kind:
    """The value as a record, or as another type with members of such types.

    Raises:
        ValueError: it is none; in one line, which names the first key that is wrong.
    """
    try:
        return cast(Kind, _adapter(kind).validate_python(value))  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(_first_mistake(error.errors(include_url=False))) from None


def fits(value: Any, kind: Any) -> bool:
    """Whether `check` accepts a value."""
    try:
        check(value, kind)
    except ValueError:
        return False
    return True


def read(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file as a record.

    Raises:
        ValueError: as `check`, or it is no JSON.
        OSError: it cannot be read.
    """
    return check(read_json(path), kind)


def _first_mistake(errors: Sequence[Any]) -> str:
    first = errors[0]
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return " ".join(f"{place}: {text}".removeprefix(": ").split())
