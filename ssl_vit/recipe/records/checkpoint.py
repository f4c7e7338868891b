"""Records for the JSON files of checkpoints and uploads."""

from . import Record, Whole


class FileFacts(Record):
    """Size in bytes and hash of a file of a checkpoint."""

    bytes: Whole
    sha256: str


class Manifest(Record):
    """Content of manifest.json of a checkpoint, with the best step at the time of writing."""

    files: dict[str, FileFacts]
    best: Whole | None = None


class BestStep(Record):
    """Best step of a training state."""

    step: Whole | None


class UploadedState(Record):
    """Training state from the Hub, as far as it is read before loading."""

    step: Whole
    best: BestStep | None = None


class PushedBranch(Record):
    """Entry of hub.json for a branch: the stamp of the pushed state, and the commit."""

    stamp: str
    commit: str
