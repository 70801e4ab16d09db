"""`python -m screenshots`: writes docs/images/status-*.png. Ends with 0 and a word where there is no browser."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from support.lines import say

from screenshots import IMAGES, MOST_BYTES
from screenshots.browser import View, find, photograph
from screenshots.states import Scene

#: CSS pixels for a desktop, and for a phone.
_HEIGHTS = {
    "steady": (1500, 2000),
    "paused": (1600, 0),
    "killed": (1600, 0),
    "catch-up": (1500, 2000),
    "tainted": (2000, 2600),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="screenshots", description="Photograph the status page in five states.")
    parser.add_argument("--into", type=Path, default=IMAGES, help="folder of the pictures")
    words = parser.parse_args()
    browser = find()
    if browser is None:
        say("skipped: there is no chromium here (apt-get install chromium)")
        return 0
    words.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandem-screenshots-") as name, Scene(Path(name), say) as scene:
        for state, url, page in scene.states():
            # As the server sends it: with its policy. What breaks that policy is complained about.
            desktop, phone = _HEIGHTS[state]
            photograph(
                browser, url, View(width=1200, height=desktop, dark=False, name="served"), Path(name, "served.png")
            )
            still = Path(name) / f"{state}.html"
            still.write_text(page(), encoding="utf-8")
            if words.into != IMAGES:
                shutil.copy(still, words.into)
            views = [
                View(name=f"{name}-{'dark' if dark else 'light'}", width=width, height=height, dark=dark)
                for name, width, height in (("desktop", 1200, desktop), ("phone", 390, phone))
                for dark in (False, True)
                if height
            ]
            for view in views:
                target = words.into / f"status-{state}-{view.name}.png"
                photograph(browser, still.as_uri(), view, target)
                size = target.stat().st_size
                assert size <= MOST_BYTES, f"{target.name} has {size} bytes"
                say(f"{target.name}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
