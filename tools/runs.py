"""List the runs of a folder, or rank them by a metric.

python tools/runs.py
python tools/runs.py runs best=top1
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["runs", *sys.argv[1:]])
