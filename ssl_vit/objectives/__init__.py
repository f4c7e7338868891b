"""Objectives: a folder each, which declares itself in its `__init__.py` and has a network.

To add one, add a folder with a `DECLARATION` (recipe/declaration.py says what it may hold); nothing
else lists it. Targets, what is predicted of a patch, are declared in targets/. No torch here.
"""

import importlib
import pkgutil

from ..recipe.declaration import declare


def declare_all() -> None:
    """Declare what the folders here declare, without their networks."""
    for found in pkgutil.iter_modules(__path__):
        if found.ispkg:
            module = importlib.import_module(f"{__name__}.{found.name}")
            for declaration in getattr(module, "DECLARATIONS", ()) or (module.DECLARATION,):
                declare(declaration)
