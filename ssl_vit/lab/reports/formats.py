"""Numbers of a report as text, alike in tables and sentences. No torch here."""

from ...formatting import FEW_IMAGES, NOT_COUNTED, format_share
from ...stats import Interval, SeedSummary
from .axes import CURVE_OF
from .measures import Measure

NONE = "-"
SEEDS = "95%, seeds"  # over the column of an interval
BOTH = "95%, seeds and images"
# Columns that a page shows after values, intervals and differences, for which a phone has room
BEHIND = frozenset({"measure", "images", "n", "sd", BOTH})


def number(value: float, percent: bool = True, signed: bool = False) -> str:
    """A share in percent with two digits, any other value with three."""
    shown = round(100 * value if percent else value, 9)  # equal ones alike, whatever their last bit
    return f"{shown:{'+' if signed else ''}z.{2 if percent else 3}f}"


def whole(count: float | None) -> str:
    return NONE if count is None else f"{count:,.0f}"


def two_digits(value: float | None, signed: bool = False) -> str:
    """Two digits after the point."""
    return NONE if value is None else f"{value:{'+' if signed else ''}.2f}"


def three_figures(value: float | None) -> str:
    """As sizes of any order are written."""
    return NONE if value is None else f"{value:.3g}"


def exaflop(value: float | None) -> str:
    return NOT_COUNTED if value is None else three_figures(value)


def amount(value: float, percent: bool = True) -> str:
    """A number with its unit."""
    return number(value, percent) + ("%" if percent else "")


def points(value: float, percent: bool = True) -> str:
    """A difference with its unit."""
    return number(value, percent, signed=True) + (" points" if percent else "")


def span(interval: Interval | None, percent: bool = True, signed: bool = False) -> str:
    if interval is None:
        return NONE
    return f"{number(interval.low, percent, signed)} to {number(interval.high, percent, signed)}"


def deviation(found: SeedSummary, percent: bool = True) -> str:
    return NONE if found.sd is None else number(found.sd, percent)


def shown_interval(found: SeedSummary, measure: Measure) -> Interval | None:
    """A mean's interval where it tells something: none of a share that goes beyond 0 or 100%, nor
    of one on few images that all seeds agree on."""
    interval = found.interval
    if interval is None or not measure.percent:
        return interval
    few = measure.images is not None and measure.images < FEW_IMAGES
    if interval.low < 0 or interval.high > 1 or (few and not found.sd):
        return None
    return interval


def summary(found: SeedSummary, measure: Measure, signed: bool = False) -> list[str]:
    """n, mean, sd and interval of a measure, as the cells of a row."""
    return [
        str(found.n),
        number(found.mean, measure.percent, signed),
        deviation(found, measure.percent),
        span(found.interval if signed else shown_interval(found, measure), measure.percent, signed),
    ]


def corrected_level(family: int) -> str:
    """Of which level each of a family of intervals is, so that all hold together with 95%."""
    return f"{1 - 0.05 / family:.2%}"


def factor(value: float) -> str:
    """A number of times, with two digits."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def short_place(place: float, of: str) -> str:
    """A place along a curve over `of`: a share of labels or pre-training images, or exaFLOP."""
    return three_figures(place) if of == "compute" else format_share(place)


def format_place(place: float, of: str) -> str:
    """`short_place` with what it is of."""
    return f"{short_place(place, of)} {'' if of == 'compute' else 'of the '}{CURVE_OF[of]}"


def with_values(head: list[str], rows: list[list[str]], always: int) -> list[list[str]]:
    """The head and the rows, without columns of which no row has a value; the first ones stay."""
    kept = [i for i in range(len(head)) if i < always or any(row[i] != NONE for row in rows)]
    return [[row[i] for i in kept] for row in (head, *rows)]


def unit(measure: Measure) -> str:
    return f"{measure.label}, %" if measure.percent else measure.label


def difference_of(measure: Measure) -> str:
    """What a difference on a measure is one of, as positive is always better."""
    if measure.higher:
        return measure.label
    return f"{measure.label} with its sign reversed, as lower is better"
