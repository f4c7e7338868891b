"""Resolve words of a command line to a recipe or a study, as the tools do."""

from collections.abc import Iterable, Mapping
from typing import Any

from ssl_vit.lab.study import request
from ssl_vit.recipe import given, load
from ssl_vit.recipe.given import Arguments
from ssl_vit.recipe.load import Resolved
from ssl_vit.recipe.schema import Recipe


def resolve(words: Iterable[str], here: bool = True) -> Recipe:
    """Return the recipe of words such as recipe=mpp."""
    return resolved(words, here).recipe


def resolved(words: Iterable[str], here: bool = True) -> Resolved:
    """Return the recipe of words, with the origin of each value."""
    return load.resolve(given.from_words(words), here)


def resolve_encoder(place: str, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe for loading an encoder."""
    return load.resolve_encoder(place, given.from_values(values))


def parse_request(words: Iterable[str], *more: Any, **options: Any) -> request.StudyRequest:
    """Return the study that words such as recipe=study/gap ask for."""
    return request.parse_request(Arguments([*words]), *more, **options)


def parse_python(options: Any = (), /, **keywords: Any) -> request.StudyRequest:
    """Return the study that Python code asks for, as in ssl_vit.study(recipe="mpp", sweep={...}).

    No images are looked for.
    """
    return request.parse_request(given.python_arguments(options, keywords), look=False)
