"""The pictures in docs/status-page.md: all there, none too large, none that nothing shows."""

from __future__ import annotations

import re
from pathlib import Path

from screenshots import IMAGES, MOST_BYTES

PAGE = Path(__file__).parents[3] / "docs" / "status-page.md"


def test_the_pictures_are_there() -> None:
    """`make screenshots` makes them anew."""
    named = set(re.findall(r"images/(status-[a-z-]+\.png)", PAGE.read_text("utf-8")))
    there = {file.name for file in IMAGES.glob("status-*.png")}
    assert named == there
    assert len(there) == 16, "five states, three of them on a phone, too, in two colour schemes"
    for file in IMAGES.glob("status-*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size <= MOST_BYTES
