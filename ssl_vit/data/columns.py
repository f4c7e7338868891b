"""Which column of a table holds the images and which the labels, and what they are called."""

from typing import Any

import datasets

from ..config.schema import Data
from ..errors import UserError, suggest

IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")


def find(features: dict[str, Any], data: Data, where: str) -> tuple[str, str | None]:
    """Names of the image and the label column (None: no labels)."""
    for key, name in (
        ("data.image_column", data.image_column),
        ("data.label_column", data.label_column),
    ):
        if name is not None and name not in features:
            raise UserError(f"{key}={name}: {where} has no such column; {suggest(name, features)}")
    images = [name for name, f in features.items() if isinstance(f, datasets.Image)]
    image = data.image_column or next(
        iter(images + [n for n in IMAGE_NAMES if n in features]), None
    )
    if image is None:
        raise UserError(
            f"{where}: no column of images among {', '.join(features)}; say it with data.image_column="
        )
    if not _holds_images(features[image]):
        raise UserError(
            f"data.image_column={image}: {where} holds no images there but {features[image]}"
        )
    classes = [name for name, f in features.items() if isinstance(f, datasets.ClassLabel)]
    named = [n for n in LABEL_NAMES if n in features and _holds_labels(features[n])]
    label = data.label_column or next(
        iter([n for n in classes if n in LABEL_NAMES] + classes + named), None
    )
    if label is not None and label not in classes and not _holds_labels(features[label]):
        text = f"holds no classes, whole numbers or texts there but {features[label]}"
        raise UserError(f"data.label_column={label}: {where} {text}")
    return image, label


def _holds_images(feature: Any) -> bool:
    """Encoded images: Image, bytes, or {bytes, path} as Image is stored."""
    stored = isinstance(feature, dict) and {"bytes", "path"} <= feature.keys()
    return (
        isinstance(feature, datasets.Image)
        or stored
        or getattr(feature, "dtype", "") in ("binary", "large_binary")
    )


def _holds_labels(feature: Any) -> bool:
    return getattr(feature, "dtype", "").removeprefix("u").startswith("int") or holds_texts(feature)


def holds_texts(feature: Any) -> bool:
    """Whether labels are texts, which become the names of classes."""
    return getattr(feature, "dtype", "") in ("string", "large_string")


def class_names(features: dict[str, Any], label: str | None) -> list[str]:
    feature = features[label] if label else None
    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else []


def described(features: dict[str, Any]) -> str:
    """For the error that there are no labels."""
    listed = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
    return f" (columns: {listed}); say data.label_column= with a column of classes, whole numbers or texts"


def _kind(feature: Any) -> str:
    """A column's type, in a word."""
    return (
        "images"
        if _holds_images(feature)
        else getattr(feature, "dtype", None) or type(feature).__name__
    )
