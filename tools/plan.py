"""What a run or a study will cost, before it runs: parameters, work, memory, time, price, and what a colleague would warn of.

python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5
python tools/plan.py recipe=mpp --probe
python tools/plan.py recipe=study/gap device=h100
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, which --probe loads: as the tools that train

from ssl_vit import streams
from ssl_vit.plan import main
from ssl_vit.recipe import plain_errors

if __name__ == "__main__":
    streams.prepare()
    with plain_errors():
        main(sys.argv[1:])
