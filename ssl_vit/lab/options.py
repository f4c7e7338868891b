"""The options of the plan tool, and what its --help says. No torch here."""

from dataclasses import dataclass

from ..config.fields import option
from ..config.tool_options import ALSO, ToolOptions
from ..config.tools import count, flag, json_flag


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ToolOptions):
    summary = "estimate time, memory and price of a run or a study"
    command = "lab.plan:main"
    recipes = ALSO
    command_line_only = ("json",)
    purpose = (
        "Estimate what a run or a study costs before it runs: parameters, FLOPs, memory, time,"
        " price, cores that decode its images; and warn of common mistakes."
    )
    examples = (
        "python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5",
        "python tools/plan.py recipe=mpp --probe",
        "python tools/plan.py recipe=study/gap device=h100",
    )
    device: str | None = option(
        None, "The device, as in device=h100; an unknown name lists them.", metavar="NAME"
    )
    processes: int = count(1, "Devices that train together.", 2**40)
    price: float | None = option(
        None, "Price of a device-hour, in any currency.", minimum=0, below=1e12, metavar="NUMBER"
    )
    zero: int = option(0, "ZeRO stage.", minimum=0, maximum=3, expected="0 (plain DDP), 1, 2 or 3")
    efficiency: float = option(
        0.4,
        "Share of the device's peak that training reaches.",
        above=0,
        maximum=1,
        expected="a share of the device's peak, above 0 and at most 1",
    )
    epochs: float | None = option(
        None, "In place of optim.steps.", above=0, below=1e9, metavar="NUMBER"
    )
    images: int | None = count(
        None, "Training images, where the data set is neither known nor here.", 2**50
    )
    probe: bool = flag("Measure the first steps on this machine.")
    json: bool = json_flag()
