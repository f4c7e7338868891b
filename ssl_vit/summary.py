"""How numbers, and commands to type, are told to people. No torch here."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARES = ("accuracy", "accuracy_masked", "accuracy_random", "accuracy_kept", "top1", "top5", "real")
MEASURED = ("loss", *SHARES)
TO_BEAT = {
    "entropy": "loss {:.3f} (entropy of the training colours)",
    "commonest": "accuracy on masked patches {:.1%} (commonest colour)",
    "neighbors": "{:.1%} (neighbours' mean)",
    "variance": "loss {:.3f} (the training mean)",
    "neighbors_error": "{:.3f} (neighbours' mean)",
    "chance_loss": "loss {:.3f} (guessing)",
    "chance": "accuracy {:.1%} (guessing)",
}


def typed(*words: Any) -> str:
    """A command as a shell takes it, whatever characters its words hold."""
    return shlex.join(map(str, words))


def tool(name: str) -> str:
    """A tool's file, found from the folder that the command is typed in."""
    path = ROOT / "tools" / f"{name}.py"
    return str(path.relative_to(ROOT) if Path.cwd() == ROOT else path)


def duration(seconds: float) -> str:
    """Seconds for people: 45 s, 4 min 10 s, 3 h 05 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def measured(values: Mapping[str, float]) -> str:
    """The losses and accuracies among `values`; of an accuracy that is split by kind, the parts. Joint ones as mpp/loss."""
    split = [name for name in values if f"{name}_masked" in values and name.endswith("accuracy")]
    told = [name for name in values if name.rpartition("/")[2] in MEASURED and name not in split]
    return ", ".join(_said(name.replace("_", " "), values[name]) for name in told)


def _said(name: str, value: float) -> str:
    return f"{name} {value:.1%}" if name.split("/")[-1].replace(" ", "_") in SHARES else f"{name} {value:.3f}"


def to_beat(values: Mapping[str, float]) -> str:
    """What they must beat, where `values` says so."""
    known = [(*name.rpartition("/"), value) for name, value in values.items()]
    return ", ".join(f"{part}{' ' if part else ''}{TO_BEAT[name].format(v)}" for part, _, name, v in known if name in TO_BEAT)


def sharded(facts: Mapping[str, Any]) -> str:
    """How the weights lie on the processes: "ZeRO-2 (DeepSpeed 0.19.8, 2 machines)"."""
    if facts["strategy"] == "none":
        return "not sharded"
    details = [f"DeepSpeed {facts['deepspeed']}"] if "deepspeed" in facts else []
    details += [f"{what} offloaded to {where}" for what, where in facts.get("offload", {}).items()]
    if facts["machines"] > 1:
        details.append(f"{facts['machines']} machines")
    return f"{facts['strategy']} ({', '.join(details)})" if details else facts["strategy"]
