"""Whether a run still helps: the last change of what its encoder is measured by. No torch here."""

from collections.abc import Iterator

from .. import stats
from ..metrics import find_metric
from .blocks import Block, Table, Text
from .run_record import RunRecord

PROBE = "probe/"
CHECKS = (
    "features/effective_rank",
    "features/mean_cosine",
    "features/information",
    "features/patch_information",
)


def still_helping(record: RunRecord) -> Iterator[Block]:
    """The last change of each probe with its interval; what features were at first and are now."""
    rows = list(_changes(record))
    if rows:
        head = ["probe", "from", "to", "change", "95% interval", "still helping?"]
        yield Table(head, rows, labels=1)
        yield Text(
            "Intervals are Newcombe's, of two shares of independent images; both are of the same"
            " ones, so they are rather too wide."
        )
    checks = [row for row in record.rows if CHECKS[0] in row]
    if len(checks) > 1:
        first, last = checks[0], checks[-1]
        head = ["features", f"step {first['step']:,}", f"step {last['step']:,}"]
        names = [name for name in CHECKS if name in first and name in last]
        found = [(find_metric(name), first[name], last[name]) for name in names]
        yield Table(head, [[one.words, one.text(a), one.text(b)] for one, a, b in found], labels=1)


def _changes(record: RunRecord) -> Iterator[list[str]]:
    names = dict.fromkeys(name for row in record.rows for name in row if name.startswith(PROBE))
    for name in names:
        measured = [(row["step"], row[name]) for row in record.rows if name in row][-2:]
        images = _images(record, name)
        if len(measured) < 2 or not images:
            continue
        (before, one), (after, other) = measured
        if not (0 <= one <= 1 and 0 <= other <= 1):
            continue
        change = stats.difference(one, images, other, images)
        yield [
            find_metric(name.removeprefix(PROBE)).words,
            f"{one:.1%} at step {before:,}",
            f"{other:.1%} at step {after:,}",
            f"{100 * (other - one):+.1f} points",
            f"{100 * change.low:+.1f} to {100 * change.high:+.1f}",
            _verdict(change),
        ]


def _images(record: RunRecord, name: str) -> int | None:
    """How many images a probe is measured on."""
    found = record.result.metrics.get(name.replace("/", "_")) if record.result else None
    return found.n if found is not None else record.measured_on.get("validation")


def _verdict(change: stats.Interval) -> str:
    if change.low > 0:
        return "yes"
    return "no, it gets worse" if change.high < 0 else "not told on so few images"
