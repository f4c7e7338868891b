"""Turn any set of images into pre-resized parquet shards, from which training reads fast; or go on
with it.

python tools/shards.py data.path=IMAGES out=FOLDER python tools/shards.py data=imagenet
data.path=IMAGES out=FOLDER size=256 rows=10000 format=jpeg quality=90 workers=16
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import errors
from ssl_vit.errors import report_errors
from ssl_vit.jobs.make_shards import main

if __name__ == "__main__":
    errors.guard_streams()
    with report_errors():
        main(sys.argv[1:])
