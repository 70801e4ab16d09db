"""A headless browser that photographs a page. It reaches nothing but loopback and files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
_PATIENCE_S = 240
_COMPLAINTS = ("Content Security Policy", "Uncaught", "SyntaxError")
# Narrower than the narrowest window that the browser opens: a frame has the width of a phone.
_FRAME = (
    "<!doctype html><meta charset=utf-8><style>*{{margin:0}}iframe{{border:0;display:block}}</style>"
    '<iframe width={} height={} src="{}"></iframe>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A size in CSS pixels, and a colour scheme."""

    name: str
    width: int
    height: int
    dark: bool


def find() -> str | None:
    """Return the browser's path, None if there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


def photograph(browser: str, url: str, view: View, target: Path) -> None:
    """Put a PNG of the page into `target`. AssertionError if the browser complains about the page."""
    with tempfile.TemporaryDirectory(prefix="tandem-browser-") as name:
        folder = Path(name)
        if view.width < 500:
            frame = folder / "frame.html"
            frame.write_text(_FRAME.format(view.width, view.height, url), encoding="utf-8")
            url = frame.as_uri()
        done = subprocess.run(
            [
                browser,
                *_FLAGS,
                f"--user-data-dir={folder / 'profile'}",
                f"--blink-settings=preferredColorScheme={0 if view.dark else 1}",
                f"--window-size={view.width},{view.height}",
                f"--screenshot={target}",
                url,
            ],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    _shrink(target)
    complaints = [line for line in done.stderr.splitlines() if any(word in line for word in _COMPLAINTS)]
    assert not complaints, complaints


def _shrink(picture: Path) -> None:
    """A page has few colours: a palette halves the file, and nobody sees it."""
    with Image.open(picture) as full:
        full.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
