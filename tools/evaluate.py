"""Measure a frozen encoder on labels: few-shot, linear probe, nearest neighbours.

accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp
accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp data=cifar10 data.path=PATH data.size=32 --json
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: beside another process, spinning threads lose much time

from ssl_vit import streams
from ssl_vit.training import evaluate

if __name__ == "__main__":
    streams.prepare(lasting=True)
    evaluate(sys.argv[1:])
