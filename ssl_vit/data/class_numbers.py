"""How many classes the labels of a run's splits have."""

from ..errors import UserError
from ..recipe import declaration
from ..recipe.schema import Data
from .labels import same_numbers
from .run_splits import Splits

# Classes without names are counted by the highest label: one of 999,999,999 would make a head of a
# billion of them
MOST_BY_HIGHEST = 2**16


def num_classes(splits: Splits, data: Data, objective: str) -> int:
    """The number of classes, for an objective that uses labels; 0 for others. A stream, of which
    the first images alone were seen, refuses labels beyond it from then on.

    Raises:
        UserError: as `count_classes`.
    """
    if not declaration.objective(objective).labels:
        return 0
    classes = count_classes(splits, data, objective)
    if splits.stream:
        splits.stream.classes = classes
    return classes


def count_classes(splits: Splits, data: Data, objective: str) -> int:
    """The number of classes: data.classes, else the number of their names, else of the labels.

    Raises:
        UserError: a split has no labels, or one is out of range; the message names `objective`.
            A label's number is another class in another split. Or the highest label is
            MOST_BY_HIGHEST or above.
    """
    named = {"train": splits.train, "validation": splits.validation}
    if splits.test:
        named["test"] = splits.test
    lists = {split: source.classes for split, source in named.items() if source.classes}
    if not same_numbers(list(lists.values())):
        parts = [f"{split}: {', '.join(classes[:3])} ..." for split, classes in lists.items()]
        raise UserError(f"{data.location}: its splits name different classes; {'; '.join(parts)}")
    for split, source in named.items():
        low, high = source.labels.lowest_and_highest
        if high < 0:
            raise UserError(
                f"objective={objective}: {data.location} has no labels in its {split} split"
                f"{source.labels.columns}; expected a folder for each class, a column of labels, or"
                " other images: data=, data.path=, data.hub="
            )
        known = data.classes or len(source.classes) or high + 1
        if low < -1 or high >= known:
            raise UserError(
                f"{data.location}: labels from {low} to {high} in its {split} split, "
                f"with {known} classes"
            )
    classes = data.classes or len(splits.train.classes)
    if classes:
        return classes
    split, source = max(named.items(), key=lambda one: one[1].labels.lowest_and_highest[1])
    highest = source.labels.lowest_and_highest[1]
    if highest >= MOST_BY_HIGHEST:
        raise UserError(
            f"data={data.name}: labels up to {highest} in its {split} split; expected numbers below"
            f" {MOST_BY_HIGHEST:,}, or data.classes="
        )
    return highest + 1
