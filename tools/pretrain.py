"""Pre-train an encoder.

accelerate launch tools/pretrain.py recipe=mpp
accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH corruption.rate=0.15
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["pretrain", *sys.argv[1:]])
