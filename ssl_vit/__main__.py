"""The command line of every tool: `python -m ssl_vit TOOL key=value ...`, installed as `ssl-vit`.

python -m ssl_vit pretrain recipe=mpp
accelerate launch -m ssl_vit pretrain recipe=mpp        (several processes)
ssl-vit study recipe=study/gap

tools/NAME.py of a checkout are the same commands.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from .errors import UserError, guard_streams, report_errors, suggest
from .jobs.help import FLAGS, tool_help


class Tool(NamedTuple):
    """`module` (below ssl_vit) has the function `name`, which takes the options and returns the
    exit status or None."""

    summary: str
    module: str
    name: str = "main"
    long: bool = False  # goes on where standard output can no longer be written


TOOLS = {
    "pretrain": Tool("pre-train an encoder", "jobs.cli", "pretrain", long=True),
    "finetune": Tool("fine-tune an encoder on labels", "jobs.cli", "finetune", long=True),
    "evaluate": Tool("measure a frozen encoder", "jobs.cli", "evaluate", long=True),
    "study": Tool("run many runs that depend on one another", "lab.study_tool", long=True),
    "report": Tool("write the page of a run, a study or a folder of runs", "lab.report_tool"),
    "runs": Tool("list the runs of a folder, rank them, remove their checkpoints", "lab.runs_tool"),
    "figures": Tool("draw what encoders have learned", "jobs.draw_figures"),
    "embed": Tool("write the features of every image of a data set", "jobs.embed", long=True),
    "overlap": Tool("find a study's test images among its training images", "data.find_overlap"),
    "plan": Tool("estimate time, memory and price of a run or a study", "lab.plan_tool"),
    "shards": Tool("convert images into pre-resized parquet shards", "data.make_shards"),
    "prepare": Tool("write VTAB-1k's tasks as parquet files", "evaluation.prepare_vtab"),
    "export": Tool("convert a run's encoder to transformers or ONNX", "models.interop"),
    "push": Tool("upload a run to the Hugging Face Hub", "hub.push", long=True),
    "pull": Tool("download an uploaded training state", "hub.pull"),
}


def usage() -> str:
    """The tools, one a line."""
    lines = [f"  {name:<9} {tool.summary}" for name, tool in TOOLS.items()]
    head = ["usage: ssl-vit TOOL [key=value ...]", "       ssl-vit TOOL --help", ""]
    return "\n".join([*head, *lines])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tool that `argv` (default: the process's own) names, and exit with its status."""
    # Before torch is imported: OpenMP threads that spin while they wait slow down a machine that
    # runs anything else (docs/log.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    tool = TOOLS.get(name)
    guard_streams(lasting=tool is not None and tool.long)
    with report_errors():
        if name in FLAGS:
            print(usage())
            status = 0 if arguments else 2
        elif tool is None:
            raise UserError(f"{name}: unknown tool; {suggest(name, TOOLS)}")
        elif not FLAGS.isdisjoint(arguments[1:]):
            print(tool_help(name, arguments[1:]))
            status = 0
        else:
            run = getattr(import_module(f"{__package__}.{tool.module}"), tool.name)
            status = run(arguments[1:])
    sys.exit(status)  # out here, so that report_errors sees the end of the output


if __name__ == "__main__":
    main()
