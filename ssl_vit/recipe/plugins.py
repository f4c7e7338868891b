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

# attribute of a plugin's module with the hash of the file that was run
CONTENT = "__ssl_vit_content__"


def check_plugin(values: Values, plugin: str | None, path: Path) -> None:
    """Check that the command line names the plugin of the recipe file, and that the plugin declares
    something.

    The command line must name the plugin because recipe files are passed on, and a plugin is code.

    If the command line names a plugin and an objective or target, but the plugin declares nothing,
    the call of declare(...) is probably missing in the plugin. The error says so, because "unknown
    objective" would not point to the file.

    Args:
        values: {dotted key: value} from the command line.
        plugin: Plugin that the recipe file names; None if it names none.
        path: The recipe file.

    Raises:
        UserError: The command line does not name the plugin, or the plugin declares nothing.
    """
    declared = any(declaration.is_from_plugin(type(part)) for part in declaration.all_declared())
    if values.get("plugin") and {"objective", "target"} & values.keys() and not declared:
        text = "the file declares no objective and no target. Call declare(...) in the file"
        raise UserError(f"plugin={values['plugin']}: {text} (docs/extend.md).")
    if plugin and "plugin" not in values:
        raise UserError(
            f"plugin={plugin}: {path} names this plugin, but a plugin runs only if the command line"
            f" names it. If you trust {plugin}, add plugin={plugin}."
        )


def plugin_hash(kind: type) -> str:
    """Return the hash of the plugin file that defines a class, or an empty string for a class of
    this package.
    """
    return str(getattr(sys.modules.get(kind.__module__), CONTENT, ""))


def run_plugin(plugin: str | None) -> None:
    """Run the file of a plugin, which declares objectives or targets. Each file runs once per
    process.

    Raises:
        UserError: The file does not exist or fails, or has changed since this process ran it.
    """
    if not plugin:
        return
    path = parse_path(plugin, "plugin").resolve()
    name = f"ssl_vit_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        text = "no such Python file. If the file has moved, give the new path."
        raise UserError(f"plugin={plugin}: {text}")
    content = file_hash(path)
    if name in sys.modules:
        if sys.modules[name].__dict__[CONTENT] != content:
            text = "the file has changed since this process ran the plugin. Start Python again."
            raise UserError(f"plugin={plugin}: {text}")
        return
    module = importlib.util.module_from_spec(spec)
    module.__dict__[CONTENT] = content
    before = declaration.all_declared()
    try:
        # Not with the loader, because its compiled copy would be used for a file of the same size
        # that was changed within a second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        schema.all_keys()  # checks that the keys of the plugin are not taken
        default = declaration.ObjectiveDeclaration.build  # reads network.py next to the declaration
        for objective in declaration.objectives().values():
            if type(objective).__module__ == name and type(objective).build is default:
                expected = "expected a method build(self, settings, encoder, classes)"
                raise UserError(f"{type(objective).__name__}: {expected}")
    except (Exception, SystemExit) as error:  # anything that is wrong in a user's file
        for declared in declaration.all_declared():
            if declared not in before:
                declaration.withdraw(declared.name)
        text = str(error) if isinstance(error, UserError) else repr(error)
        if isinstance(error, SyntaxError):  # the repr of a SyntaxError is a tuple
            text = f"SyntaxError: {error}"
        raise UserError(f"plugin={plugin}: {' '.join(text.split())}") from None
    sys.modules[name] = module
