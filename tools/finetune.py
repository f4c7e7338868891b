"""Fine-tune an encoder on labels, from anywhere that init= names, and tell how right it is on the test split.

accelerate launch tools/finetune.py recipe=finetune init=runs/mpp
accelerate launch tools/finetune.py recipe=paper/finetune_cifar10 data.path=PATH init=scratch
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: beside another process, spinning threads lose much time

from ssl_vit import streams
from ssl_vit.training import finetune

if __name__ == "__main__":
    streams.prepare(lasting=True)
    finetune(sys.argv[1:])
