"""Build the study that the study tool was called with."""

from collections.abc import Collection, Iterable, Iterator, Mapping
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
from ...recipe.words import NULLS, PRESETS, check_keys, write
from . import check, read, sweep, worth
from .hours import HoursPlan
from .options import LAUNCHERS, RELEASED, StudyOptions
from .task_options import study_keys
from .tasks import Tasks, plan_tasks, warn_about_other_tries, without_missing

# options of the study tool that are left out of the command that repeats a study
NOT_REPEATED = ("only", "index", "dry", "check", "device")


@dataclass(frozen=True)
class StudyRequest:
    """Study that the user asked for, after all checks.

    Attributes:
        study: Study without the axis names whose paths are missing.
        tasks: Tasks of the study, with all paths filled in.
        recipes: `{task: resolved recipe}`.
        name: Name of the study.
        folder: Folder of the study.
        tool_options: Options of the study tool.
        plugin: Plugin file from the command line, or None.
        cautions: Warnings to print before the study starts.
        opening: Lines to print before the warnings.
        hours: Plan of the hours that limit the study, or None to run all tasks.
        command_words: Arguments of the study tool that repeat the study. Empty for a study from a
            Python dictionary.
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
    command_words: tuple[str, ...] = ()


def parse_request(
    arguments: Arguments,
    content: Mapping[str, Any] | None = None,
    stand_ins: bool = False,
    look: bool = True,
) -> StudyRequest:
    """Plan a study from the arguments of the study tool, and check it before a task starts.

    With `stand_ins` or the option `check`, the images need not be on this machine.

    Args:
        arguments: Arguments of the tool.
        content: Study as a mapping, or None if the arguments name a recipe or a file.
        stand_ins: Whether to use made-up paths for the places that the arguments do not set. A
            place, such as `photos`, is a name that the study file uses for a path.
        look: Whether to read and check the images that are on this machine.

    Raises:
        UserError: An option or the study's file is wrong.
    """
    arguments, swept = sweep.split(arguments)
    command_words: Iterable[str] = ()
    if content is None:
        command_words = _command_words(arguments, swept)
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
        raise UserError(
            f"hours={study_options.hours:g}: only recipe={worth.NAME} takes hours=. Leave hours="
            " out."
        )
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
    recipes = check.recipes(study, tasks, check_images=not (stand_ins or study_options.check))
    tasks = check.add_recipe_values(tasks, recipes)
    if look:
        lines += check.images(study, tasks, recipes)
        lines += check.describe_absent_data(recipes)
    lines += check.architectures(study, tasks, recipes)
    lines += warn_about_other_tries(tasks)
    folder = Path(study_options.out) / name
    hours = None
    if planned and LAUNCHERS[study_options.launcher].runs_here:
        hours = planned.plan
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
        hours=hours,
        command_words=tuple(command_words),
    )


def places(arguments: Arguments, content: Mapping[str, Any] | None) -> Collection[str]:
    """Return the names that a study file uses for paths, such as `photos`. A sweep has none.

    Args:
        arguments: Arguments of the tool.
        content: Study as a mapping, or None if the arguments name a recipe or a file.

    Raises:
        UserError: The study is wrong.
    """
    if content is not None:
        return read.build(content, "the study").places
    arguments, swept = sweep.split(arguments)
    options = parse(StudyOptions, arguments)
    if swept is not None or options.recipe in (None, worth.NAME):
        return ()
    return read.read(_find_study_file(options.recipe)).places


def _command_words(arguments: Arguments, swept: sweep.Swept | None) -> Iterator[str]:
    """Yield the arguments of the command line that repeats a study.

    Arguments that only check the study, or that run a single task, are left out (NOT_REPEATED).

    Args:
        arguments: Arguments of the study tool, without the word `sweep`.
        swept: Keys with several values each, or None without a sweep.
    """
    # None of an option of the study tool means the default
    own = {*map(option_name, StudyOptions.options().values())}
    words = [*arguments.words]
    words += [
        write(key, value)
        for key, value in arguments.pairs or ()
        if value is not None or key not in own
    ]
    keys_last = swept.words if swept else ()
    words_by_key = [(word.lstrip("-").partition("=")[0], word) for word in words]
    yield from (word for key, word in words_by_key if key not in (*NOT_REPEATED, *keys_last))
    if swept:
        yield sweep.SWEEP
        yield from (word for key, word in words_by_key if key in keys_last)
        for key, values in swept.values.items():
            yield sweep.write_values(key, values)


def _find_study(
    options: StudyOptions,
    unread: Unread,
    content: Mapping[str, Any] | None,
    swept: sweep.Swept | None,
) -> tuple[read.Study, str]:
    """Return the study that the user asked for, and the default name of the study's folder.

    The study comes from a Python dictionary (`content`), or from the keys after the word `sweep`,
    or from the study file that `recipe=` names. If the user sets the options `seeds=` or
    `measures=`, they replace the study's own seeds or measures.

    Args:
        options: Options of the study tool.
        unread: All other keys that the user gave, such as `optim.lr=1e-3`.
        content: Study as a Python dictionary, or None.
        swept: Keys with several values each, or None without a sweep.

    Raises:
        UserError: An option or the study is wrong.
    """
    if content is not None:
        if options.name is None or options.recipe is not None:
            raise UserError(
                "a study given as a Python dictionary needs name= and takes no recipe=. Write"
                " name=NAME, and leave recipe= out."
            )
        study, default_name = read.build(content, "the study"), options.name
    elif swept is not None:
        _check_keys([*unread.keys, *swept.values], unread, ())
        axes, unread = sweep.axes(swept, unread)
        given = _read_given(unread)
        content, default_name = sweep.content(options.recipe, given, axes, options.match)
        study = read.build(content, sweep.SWEEP)
    else:
        path = _find_study_file(options.recipe)
        study, default_name = read.read(path), path.stem
    if options.match is not None and swept is None:
        raise UserError(
            f"match={options.match}: on the command line, match= works only with a sweep. In the"
            " study's file, write match: {exaflop: AXIS} instead."
        )
    if options.measures is not None:
        report = study.report.model_copy(update={"measures": tuple(options.measures)})
        study = study.model_copy(update={"report": report})
    if options.seeds is not None:
        study = study.model_copy(update={"seeds": _seeds(options.seeds)})
    return study, default_name


def _split_places(study: read.Study, unread: Unread) -> tuple[dict[str, str], Given]:
    """Return the paths of the study's places, and the recipe values for the study's tasks.

    A place is a key that the study file defines for a path, such as `photos`. Options of the file
    use it in braces, as in `data.path={photos}/train`, and the user sets it with `photos=PATH`.

    Args:
        study: Study with the names of its places.
        unread: All keys that the user gave, except options of the study tool.

    Returns:
        First, `{place: path}` of the places that the user has set. A place set to `none` or `null`
            is not included. Second, the values of all other keys.

    Raises:
        UserError: A place has the name of an option, or an option is wrong.
    """
    for place in study.places:
        is_option = place in StudyOptions.options() or place in study_keys()
        # a study may define data= and model= (PRESETS) as places, which then replace the options
        if is_option and place not in PRESETS:
            raise UserError(
                f"places: {place}: ssl_vit has an option {place}=. Rename this key under `places`"
                " of the file."
            )
    paths, unread = unread.take(study.places)
    _check_keys(unread.keys, unread, study.places)
    places = {place: _absolute(path) for place, path in paths.items() if path.lower() not in NULLS}
    return places, _read_given(unread)


def _read_given(unread: Unread) -> Given:
    """Read the recipe values that the user sets for all tasks of a study.

    Raises:
        UserError: A value is wrong, or holds braces, which only a study's file may use.
    """
    given = unread.read()
    for key, value in given.values.items():
        if read.find_references([value]):
            raise UserError(
                f"{key}={value}: only a study's file can use names in braces, which refer to other"
                " runs. Write a value without braces."
            )
    return given


def _check_keys(keys: Iterable[str], unread: Unread, places: Collection[str]) -> None:
    """Check that keys are recipe keys that a user may set for the whole study.

    Args:
        keys: Keys to check: the keys that the user set for all runs, and swept keys.
        unread: All keys that the user gave, with their values. A key `seed` causes an error.
        places: Keys that the study file defines. An error about a misspelled key may suggest one of
            these keys.

    Raises:
        UserError: A key is unknown, or a study sets the key itself.
    """
    if "seed" in unread.keys:
        seed = unread.text("seed")
        seeds = seed if "," in seed else f"{seed},"
        raise UserError(
            f"seed={seed}: a study takes seeds=. Use `seeds={seeds}` for this seed, or `seeds=N`"
            " for N seeds."
        )
    known_options = [*map(option_name, StudyOptions.options().values()), *places]
    check_keys(keys, known=study_keys(), others=known_options)


def _plan_worth(
    options: StudyOptions, unread: Unread, may_time: bool
) -> tuple[StudyOptions, worth.WorthPlan]:
    """Plan `study/worth`, the study of whether pre-training pays off on the user's images.

    Args:
        options: Options of the study tool.
        unread: Recipe keys that the user gave, and the option `released=`.
        may_time: Whether training steps may be timed on this machine.

    Returns:
        The options with which the planned study runs, and the plan.

    Raises:
        UserError: An option is wrong, the study does not fit into the hours, or the user names
            another device than this machine.
    """
    if options.device:
        raise UserError(
            f"device={options.device}: recipe={worth.NAME} times training steps on this machine,"
            " so it cannot plan for another device. Leave device= out."
        )
    name = options.name or worth.NAME.rpartition("/")[2]
    released, unread = unread.take((RELEASED,))
    # data= and model= choose a preset and are not recipe keys
    keys = [key for key in unread.keys if key not in PRESETS]
    tool_options = [option_name(option) for option in StudyOptions.options().values()]
    check_keys(keys, others=tool_options)
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
        planned.lines.insert(
            0,
            f"planned     for parallel={planned.parallel}. With parallel={parallel}, the planned"
            " learning rates and steps stay the same. For a new plan, use another name=.",
        )
    changed = {"recipe": None, "name": name, "parallel": parallel}
    return options.model_copy(update=changed), planned


def _find_study_file(name: str | None) -> Path:
    """Return the path of a study file from its name, such as `study/gap`, or from its path.

    Raises:
        UserError: No such study exists.
    """
    # worth.NAME is only suggested: it has no file, and `parse_request` builds its study
    names = [*study_names(), worth.NAME]
    if name is None:
        raise UserError(
            f"recipe= is missing. Choose from: {', '.join(names)}. Or name a study's file."
        )
    if name in study_names():
        return RECIPES / f"{name}.yaml"
    path = parse_path(name, "recipe")
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"recipe={name}: no such file. Check the path.")
    if name in recipe_names():
        raise UserError(
            f"recipe={name}: a recipe, not a study. To compare values, type recipe={name} sweep"
            " KEY=VALUE,VALUE."
        )
    raise UserError(f"recipe={name}: not a study and not a .yaml file, {suggest(name, names)}")


def _absolute(place: str) -> str:
    """Return an existing path as an absolute path, and any other text unchanged."""
    return str(Path(place).resolve()) if exists(place) else place


def _stand_in(study: read.Study, place: str) -> str:
    """Return a made-up value for a place, a path that the user has not set, such as `photos`.

    The value is the name of the place, such as `photos`. For a place that is used for `init`, the
    value is the name in braces, such as `{weights}`. There is no file of these weights to read, and
    checks skip an option with braces.

    Args:
        study: Study that defines the place.
        place: Name of the place.
    """
    settings = (setting for run in study.runs for setting in read.settings_of(study, run))
    is_init = any(setting.options.get("init") == f"{{{place}}}" for setting in settings)
    return f"{{{place}}}" if is_init else place


def _seeds(text: str) -> tuple[int, ...]:
    """Parse `seeds=`: `3` gives seeds 0, 1 and 2, and `0,1`, `5,` and `[5]` are lists of seeds."""
    try:
        numbers = [int(part) for part in text.strip("[]").removesuffix(",").split(",")]
        is_list = "[" in text or "," in text
        return read.seeds_of(numbers if is_list else numbers[0])
    except ValueError:
        raise UserError(
            f"seeds={text}: expected a number of seeds (seeds=3), or a list without repeats"
            " (seeds=0,2)"
        ) from None
