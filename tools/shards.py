"""Convert a set of images into pre-resized parquet shards, or resume a conversion.

python tools/shards.py data.path=IMAGES out=FOLDER
python tools/shards.py data=imagenet data.path=IMAGES out=FOLDER size=256 workers=16
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.__main__ import main

if __name__ == "__main__":
    main(["shards", *sys.argv[1:]])
