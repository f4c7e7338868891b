"""Write a study's report.md and one self-contained report.html into its folder.

python tools/report.py runs/gap
python tools/report.py runs/gap --json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["report", *sys.argv[1:]])
