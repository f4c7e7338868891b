"""How numbers are told to people. No torch here."""

from collections.abc import Mapping

MEASURED = ("loss", "accuracy_masked", "accuracy_random", "accuracy_kept")
TO_BEAT = {
    "entropy": "loss {:.3f} (entropy of the training colours)",
    "commonest": "accuracy on masked patches {:.1%} (commonest colour)",
    "neighbors": "{:.1%} (neighbours' mean)",
}


def duration(seconds: float) -> str:
    """Seconds for people: 45 s, 4 min 10 s, 3 h 05 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def measured(values: Mapping[str, float]) -> str:
    """The loss and the accuracies among `values`."""
    told = {name: values[name] for name in MEASURED if name in values}
    return ", ".join(f"{n.replace('_', ' ')} {v:.1%}" if n.startswith("accuracy") else f"{n} {v:.3f}" for n, v in told.items())


def to_beat(values: Mapping[str, float]) -> str:
    """What they must beat, where `values` says so."""
    return ", ".join(text.format(values[name]) for name, text in TO_BEAT.items() if name in values)
