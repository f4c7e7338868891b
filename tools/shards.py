"""Turn any set of pictures into pre-resized parquet shards, from which training reads fast; or go on with it.

python tools/shards.py data.path=PICTURES out=FOLDER
python tools/shards.py data=imagenet data.path=PICTURES out=FOLDER size=256 rows=10000 format=jpeg quality=90 workers=16
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import streams
from ssl_vit.recipe import plain_errors
from ssl_vit.reshard import main

if __name__ == "__main__":
    streams.prepare()
    with plain_errors():
        main(sys.argv[1:])
