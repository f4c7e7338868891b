"""Fine-tune an encoder on labels and measure it on the test split.

accelerate launch tools/finetune.py recipe=finetune init=runs/mpp
accelerate launch tools/finetune.py recipe=paper/finetune_cifar10 data.path=PATH init=scratch
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["finetune", *sys.argv[1:]])
