"""Estimate the parameters, FLOPs, memory, time and price of a run or a study before it runs.

python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5
python tools/plan.py recipe=mpp --probe
python tools/plan.py recipe=study/gap device=h100
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["plan", *sys.argv[1:]])
