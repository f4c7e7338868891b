"""Run a study, each run after those that it depends on, or resume it.

python tools/study.py recipe=study/gap
python tools/study.py recipe=study/methods cifar10=PATH seeds=3 parallel=2
python tools/study.py recipe=study/gap optim.steps=10 optim.warmup=1 name=trial
python tools/study.py recipe=study/gap launcher=slurm slurm="--time=4:00:00 --gpus=1" dry=true
python tools/study.py recipe=mpp sweep corruption.rate=0.15,0.3,0.5,0.75 seeds=3
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["study", *sys.argv[1:]])
