"""Find the columns of images, labels and masks in a table."""

from collections.abc import Mapping
from typing import Any

import datasets

from ..errors import UserError, suggest
from ..recipe.schema import Data
from .labels import LABEL_NAMES, compose_unicode, usual_columns
from .source import Masks

IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
LABEL_KINDS = "classes, whole numbers, texts or lists of class numbers"
MASK_NAMES = ("mask", "masks", "annotation", "segmentation", "segmentation_mask", "label_map")
Features = Mapping[str, Any]  # {column: type}, as datasets.Features


def find_columns(features: Features, data: Data) -> tuple[str, str | None]:
    """Return the names of the image column and of the label column (None for no labels).

    data.image_column and data.label_column name the columns. If data.image_column is not set, the
    image column is the first of type Image, else the first of arrays, else a column with a usual
    name. If data.label_column is not set, the label column is the first of type ClassLabel, else a
    column of whole numbers or texts with a usual name. Lists of labels are used only if
    data.label_column names their column.

    Args:
        features: {column: type}.
        data: The recipe's options of the images.

    Raises:
        UserError: A named column does not exist, no column of images is found, the image column
            does not hold images, or the label column does not hold labels.
    """
    options = {"data.image_column": data.image_column, "data.label_column": data.label_column}
    for key, name in options.items():
        if name is not None and name not in features:
            raise UserError(
                f"{key}={name}: {data.location} has no such column, {suggest(name, features)}"
            )
    image_columns = [
        name for name, feature in features.items() if isinstance(feature, datasets.Image)
    ]
    # columns of masks also have the type Image, and are tried last
    image_columns.sort(key=lambda name: name == data.mask_column or name in MASK_NAMES)
    image_columns += [name for name, feature in features.items() if array_shape(feature)]
    image_columns += [name for name in IMAGE_NAMES if name in features]
    image = data.image_column or next(iter(image_columns), None)
    if image is None:
        raise UserError(
            f"{data.location}: found no column of images among {', '.join(features)}. Name the"
            " column of images with data.image_column=."
        )
    if not (_holds_images(features[image]) or array_shape(features[image])):
        raise UserError(
            f"data.image_column={image}: this column of {data.location} holds {features[image]},"
            " not images. Name a column of images."
        )
    class_columns = [
        name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)
    ]
    # among several columns of type ClassLabel, the first with a usual name is used
    usual_class_columns = [name for name in class_columns if name.lower() in LABEL_NAMES]
    other_columns = [name for name in usual_columns(features) if _holds_labels(features[name])]
    label_columns = usual_class_columns + class_columns + other_columns
    label = data.label_column or next(iter(label_columns), None)
    if label is not None and not (_holds_labels(features[label]) or _is_named(features[label])):
        raise UserError(
            f"data.label_column={label}: this column of {data.location} holds {features[label]}."
            f" Name a column of {LABEL_KINDS}."
        )
    return image, label


def find_masks(features: Features, image: str, data: Data) -> Masks:
    """Find the column of masks: data.mask_column, else the first column named as in MASK_NAMES.

    Args:
        features: {column: type}.
        image: The column of images, which holds no masks.
        data: The options that name columns.

    Returns:
        Masks with the name of the column ("" for no masks), and with a sentence that lists possible
        columns, for errors about missing masks. The caller sets `Masks.store`.

    Raises:
        UserError: The column data.mask_column does not exist, holds no images, or is the column of
            images.
    """
    choices = [
        name for name, feature in features.items() if _holds_images(feature) and name != image
    ]
    hint = f"No column can hold masks (columns: {', '.join(features)})"
    if choices:
        hint = f"Name a column of masks with data.mask_column= (columns: {', '.join(choices)})"
    wanted = data.mask_column
    if wanted is None:
        usual_column = next((name for name in MASK_NAMES if name in choices), "")
        return Masks(usual_column, hint)
    if wanted not in features:
        raise UserError(
            f"data.mask_column={wanted}: {data.location} has no such column,"
            f" {suggest(wanted, choices)}"
        )
    if wanted not in choices:
        content = "the images" if wanted == image else features[wanted]
        raise UserError(
            f"data.mask_column={wanted}: this column of {data.location} holds {content}. {hint}."
        )
    return Masks(wanted, hint)


