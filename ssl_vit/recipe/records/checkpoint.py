"""Records for the JSON files of checkpoints and uploads."""

from . import Record, Whole


class FileFacts(Record):
    """Size in bytes and hash of a file of a checkpoint."""

    bytes: Whole
    sha256: str


class Manifest(Record):
    """Content of a checkpoint's manifest.json.

    Attributes:
        files: {name of a file of the checkpoint: size and hash}.
        best: The best step at the time of writing, or None.
    """

    files: dict[str, FileFacts]
    best: Whole | None = None


class BestStep(Record):
    """Best step in a training state."""

    step: Whole | None


class UploadedState(Record):
    """Fields of a training state from the Hub that are read before the state is loaded."""

    step: Whole
    best: BestStep | None = None


class PushedBranch(Record):
    """Entry of hub.json for a branch: the stamp of the pushed state, and the commit."""

    stamp: str
    commit: str
