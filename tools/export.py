"""Write a run's encoder in another form than timm's: transformers' own ViT, or ONNX.

python tools/export.py runs/mpp format=transformers out=mpp_transformers
python tools/export.py runs/mpp format=onnx out=mpp.onnx
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["export", *sys.argv[1:]])
