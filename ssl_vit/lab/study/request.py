"""Build the study that the study tool was called with."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError, suggest
from ...formatting import format_count
from ...recipe.given import Arguments, Given, Unread
from ...recipe.parsing import exists, parse_path
from ...recipe.recipe_files import RECIPES, recipe_names, study_names
from ...recipe.schema import build as build_recipe
from ...recipe.tool import option_name, parse
from ...recipe.words import NULLS, PRESETS, check_keys
from . import check, read, sweep, worth
from .hours import HoursPlan
from .options import LAUNCHERS, RELEASED, StudyOptions
from .task_options import study_keys
from .tasks import Tasks, plan_tasks, warn_about_other_tries, without_missing


@dataclass(frozen=True)
class StudyRequest:
    """Study that the user asked for, with everything checked.

    Attributes:
        study: Study after missing places were dropped.
        tasks: Tasks of the study, with the paths of all places.
        recipes: `{task: resolved recipe}`.
        name: Name of the study.
        folder: Folder of the study.
        tool_options: Options of the study tool.
        plugin: Plugin file from the command line, or None.
        cautions: Warnings to print before the study starts.
        opening: Lines to print before the warnings.
        hours: Plan of the hours that limit the study, or None if the study runs all tasks.
    """

    study: read.Study
    tasks: Tasks
    recipes: check.Recipes
    name: str
    folder: Path
    tool_options: StudyOptions
    plugin: str | None
    cautions: list[str]
    opening: list[str]
    hours: HoursPlan | None = None


def parse_request(
    arguments: Arguments,
    content: Mapping[str, Any] | None = None,
    stand_ins: bool = False,
    look: bool = True,
) -> StudyRequest:
    """Plan a study from the arguments of the study tool, and check it before a task starts.

    The images may be on another machine if `stand_ins` or the option `check` is set.

    Args:
        arguments: Arguments of the tool.
        content: Study as a mapping, or None if the arguments name a recipe or a file.
        stand_ins: Use made-up paths for places that the arguments do not set.
        look: Read the images that are on this machine.

    Raises:
        UserError: An option or the study's file is wrong.
    """
    arguments, swept = sweep.split(arguments)
    study_options = parse(StudyOptions, arguments)
    unread = study_options.unread.with_absolute_plugin()
    unread.run_plugin()
    plugin_only = unread.keep(("plugin",))
    planned = None
    if study_options.recipe == worth.NAME:
        may_time = not (stand_ins or study_options.dry)
        study_options, planned = _plan_worth(study_options, unread, may_time)
        content, unread = planned.study, plugin_only
    elif study_options.hours is not None:
        text = f"only recipe={worth.NAME} takes hours=. Leave hours= out."
        raise UserError(f"hours={study_options.hours:g}: {text}")
    study, default_name = _find_study(study_options, unread, content, swept)
    if swept is not None:  # the runs of the sweep hold all other options
        unread = plugin_only
    name = study_options.name or default_name
    build_recipe({"name": name})  # checks the name
    places, given = _split_places(study, unread)
    lines: list[str] = []
    if stand_ins:
        places = {place: _stand_in(study, place) for place in study.places} | places
    else:
        study, lines = without_missing(study, places)
    tasks = plan_tasks(study, places, given)
    recipes = check.recipes(study, tasks, here=not (stand_ins or study_options.check))
    tasks = check.add_recipe_values(tasks, recipes)
    if look:
        lines += check.images(study, tasks, recipes)
        lines += check.describe_absent_data(recipes)
    lines += check.architectures(study, tasks, recipes)
    lines += warn_about_other_tries(tasks)
    folder = Path(study_options.out) / name
    return StudyRequest(
        study=study,
        tasks=tasks,
        recipes=recipes,
        name=name,
        folder=folder,
        tool_options=study_options,
        plugin=given.values.get("plugin"),
        cautions=lines,
        opening=planned.lines if planned else [],
        hours=planned.plan if planned and LAUNCHERS[study_options.launcher].runs_here else None,
    )


def _find_study(
    options: StudyOptions,
    unread: Unread,
    content: Mapping[str, Any] | None,
    swept: sweep.Swept | None,
) -> tuple[read.Study, str]:
    """Return the study of a mapping, a sweep or a file, and the default name of its folder.

    Args:
        options: Options of the study tool.
        unread: All other keys that the user gave.
        content: Study as a mapping, or None.
        swept: Keys with several values, or None.

    Raises:
        UserError: An option or the study is wrong.
    """
    if content is not None:
        if options.name is None or options.recipe is not None:
            raise UserError(
                "a study from a mapping needs name= and no recipe=. Add name= or leave out recipe=."
            )
        study, stem = read.build(content, "the study"), options.name
    elif swept is not None:
        _check_keys([*unread.keys, *swept.values], unread, ())
        axes, unread = sweep.axes(swept, unread)
        content, stem = sweep.content(options.recipe, _read_given(unread), axes, options.match)
        study = read.build(content, sweep.SWEEP)
    else:
        path = _find_study_file(options.recipe)
        study, stem = read.read(path), path.stem
    if options.match is not None and swept is None:
        text = "only a sweep takes match=. Write match: {exaflop: AXIS} into the study's file."
        raise UserError(f"match={options.match}: {text}")
    if options.measures is not None:
        report = study.report.model_copy(update={"measures": tuple(options.measures)})
        study = study.model_copy(update={"report": report})
    if options.seeds is not None:
        study = study.model_copy(update={"seeds": _seeds(options.seeds)})
    return study, stem


def _split_places(study: read.Study, unread: Unread) -> tuple[dict[str, str], Given]:
    """Return the paths of the study's places, and the values for the study's tasks.

    Raises:
        UserError: A place has the name of an option, or an option is wrong.
    """
    for place in study.places:
        is_option = place in StudyOptions.options() or place in study_keys()
        if is_option and place not in PRESETS:
            raise UserError(f"places: {place}: ssl_vit has an option {place}=. Rename the place.")
    paths, unread = unread.take(study.places)
    _check_keys(unread.keys, unread, study.places)
    places = {key: _absolute(text) for key, text in paths.items() if text.lower() not in NULLS}
    return places, _read_given(unread)


def _read_given(unread: Unread) -> Given:
    """Return the values that the user gave for all tasks of a study.

    Raises:
        UserError: A value is wrong, or holds braces, which only a study's file may use.
    """
    given = unread.read()
    for key, value in given.values.items():
        if read.find_references([value]):
            raise UserError(
                f"{key}={value}: braces are allowed only in a study's file. Write the value itself."
            )
    return given


def _check_keys(keys: Iterable[str], unread: Unread, places: Collection[str]) -> None:
    """Check the recipe keys that a user sets for the whole study.

    Raises:
        UserError: A key is unknown, or a study sets the key itself.
    """
    if "seed" in unread.keys:
        seed = unread.text("seed")
        seeds = seed if "," in seed else f"{seed},"
        text = f"a study takes seeds=. Use `seeds={seeds}` for this seed, or `seeds=N` for N seeds."
        raise UserError(f"seed={seed}: {text}")
    known_options = [*map(option_name, StudyOptions.options().values()), *places]
    check_keys(keys, known=study_keys(), others=known_options)


def _plan_worth(
    options: StudyOptions, unread: Unread, may_time: bool
) -> tuple[StudyOptions, worth.WorthPlan]:
    """Plan `study/worth` and return the options that run the planned study.

    Raises:
        UserError: `worth.build` refuses the options, or another device is named.
    """
    if options.device:
        text = f"{worth.NAME} times steps on this machine instead. Leave device= out."
        raise UserError(f"device={options.device}: {text}")
    name = options.name or worth.NAME.rpartition("/")[2]
    released, unread = unread.take((RELEASED,))
    keys = [key for key in unread.keys if key not in PRESETS]
    check_keys(keys, others=[*map(option_name, StudyOptions.options().values())])
    values = unread.read().values | released
    planned = worth.build(values, options, Path(options.out) / name, may_time)
    parallel = options.parallel
    if not LAUNCHERS[options.launcher].runs_here:
        planned.lines.append(
            "planned     with the speed of this machine and"
            f" {format_count(planned.parallel, 'tasks')} at once. The machines of"
            f" launcher={options.launcher} may be slower or faster, and the plan does not include"
            " waiting in a queue."
        )
    elif parallel is None:
        parallel = planned.parallel
    elif parallel != planned.parallel:
        text = f"planned     for parallel={planned.parallel}. parallel={parallel} changes neither"
        planned.lines.insert(0, f"{text} tries nor steps (use another name= for a new plan)")
    changed = {"recipe": None, "name": name, "parallel": parallel}
    return options.model_copy(update=changed), planned


def _find_study_file(name: str | None) -> Path:
    """Return the path of a study file from a name under recipes/ or from a path.

    Raises:
        UserError: No such study exists.
    """
    names = [*study_names(), worth.NAME]
    if name is None:
        choices = f"Choose from: {', '.join(names)}. Or name a study's file."
        raise UserError(f"recipe= is missing. {choices}")
    if name in study_names():
        return RECIPES / f"{name}.yaml"
    path = parse_path(name, "recipe")
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"recipe={name}: no such file. Check the path.")
    if name in recipe_names():
        remedy = f"To compare values, type recipe={name} sweep KEY=VALUE,VALUE."
        raise UserError(f"recipe={name}: a recipe, not a study. {remedy}")
    raise UserError(f"recipe={name}: not a study and not a .yaml file, {suggest(name, names)}")


def _absolute(place: str) -> str:
    """Return an existing path as an absolute path, and any other text unchanged."""
    return str(Path(place).resolve()) if exists(place) else place


def _stand_in(study: read.Study, place: str) -> str:
    """Return a made-up value for a place that is not set: its name.

    For a place of initial weights the name stays in braces, which the checks leave out.
    """
    settings = (setting for run in study.runs for setting in read.settings_of(study, run))
    is_init = any(setting.options.get("init") == f"{{{place}}}" for setting in settings)
    return f"{{{place}}}" if is_init else place


def _seeds(text: str) -> tuple[int, ...]:
    """Parse `seeds=`: `3` gives seeds 0, 1 and 2, and `0,1`, `5,` and `[5]` are lists of seeds."""
    try:
        numbers = [int(part) for part in text.strip("[]").removesuffix(",").split(",")]
        return read.seeds_of(numbers if {*text} & {*"[,"} else numbers[0])
    except ValueError:
        expected = "expected a number of seeds (seeds=3) or different seeds (seeds=0,2)"
        raise UserError(f"seeds={text}: {expected}") from None
