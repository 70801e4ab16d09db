"""The table of docs/quality/stores.md: seconds of each step on each store, of the newest run of each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from support.emulators.places import STORES

PAGE: Final = Path(__file__).parents[3] / "docs" / "quality" / "stores.md"
STEPS: Final = (
    "race, kill -9",
    "first backup",
    "kill in mid-upload, takeover",
    "rotate",
    "verify",
    "drill",
    "restore",
    "erase",
    "export",
    "retention",
    "catch-up",
    "demo",
)
_BEGIN, _END = "<!-- written by make store-test -->", "<!-- end -->"


class StoreSteps:
    """Seconds of steps that have passed."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = defaultdict(dict)

    @contextmanager
    def step(self, store: str, title: str) -> Iterator[None]:
        """Measure a step; one that fails has no time."""
        assert title in STEPS
        began = time.monotonic()
        yield
        self._seconds[title][store] = time.monotonic() - began

    def write_page(self) -> None:
        """Put the times into the page; a step that has not run on a store keeps what is there."""
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        known, _, after = rest.partition(_END)
        PAGE.write_text(f"{before}{_BEGIN}\n{_table(self._seconds, known)}\n{_END}{after}", encoding="utf-8")


def _table(seconds: Mapping[str, Mapping[str, float]], known: str) -> str:
    cells = {
        (title, store): cell
        for line in known.splitlines()
        for title, *row in [[cell.strip() for cell in line.strip("| ").split("|")]]
        for store, cell in zip(STORES, row, strict=False)
    }
    cells |= {(title, store): f"{took:.0f}" for title, row in seconds.items() for store, took in row.items()}
    today = datetime.now(UTC).date().isoformat()
    cells |= {("run on", store): today for row in seconds.values() for store in row}
    lines = [
        f"| {title} | {' | '.join(cells.get((title, store), 'not tried') for store in STORES)} |"
        for title in (*STEPS, "run on")
    ]
    return "\n".join([f"| step | {' | '.join(STORES)} |", f"| --- |{' ---: |' * len(STORES)}", *lines])
