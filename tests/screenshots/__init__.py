"""Pictures of the status page for docs/status-page.md: a real pair in five states, seen through a real browser."""

from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 150_000
