"""Bring a pushed training state (hub.state=true) back from the Hugging Face Hub, as a run that can go on.

python tools/pull.py hf-hub:USER/NAME
python tools/pull.py hf-hub:USER/NAME@COMMIT out=runs name=again
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import streams
from ssl_vit.hub.pull import main
from ssl_vit.recipe import plain_errors

if __name__ == "__main__":
    streams.prepare()
    with plain_errors():
        main(sys.argv[1:])
