"""Warn when a run's features collapse, from the rows of metrics. No torch."""

from collections.abc import Callable, Iterable, Mapping

from ..callbacks import Callback, Row

RANK, COSINE = "features/effective_rank", "features/mean_cosine"
INFORMATION = {"features/information": "images", "features/patch_information": "patches"}
LEAST_RANK = 0.25  # as a share of the first effective rank
MOST_COSINE = 0.99
LEAST_INFORMATION = 0.05  # as a share of log K
IN_A_ROW = 2  # checks after warm-up


class CollapseAlarm(Callback):
    """Callback that warns when the features of the encoder may be collapsing.

    After warm-up, the callback warns if a measure of the features is out of bounds at two checks in
    a row. The next warning about the measure follows only after a check within the bounds.

    Args:
        warmup: Number of steps without warnings.
        known: Rows of metrics.jsonl so far. The first effective rank is the reference for later
            ranks.
        warn: Function that is called with the text of a warning.
    """

    def __init__(self, warmup: int, known: Iterable[Row], warn: Callable[[str], None]) -> None:
        self.warmup = warmup
        self.warn: Callable[[str], None] = lambda text: None  # be silent about known rows
        self.first: Row | None = None
        self.in_a_row: dict[str, int] = {}
        for row in known:
            self.on_row(row)
        self.warn = warn

    def on_row(self, row: Row) -> None:
        if RANK not in row:
            return
        if self.first is None:
            self.first = row
        if row["step"] < self.warmup or row["step"] == self.first["step"]:
            return
        out_of_bounds = self._out_of_bounds(row)
        # A measure within the bounds is dropped, so its count begins again at 0
        self.in_a_row = {name: self.in_a_row.get(name, 0) + 1 for name in out_of_bounds}
        for name, finding in out_of_bounds.items():
            # `==` and not `>=`, so that a measure that stays out of bounds causes one warning
            if self.in_a_row[name] == IN_A_ROW:
                self.warn(f"step {row['step']}: features may be collapsing: {finding}")

    def _out_of_bounds(self, row: Row) -> Mapping[str, str]:
        """Find the measures of the features that are out of bounds.

        All objectives have two measures: the effective rank as a share of the first value, and the
        mean cosine between the features of two images. DINO and iBOT also have the mutual
        information between images (or patches) and the prototypes that the teacher chooses, as a
        share of the maximum.

        Returns:
            `{name of the measure: text with the value and the bound}`.
        """
        assert self.first is not None
        rank, first_rank = row[RANK], self.first[RANK]
        findings = {}
        # `not >=` instead of `<`, so that NaN counts as out of bounds
        if not rank >= LEAST_RANK * first_rank:
            findings[RANK] = (
                f"the effective rank was {first_rank:.1f} at step {self.first['step']} and is now "
                f"{rank:.1f}, which is not above {LEAST_RANK:.0%} of the first value"
            )
        if not row[COSINE] <= MOST_COSINE:
            findings[COSINE] = (
                f"the mean cosine between features of two images is {row[COSINE]:.4f}, which is "
                f"over {MOST_COSINE:g}"
            )
        for name, inputs in INFORMATION.items():
            share = row.get(name)
            if share is not None and not share >= LEAST_INFORMATION:
                findings[name] = (
                    f"the mutual information between {inputs} and their prototypes is "
                    f"{share:.1%} of its maximum, which is under {LEAST_INFORMATION:.0%}"
                )
        return findings
