"""Push a run to the Hugging Face Hub: what is not there yet of its milestones, its end and, if
asked for, its training state.

python tools/push.py runs/mpp hub.repo=USER/NAME
python tools/push.py runs/mpp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import errors
from ssl_vit.errors import report_errors
from ssl_vit.hub.push import main

if __name__ == "__main__":
    errors.guard_streams(lasting=True)
    with report_errors():
        main(sys.argv[1:])
