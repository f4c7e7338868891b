"""Write a run's encoder in another form than timm's: transformers' own ViT, or ONNX.

python tools/export.py runs/mpp format=transformers out=mpp_transformers
python tools/export.py runs/mpp format=onnx out=mpp.onnx
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import errors
from ssl_vit.errors import report_errors
from ssl_vit.models.interop import main

if __name__ == "__main__":
    errors.guard_streams()
    with report_errors():
        main(sys.argv[1:])
