"""Draw what an encoder has learned, beside untrained weights.

python tools/figures.py init=runs/mpp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["figures", *sys.argv[1:]])
