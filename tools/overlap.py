"""Find test images of a study that are also among its training images.

python tools/overlap.py runs/gap_cifar10
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["overlap", *sys.argv[1:]])
