"""Count the classes of a run's splits, and pair the classes of two lists.

Classes with names are paired by their names, whole numbers by their value. A number and a name are
never paired: class 0 is not the first of the names "cat" and "dog".
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import UserError, suggest
from ..formatting import format_count, list_names
from ..recipe import declaration
from ..recipe.schema import Data
from .labels import WHOLE, same_numbers
from .run_splits import Splits
from .source import Source

# Classes without names are counted by the highest label: a label of 999,999,999 would give the
# classifier a billion outputs
MOST_BY_HIGHEST = 2**16

# Sentences that say in errors what to do
TO_SAME_NAMES = "Use the same class names in all splits."
TO_NUMBERS = (
    "Rename the class folders to class numbers such as 0 and 1, or name a column of class numbers"
    " with data.label_column=."
)
TO_NAMES = (
    "Rename the class folders to the class names that the weights of init= were trained with, or"
    " name a column with these class names with data.label_column=."
)


class ClassList(NamedTuple):
    """Classes of a set of labels.

    Attributes:
        names: The name of each class, starting with label 0. Empty if labels are bare numbers.
        highest: The highest label. -1 if unknown, or if no image has a label.
    """

    names: Sequence[str]
    highest: int = -1

    @classmethod
    def of(cls, images: Source) -> "ClassList":
        """Return the classes of images."""
        return cls(images.classes, images.labels.lowest_and_highest[1])

    @property
    def are_numbers(self) -> bool:
        """Return whether all classes are whole numbers: bare labels, or names such as "7".

        Classes without names are bare labels.
        """
        return all(map(WHOLE.fullmatch, self.names))

    def __str__(self) -> str:
        if self.names:
            return list_names(self.names)
        if self.highest < 0:
            return "numbers"
        return f"numbers (0 to {self.highest})"


def shared_names(lists: Mapping[str, ClassList], location: str) -> list[str]:
    """Check that all splits have the same classes, and return the class names.

    Each class number must have the same name in all splits. The names "0", "1", ... also agree with
    bare numbers in another split.

    Args:
        lists: {split: classes}. Splits without labels and names are ignored.
        location: The option that names the images, such as "data.path=photos", for the error.

    Returns:
        The class names, starting with label 0, or [] for bare numbers.

    Raises:
        UserError: A number means different classes in two splits, or one split has bare numbers and
            another split has names that are not these numbers.
    """
    lists = {
        split: classes for split, classes in lists.items() if classes.names or classes.highest >= 0
    }
    name_lists = [classes.names for classes in lists.values()]  # [] for bare numbers
    longest = max(name_lists, key=len, default=[])
    all_splits_have_names = all(name_lists)
    are_names_numbers = all(name == str(number) for number, name in enumerate(longest))
    # a split of bare numbers agrees with names only if the names are "0", "1", ...
    if same_numbers(name_lists) and (all_splits_have_names or are_names_numbers):
        return list(longest)
    classes_of_splits = " ".join(
        f"Split {split} has {classes}." for split, classes in lists.items()
    )
    raise UserError(
        f"{location}: the splits have different classes. {classes_of_splits}"
        f" {TO_SAME_NAMES if all_splits_have_names else TO_NUMBERS}"
    )


def pair_classes(
    names: Sequence[str], images: Source, init: str, place: str = "", outputs: int = 0
) -> np.ndarray | None:
    """Match the classes of images with the outputs of a trained classifier.

    Args:
        names: The classifier's class names, in the order of the outputs. Empty for bare numbers.
        images: The images to classify.
        init: Where the classifier's weights are stored (init=), for errors.
        place: The option that names the images, such as "data.path=photos", for errors.
        outputs: The number of the classifier's outputs, for errors. 0 if unknown.

    Returns:
        The number of the output for each label 0 to C - 1, int64 (C,). The number is -1 for a class
        that the classifier does not know, if no image has this class. None if the classes of both
        sides are the same, so that labels already are output numbers.

    Raises:
        UserError: Images have a class that the classifier does not know, or classes have names on
            one side and bare numbers on the other.
    """
    if list(names) == images.classes:
        return None
    classifier_classes, image_classes = ClassList(names, outputs - 1), ClassList.of(images)
    # classes can be matched in two cases: both sides have names, or both sides have numbers (bare
    # numbers, or names such as "7")
    are_named = bool(names and images.classes)
    are_numbers = classifier_classes.are_numbers and image_classes.are_numbers
    if not (are_named or are_numbers):
        raise UserError(
            f"{place}: the classes of the images are {image_classes}, and the classes of"
            f" init={init} are {classifier_classes}. Numbers cannot be matched with names."
            f" {TO_NAMES if names else TO_NUMBERS}"
        )
    if not names:  # the outputs are bare numbers, so the images' class "7" is output 7
        return np.array([int(name) for name in images.classes], np.int64)
    all_labels = np.unique(images.label_of(np.arange(len(images)))).tolist()
    labels = [label for label in all_labels if label >= 0]
    # {label: name of the class}
    if are_named:
        name_of = dict(enumerate(images.classes))
    else:  # labels are bare numbers. The classifier's name for label 7 may be "7" or "07"
        classifier_name_of = {int(name): name for name in names}
        name_of = {label: classifier_name_of.get(label, str(label)) for label in labels}
    output_of = {name: output for output, name in enumerate(names)}
    names_of_images = [name_of.get(label, str(label)) for label in labels]
    unknown = [name for name in names_of_images if name not in output_of]
    if unknown:
        raise UserError(
            f"probe.measures=top1: the classifier of init={init} does not know the test classes"
            f" {list_names(unknown)}, {suggest(unknown[0], names)}"
        )
    output_C = np.full(max(name_of, default=-1) + 1, -1, np.int64)
    for label, name in name_of.items():
        output_C[label] = output_of.get(name, -1)
    return output_C


def renumber(label: np.ndarray, output_C: np.ndarray | None) -> np.ndarray:
    """Replace labels by the numbers of a trained classifier's outputs.

    A classifier may number the same classes in another order than the images. For the outputs
    [2, 0, 1], the labels [0, 1, -1] become [2, 0, -1].

    Args:
        label: Labels of images, integers of any shape. Values below 0 (no label) stay.
        output_C: The output for each label 0 to C - 1, from `pair_classes`. None to replace
            nothing.
    """
    if output_C is None:
        return label
    return np.where(label >= 0, output_C[np.maximum(label, 0)], label)


def num_classes(splits: Splits, data: Data, objective: str) -> int:
    """Return the number of classes, or 0 for an objective that uses no labels.

    In a stream, only the first images have been read so far. The number of classes is also set in
    the stream, so that the stream refuses a later image whose label is not below this number.

    Args:
        splits: The splits of the run.
        data: The recipe's options of the images.
        objective: The name of the objective.

    Raises:
        UserError: A split has no labels, a label is out of range, the splits have different
            classes, or the highest label of unnamed classes is at least MOST_BY_HIGHEST.
    """
    if not declaration.objective(objective).labels:
        return 0
    classes = count_classes(splits, data, objective)
    if splits.stream:
        splits.stream.classes = classes
    return classes


def count_classes(splits: Splits, data: Data, objective: str) -> int:
    """Count the classes: data.classes, else the number of class names, else highest label + 1.

    Args:
        splits: The splits of the run.
        data: The recipe's options of the images.
        objective: The name of the objective, for the error.

    Raises:
        UserError: A split has no labels, a label is out of range, the splits have different classes
            (`shared_names`), or the highest label of unnamed classes is at least MOST_BY_HIGHEST.
    """
    sources = {"train": splits.train, "validation": splits.validation}
    if splits.test:
        sources["test"] = splits.test
    shared_names({split: ClassList.of(source) for split, source in sources.items()}, data.location)
    for split, source in sources.items():
        low, high = source.labels.lowest_and_highest
        if high < 0:
            raise UserError(
                f"objective={objective}: the {split} split of {data.location} has no labels. Use a"
                " folder for each class, a column of labels named with data.label_column=, or"
                f" different images (data=, data.path=, data.hub=).{source.labels.columns}"
            )
        limit = data.classes or len(source.classes) or high + 1
        if low < -1 or high >= limit:
            raise UserError(
                f"{data.location}: the {split} split has labels from {low} to {high}, but with"
                f" {format_count(limit, 'classes')} a label must be from 0 to {limit - 1}, or -1"
                " for an image without a label. Correct the labels, or set the number of classes"
                " with data.classes=."
            )
    classes = data.classes or len(splits.train.classes)
    if classes:
        return classes
    # classes have no names: find the split with the highest label
    split = max(sources, key=lambda name: sources[name].labels.lowest_and_highest[1])
    _, highest = sources[split].labels.lowest_and_highest
    if highest >= MOST_BY_HIGHEST:
        raise UserError(
            f"data={data.name}: the {split} split has labels up to {highest}. Use labels below"
            f" {MOST_BY_HIGHEST:,}, or set the number of classes with data.classes=."
        )
    return highest + 1
