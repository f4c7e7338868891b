"""Find the columns of images, labels and masks in a table."""

from collections.abc import Mapping
from typing import Any

import datasets

from ..errors import UserError, suggest
from ..recipe.schema import Data
from .labels import LABEL_NAMES, composed, usual_columns
from .source import Masks

IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
LABEL_KINDS = "classes, whole numbers, texts or lists of class numbers"
MASK_NAMES = ("mask", "masks", "annotation", "segmentation", "segmentation_mask", "label_map")
Features = Mapping[str, Any]  # {column: type}, as datasets.Features


def find(features: Features, data: Data) -> tuple[str, str | None]:
    """Return the names of the image column and the label column (None for no labels).

    data.image_column and data.label_column come first, then the types of the columns, then the
    usual names. Lists of labels are used only where data.label_column names their column.

    Raises:
        UserError: A named column does not exist, no column holds images, or a column has another
            type.
    """
    for key, name in (
        ("data.image_column", data.image_column),
        ("data.label_column", data.label_column),
    ):
        if name is not None and name not in features:
            raise UserError(
                f"{key}={name}: {data.location} has no such column, {suggest(name, features)}"
            )
    images = [name for name, f in features.items() if isinstance(f, datasets.Image)]
    images.sort(key=lambda name: name == data.mask_column or name in MASK_NAMES)
    images += [name for name, feature in features.items() if array_shape(feature)]
    images += [name for name in IMAGE_NAMES if name in features]
    image = data.image_column or next(iter(images), None)
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
    classes = [name for name, f in features.items() if isinstance(f, datasets.ClassLabel)]
    usual = [name for name in classes if name.lower() in LABEL_NAMES]
    named = [name for name in usual_columns(features) if _holds_labels(features[name])]
    label = data.label_column or next(iter(usual + classes + named), None)
    if label is not None and not _holds_labels(features[label]) and not _is_named(features[label]):
        raise UserError(
            f"data.label_column={label}: this column of {data.location} holds {features[label]}."
            f" Name a column of {LABEL_KINDS}."
        )
    return image, label


def find_masks(features: Features, image: str, data: Data) -> Masks:
    """Return the column of masks: data.mask_column, else the first column with a usual name.

    Raises:
        UserError: There is no such column, or it holds no images.
    """
    choices = [name for name, f in features.items() if _holds_images(f) and name != image]
    text = f"No column can hold masks (columns: {', '.join(features)})"
    if choices:
        text = f"Name a column of masks with data.mask_column= (columns: {', '.join(choices)})"
    wanted = data.mask_column
    if wanted is None:
        return Masks(next((name for name in MASK_NAMES if name in choices), ""), text)
    if wanted not in features:
        raise UserError(
            f"data.mask_column={wanted}: {data.location} has no such column,"
            f" {suggest(wanted, choices)}"
        )
    if wanted not in choices:
        content = "the images" if wanted == image else features[wanted]
        raise UserError(
            f"data.mask_column={wanted}: this column of {data.location} holds {content}. {text}."
        )
    return Masks(wanted, text)


def check_group(features: Features, data: Data) -> None:
    """Check that the training images have the column of data.group, with a single value each.

    Raises:
        UserError: There is no such column, or it holds images or lists.
    """
    group = str(data.group)
    if group not in features:
        raise UserError(
            f"data.group={group}: {data.location} has no such column, {suggest(group, features)}"
        )
    feature = features[group]
    if not isinstance(feature, datasets.Value | datasets.ClassLabel) or _holds_images(feature):
        raise UserError(
            f"data.group={group}: this column of {data.location} holds {feature}. Name a column of"
            " texts or whole numbers."
        )


def array_shape(feature: Any) -> tuple[int | None, ...] | None:
    """Return the shape of the arrays (`datasets.Array3D`) in a column, or None without arrays.

    A side that differs between the arrays is None.
    """
    return tuple(feature.shape) if isinstance(feature, datasets.Array3D) else None


def holds_lists(feature: Any) -> bool:
    """Return whether a column holds lists of class numbers."""
    if not isinstance(feature, datasets.List | datasets.LargeList):
        return False
    inner = feature.feature
    numbers = isinstance(inner, datasets.Value) and inner.dtype.removeprefix("u").startswith("int")
    return numbers or isinstance(inner, datasets.ClassLabel)


def _holds_images(feature: Any) -> bool:
    """Return whether a column holds encoded images.

    They may be stored as Image, as bytes, or as {bytes, path}.
    """
    if isinstance(feature, datasets.Image):
        return True
    if isinstance(feature, dict):
        return {"bytes", "path"} <= feature.keys()
    return getattr(feature, "dtype", "") in ("binary", "large_binary")


def _holds_labels(feature: Any) -> bool:
    return getattr(feature, "dtype", "").removeprefix("u").startswith("int") or holds_texts(feature)


def _is_named(feature: Any) -> bool:
    """Return whether a column holds classes with names, or lists of class numbers."""
    return isinstance(feature, datasets.ClassLabel) or holds_lists(feature)


def holds_texts(feature: Any) -> bool:
    """Return whether labels are texts, which become the names of classes."""
    return getattr(feature, "dtype", "") in ("string", "large_string")


def class_names(features: Features, label: str | None) -> list[str]:
    feature = features[label] if label else None
    if feature is not None and holds_lists(feature):
        feature = feature.feature
    if not isinstance(feature, datasets.ClassLabel):
        return []
    return list(map(composed, feature.names))


def described(features: Features) -> str:
    """List the columns with types, for the error that there are no labels."""
    listed = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
    return f" A label column holds {LABEL_KINDS}. The columns are {listed}."


def _kind(feature: Any) -> str:
    """Return what a column holds, in a few words."""
    if _holds_images(feature) or array_shape(feature):
        return "images"
    if holds_lists(feature):
        return "lists of class numbers"
    return getattr(feature, "dtype", None) or type(feature).__name__
