"""The JSON files of checkpoints and uploads as records."""

from . import Record, Whole


class FileFacts(Record):
    """A file of a checkpoint."""

    bytes: Whole
    sha256: str


class Manifest(Record):
    """manifest.json of a checkpoint, and the best step when it was written."""

    files: dict[str, FileFacts]
    best: Whole | None = None


class BestStep(Record):
    """That of a training state."""

    step: Whole | None


class UploadedState(Record):
    """A training state from the Hub, as far as is read before it is loaded."""

    step: Whole
    best: BestStep | None = None


class PushedBranch(Record):
    """What hub.json says of a branch: of which state it is, and as which commit."""

    stamp: str
    commit: str
