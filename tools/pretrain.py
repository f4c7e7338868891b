"""Pre-train an encoder.

accelerate launch tools/pretrain.py recipe=mpp
accelerate launch tools/pretrain.py recipe=mpp data=cifar10 data.path=PATH corruption.rate=0.15
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# before torch: beside another process, spinning threads lose much time
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from ssl_vit import errors
from ssl_vit.jobs.cli import pretrain

if __name__ == "__main__":
    errors.guard_streams(lasting=True)
    pretrain(sys.argv[1:])
