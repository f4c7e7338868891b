"""docs/run_page.png, the picture of the README: a run's page in light mode beside the index of a
folder of runs in dark mode, both from their first line.

SSL_VIT_CHROMIUM=CHROMIUM python docs/make_run_page.py runs/NAME/report.html runs/index.html

Needs the extra [browser].
"""

import io
import os
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

SIZE = {"width": 1100, "height": 1100}  # of each page in the browser
SHOWN = 700  # pixels of each page in the picture, on a side
GAP = 14


def main(pages: list[str]) -> None:
    picture = Image.new("RGB", (2 * SHOWN + GAP, SHOWN), "#888888")
    with sync_playwright() as playwright:
        # the sandbox of Chromium does not start as root, as in containers
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("SSL_VIT_CHROMIUM"), args=flags
        )
        for place, (page, scheme) in enumerate(zip(pages, ("light", "dark"), strict=True)):
            shot = Image.open(io.BytesIO(_shot(browser, Path(page), scheme)))
            left = place * (SHOWN + GAP)
            picture.paste(shot.resize((SHOWN, SHOWN), Image.Resampling.LANCZOS), (left, 0))
        browser.close()
    file = Path(__file__).with_name("run_page.png")
    picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def _shot(browser: Browser, page: Path, scheme: str) -> bytes:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(page.resolve().as_uri())
    opened.wait_for_selector("html[data-ready]")
    return opened.screenshot()


if __name__ == "__main__":
    main(sys.argv[1:])
