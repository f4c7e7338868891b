"""Declare the objectives: every folder here is an objective, with a network in a file of its own.

To add an objective, add a folder whose `__init__.py` has a `DECLARATION` (recipe/declaration.py
says what a declaration may hold). No list of objectives needs to change. The targets, which say
what is predicted of a patch, are declared in targets/. This file does not import torch.
"""

import importlib
import pkgutil

from ..recipe.declaration import declare


def declare_all() -> None:
    """Declare the objectives and targets of this package, without importing their networks."""
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.ispkg:
            module = importlib.import_module(f"{__name__}.{module_info.name}")
            # A folder has DECLARATIONS (such as targets/) or a single DECLARATION
            declarations = getattr(module, "DECLARATIONS", ()) or (module.DECLARATION,)
            for declaration in declarations:
                declare(declaration)
