"""The package's I-JEPA as a plugin in one file, under a name of its own: made of the two files of
its folder, with nothing but names and imports changed, so that both forms learn the same."""

import re
import textwrap
from pathlib import Path

from helpers.launching import ROOT

NAME = "own_jepa"
FOLDER = ROOT / "ssl_vit" / "objectives" / "ijepa"
# How a module of the folder names others -> how a file elsewhere does
IMPORTS = {
    r"from \.\.\.(\w)": r"from ssl_vit.\1",
    r"from \.\.\. import": "from ssl_vit import",
    r"from \.\.(\w)": r"from ssl_vit.objectives.\1",
    r"from \.\. import": "from ssl_vit.objectives import",
    r"from \. import .*\n": "",
    r"\bijepa\b": NAME,
}
BUILD = '''

@functools.cache
def network():
    """Torch is imported when a network is built."""
{code}
    return FeaturePrediction


class Plugin(IjepaDeclaration):
    network = ""

    def build(self, settings, encoder, classes):
        return network().build(settings, encoder, classes)


declare(Plugin())
'''


def write(folder: Path) -> list[str]:
    """Write plugin and recipe; the options that name them."""
    declaration, code = (
        _outside((FOLDER / name).read_text()) for name in ("__init__.py", "network.py")
    )
    declaration = declaration.replace("\nDECLARATION = IjepaDeclaration()\n", "")
    opening = "import functools\n\nfrom ssl_vit.config.declaration import declare\n"
    plugin = folder / f"{NAME}.py"
    plugin.write_text(opening + declaration + BUILD.format(code=textwrap.indent(code, " " * 4)))
    recipe = folder / f"{NAME}.yaml"
    recipe.write_text(_outside((ROOT / "recipes" / "ijepa.yaml").read_text()))
    return [f"recipe={recipe}", f"plugin={plugin}"]


def _outside(text: str) -> str:
    for pattern, replacement in IMPORTS.items():
        text = re.sub(pattern, replacement, text)
    return text
