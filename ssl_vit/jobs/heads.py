"""The heads that a run trained beside its encoder, from heads.safetensors."""

from safetensors.torch import load_file
from torch import Tensor

from ..config.init_source import InitSource

PARTS = "parts."  # of a sum of objectives: parts.NAME.


def read_heads(source: InitSource) -> dict[str, Tensor]:
    """{name: tensor} of the heads of the run that made the weights; empty where there are none.

    Raises:
        OSError, safetensors.SafetensorError: the file cannot be read.
    """
    export, run = source.locate()
    path = export / "heads.safetensors" if run and export else None
    return load_file(path) if path is not None and path.exists() else {}


def of_objective(heads: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Those of one objective: of a sum of objectives that part's."""
    own = f"{PARTS}{name}."
    return {
        key.removeprefix(own): value
        for key, value in heads.items()
        if key.startswith(own) or not key.startswith(PARTS)
    }
