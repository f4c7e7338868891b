"""Run plugins: Python files in which users declare objectives or targets. This module does not
import torch.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from ..errors import UserError
from . import declaration, schema
from .init_source import file_hash
from .keys import Values
from .parsing import parse_path

# name of the attribute of a plugin's module that holds the hash of the plugin's file
CONTENT = "__ssl_vit_content__"


def check_plugin(values: Values, plugin: str | None, path: Path) -> None:
    """Refuse a plugin that only the recipe file names, or that declares nothing.

    - A plugin is code, and recipe files come from strangers. Therefore a plugin runs only if the
      command line names the plugin.
    - If the command line names a plugin and an objective or target, the plugin must have declared
      something. Otherwise `@declare` above the class is probably missing. The later error about the
      unknown objective would not mention the file of the plugin.

    Args:
        values: {dotted key: value} from the command line.
        plugin: Plugin that the recipe file names, or None.
        path: Path of the recipe file.

    Raises:
        UserError: Only the recipe file names the plugin, or the plugin of the command line has
            declared nothing.
    """
    has_declared = any(
        declaration.is_from_plugin(type(part)) for part in declaration.all_declared()
    )
    if values.get("plugin") and {"objective", "target"} & values.keys() and not has_declared:
        text = "the file declares no objective and no target. Write @declare above the class"
        raise UserError(f"plugin={values['plugin']}: {text} (docs/extend.md).")
    if plugin and "plugin" not in values:
        raise UserError(
            f"plugin={plugin}: {path} names this plugin, but a plugin runs only if the command line"
            f" names it. If you trust {plugin}, add plugin={plugin}."
        )


def plugin_hash(kind: type) -> str:
    """Return the hash of the plugin file that defines a class.

    The hash is of the content of the file when the plugin ran. Return an empty string for a class
    of this package.
    """
    return str(getattr(sys.modules.get(kind.__module__), CONTENT, ""))


def run_plugin(plugin: str | None) -> None:
    """Run the file of a plugin, which declares objectives or targets.

    A file that already ran in this process does not run again.

    Args:
        plugin: Path of the file. If it is None or empty, nothing runs.

    Raises:
        UserError: The file does not exist, raises an error, or has changed since this process ran
            the file.
    """
    if not plugin:
        return
    path = parse_path(plugin, "plugin").resolve()
    module_name = f"ssl_vit_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        text = "no such Python file. If the file has moved, give the new path."
        raise UserError(f"plugin={plugin}: {text}")
    content_hash = file_hash(path)
    if module_name in sys.modules:
        if sys.modules[module_name].__dict__[CONTENT] != content_hash:
            text = "the file has changed since this process ran the plugin. Start Python again."
            raise UserError(f"plugin={plugin}: {text}")
        return
    module = importlib.util.module_from_spec(spec)
    module.__dict__[CONTENT] = content_hash
    declared_before = declaration.all_declared()
    try:
        # Do not use the loader. It would run an outdated .pyc file if the plugin was changed within
        # a second and has the same size as before.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        schema.all_keys()  # raises an error if the plugin declares a key that already exists
        # A plugin is a single file, so the default `build`, which imports network.py, cannot work
        default_build = declaration.ObjectiveDeclaration.build
        for objective in declaration.objectives().values():
            if type(objective).__module__ == module_name and type(objective).build is default_build:
                expected = "expected a method build(self, settings, encoder, classes)"
                raise UserError(f"{type(objective).__name__}: {expected}")
    except (Exception, SystemExit) as error:  # a user's file may raise any error
        for declared in declaration.all_declared():
            if declared not in declared_before:
                declaration.withdraw(declared.name)
        text = str(error) if isinstance(error, UserError) else repr(error)
        if isinstance(error, SyntaxError):  # the repr would show a tuple
            text = f"SyntaxError: {error}"
        raise UserError(f"plugin={plugin}: {' '.join(text.split())}") from None
    sys.modules[module_name] = module
