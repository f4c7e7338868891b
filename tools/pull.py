"""Download a training state that was pushed (hub.state=true), as a run folder to resume.

python tools/pull.py hf-hub:USER/NAME
python tools/pull.py hf-hub:USER/NAME@COMMIT out=runs name=again
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["pull", *sys.argv[1:]])
