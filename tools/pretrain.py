"""Pre-train an encoder.

accelerate launch tools/pretrain.py recipe=mpp
accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH corruption.rate=0.15
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: beside another process, spinning threads lose much time

from ssl_vit import streams
from ssl_vit.training import pretrain

if __name__ == "__main__":
    streams.prepare(lasting=True)
    pretrain(sys.argv[1:])
