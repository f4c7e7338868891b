"""Upload what a run has not yet uploaded to the Hugging Face Hub.

python tools/push.py runs/mpp hub.repo=USER/NAME
python tools/push.py runs/mpp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["push", *sys.argv[1:]])
