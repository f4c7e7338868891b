"""Run any tool from the command line: `python -m ssl_vit TOOL key=value ...`, or `ssl-vit`.

python -m ssl_vit pretrain recipe=mpp
accelerate launch -m ssl_vit pretrain recipe=mpp        (several processes)
ssl-vit study recipe=study/gap

tools/NAME.py of a checkout are the same commands.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .errors import UserError, report_errors, suggest
from .formatting import typed_command
from .lab import options as lab_options
from .lab.study.options import WORTH, WORTH_TITLE, StudyOptions
from .recipe import recipe_files, tools
from .recipe.help import tool_help
from .recipe.parsing import exists
from .recipe.schema import all_keys
from .recipe.tool import ToolOptions
from .recipe.words import NAMED

FLAGS = frozenset({"-h", "--help"})
ALL = "--all"
TOOLS: dict[str, type[ToolOptions]] = {
    "pretrain": tools.PretrainOptions,
    "finetune": tools.FinetuneOptions,
    "evaluate": tools.EvaluateOptions,
    "study": StudyOptions,
    "report": lab_options.ReportOptions,
    "runs": lab_options.RunsOptions,
    "figures": tools.FigureOptions,
    "embed": tools.EmbedOptions,
    "plan": lab_options.PlanOptions,
    "export": tools.ExportOptions,
    "push": tools.PushOptions,
    "pull": tools.PullOptions,
}


def usage(every: bool = False) -> str:
    """Return a help text that lists the tools and recipes, each on a line.

    By default, only the recipes that run without further options are listed.

    Args:
        every: Whether to list all recipes, and also all studies.
    """
    recipes = recipe_files.recipe_names() if every else recipe_files.first_recipes()
    lines = [
        "usage: ssl-vit TOOL [key=value ...]",
        "       ssl-vit TOOL --help",
        f"       ssl-vit {ALL}",
        "",
        *_columns({name: tool.summary for name, tool in TOOLS.items()}),
        "",
        "Recipes, as in ssl-vit pretrain recipe=mpp" + ("" if every else f" ({ALL} lists all)"),
        *_columns({name: recipe_files.summary(name) for name in recipes}),
    ]
    if every:
        # study/worth (WORTH) has no recipe file, because it is built from the user's options
        summaries = {name: recipe_files.summary(name) for name in recipe_files.study_names()}
        studies = _columns({WORTH: WORTH_TITLE} | summaries)
        lines += ["", "Studies, as in ssl-vit study recipe=study/gap", *studies]
    return "\n".join(lines)


def _columns(rows: dict[str, str]) -> list[str]:
    """Format `{name: text}` as lines of two aligned columns.

    For example, `{"runs": "list", "pull": "get"}` gives "  runs  list" and "  pull  get".
    """
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {text}" for name, text in rows.items()]


def _check_words(name: str, words: Sequence[str]) -> None:
    """Refuse arguments of a tool that are another tool's name or option.

    For example, `pretrain top=3` is refused, because `top` is an option of `embed`.

    The arguments of `study` and `plan` are not checked, because the file of a study may define
    further options.

    Args:
        name: Name of the tool.
        words: Arguments of the tool.

    Raises:
        UserError: An argument is the name of a tool or an option of another tool.
    """
    tool = TOOLS[name]
    if tool is StudyOptions or tool is lab_options.PlanOptions:
        return
    known_keys = {*tool.options(), *all_keys(), *NAMED}
    for word in words:
        key = word.removeprefix("--").partition("=")[0]
        tools_with_key = [
            other for other, options in TOOLS.items() if key in (other, *options.options())
        ]
        # Some tools (`positional`) take a value without a key. Such a value is an existing path or
        # has no `=`, and may be spelled like a tool or an option.
        is_positional = tool.positional and (exists(word) or word == key)
        if key not in known_keys and tools_with_key and not is_positional:
            help_command = typed_command(tools_with_key[0], "--help")
            if key in TOOLS:
                raise UserError(
                    f"{word}: {key} is a tool, and {name} has no such option. Type {help_command}"
                )
            raise UserError(
                f"{word}: {key} is an option of {', '.join(tools_with_key)}, and {name} has no such"
                f" option. Type {help_command}"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tool named by the first argument, and exit.

    Args:
        argv: Arguments of the command line. Default: `sys.argv[1:]`.
    """
    # Set this before torch is imported. By default, waiting OpenMP threads spin, which slows down
    # all other processes of the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # At exit, Python would run the garbage collector over all objects several times, for a second,
    # although the system frees the memory anyway. gc.freeze hides the objects from the collector.
    # Register gc.freeze before all other functions, so that it is called after them.
    atexit.register(gc.freeze)
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    tool = TOOLS.get(name)
    for output in ("stdout", "stderr"):
        if getattr(sys, output) is None:  # the process was started with this output closed
            setattr(sys, output, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with report_errors():
        if name in FLAGS or name == ALL:
            print(usage(every=name == ALL))
            status = 0 if arguments else 2
        elif tool is None:
            raise UserError(f"{name}: unknown tool, {suggest(name, TOOLS)}")
        elif not FLAGS.isdisjoint(arguments[1:]):
            print(tool_help(tool, [word for word in arguments[1:] if word not in FLAGS]))
            status = 0
        else:
            _check_words(name, arguments[1:])
            module, _, function = tool.command.partition(":")
            run = getattr(import_module(f"{__package__}.{module}"), function)
            status = run(arguments[1:])
    # Exit only after the `with` block: at its end, report_errors flushes the output, and reports an
    # error if this fails.
    sys.exit(status)


if __name__ == "__main__":
    main()
