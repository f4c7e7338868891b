"""Measure a frozen encoder on labels: few-shot, linear probe, nearest neighbours.

accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp
accelerate launch tools/evaluate.py recipe=evaluate init=runs/mpp data=cifar10 data.path=PATH --json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