def check_group(features: Features, data: Data) -> None:
    """Check that the column data.group exists and holds a single text or number for each image.

    Args:
        features: {column: type}.
        data: The recipe's options, with data.group.

    Raises:
        UserError: The column does not exist, or holds images or lists.
    """
    group = str(data.group)
    if group not in features:
        raise UserError(
            f"data.group={group}: {data.location} has no such column, {suggest(group, features)}"
        )
    feature = features[group]
    # encoded images of type bytes are single values, too
    is_single_value = isinstance(feature, datasets.Value | datasets.ClassLabel)
    if not is_single_value or _holds_images(feature):
        raise UserError(
            f"data.group={group}: this column of {data.location} holds {feature}. Name a column of"
            " texts or whole numbers."
        )


def array_shape(feature: Any) -> tuple[int | None, ...] | None:
    """Return the shape of a column's arrays (`datasets.Array3D`), or None for another type.

    A side that differs between the arrays is None in the shape, such as (None, None, 3).
    """
    return tuple(feature.shape) if isinstance(feature, datasets.Array3D) else None


def holds_lists(feature: Any) -> bool:
    """Return whether a column holds lists of class numbers.

    Args:
        feature: The type of the column, from `datasets`.
    """
    if not isinstance(feature, datasets.List | datasets.LargeList):
        return False
    item = feature.feature
    if isinstance(item, datasets.ClassLabel):
        return True
    return isinstance(item, datasets.Value) and item.dtype.startswith(("int", "uint"))


def _holds_images(feature: Any) -> bool:
    """Return whether a column holds encoded images: of type Image, bytes, or {bytes, path}."""
    if isinstance(feature, datasets.Image):
        return True
    if isinstance(feature, dict):
        return {"bytes", "path"} <= feature.keys()
    return getattr(feature, "dtype", "") in ("binary", "large_binary")


def _holds_labels(feature: Any) -> bool:
    """Return whether a column holds whole numbers or texts."""
    type_name = getattr(feature, "dtype", "")
    return type_name.startswith(("int", "uint")) or holds_texts(feature)


def _is_named(feature: Any) -> bool:
    """Return whether a column holds classes with names, or lists of class numbers."""
    return isinstance(feature, datasets.ClassLabel) or holds_lists(feature)


def holds_texts(feature: Any) -> bool:
    """Return whether a column holds texts, which are class names if the column holds labels."""
    return getattr(feature, "dtype", "") in ("string", "large_string")


def class_names(features: Features, label: str | None) -> list[str]:
    """Return the names of the classes, in the order of the class numbers.

    Only columns of the type `datasets.ClassLabel`, or of lists of this type, have names. For other
    columns, and without a label column, return an empty list.

    Args:
        features: Types of all columns, from `datasets`.
        label: Name of the label column, or None.
    """
    if not label:
        return []
    feature = features[label]
    if holds_lists(feature):
        feature = feature.feature  # type of the items
    if not isinstance(feature, datasets.ClassLabel):
        return []
    return [compose_unicode(name) for name in feature.names]


def list_columns(features: Features) -> str:
    """Describe the columns and their types, for the error that there are no labels.

    The text begins with a space, because it follows another sentence.
    """
    columns = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
    return f" A label column holds {LABEL_KINDS}. The columns are {columns}."


def _kind(feature: Any) -> str:
    """Describe what a column holds in a few words, such as "images" or "int64"."""
    if _holds_images(feature) or array_shape(feature):
        return "images"
    if holds_lists(feature):
        return "lists of class numbers"
    return getattr(feature, "dtype", None) or type(feature).__name__
