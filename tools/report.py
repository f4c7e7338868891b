"""Write the page of a run, the report of a study, or the page over all runs of a folder.

python tools/report.py runs/mpp
python tools/report.py runs
python tools/report.py runs/gap --json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["report", *sys.argv[1:]])
