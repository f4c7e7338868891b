"""Write a run's encoder in another form than timm's: transformers' own ViT, or ONNX.

python tools/export.py runs/mpp format=transformers out=mpp_transformers
python tools/export.py runs/mpp format=onnx out=mpp.onnx
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import streams
from ssl_vit.interop import main
from ssl_vit.recipe import plain_errors

if __name__ == "__main__":
    streams.prepare()
    with plain_errors():
        main(sys.argv[1:])
