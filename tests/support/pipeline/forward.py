"""The scan in the wrong order, for a process of a test's own: `import support.pipeline.forward` turns oldest first.

A production scan of the mirrored log does the planning, so that nothing but the order differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tandem.sink.pipeline
from tandem.backup_avro.chain.entries import Base
from tandem.sink.read.progress.next_scan_range import ScanPlan, ScanRange


def mirrored(base: Base) -> Base:
    """Return a base with its offsets counted from the other end; twice is the base itself."""
    both = base.start + base.end
    return replace(
        base,
        done=tuple(sorted((both - high, both - low) for low, high in base.done)),
        open=tuple((both - high, both - low, attempt) for low, high, attempt in base.open),
    )


class Forward:
    """Reads [start, end) from low to high. The log start must not move: it would be the end of the mirrored log."""

    def __init__(self, base: Base, **settings: Any) -> None:
        self._both = base.start + base.end
        self._scan = ScanPlan(mirrored(base), **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scan, name)

    @property
    def base(self) -> Base:
        """The state to record."""
        return mirrored(self._scan.base)

    @property
    def chunk(self) -> ScanRange | None:
        """The chunk under way."""
        return self._turned(self._scan.chunk)

    def begin(self, **now: Any) -> ScanRange | None:
        """Start the next chunk above what is done."""
        return self._turned(self._scan.begin(**now))

    def _turned(self, chunk: ScanRange | None) -> ScanRange | None:
        if chunk is None:
            return None
        return replace(chunk, low=self._both - chunk.high, high=self._both - chunk.low)


tandem.sink.pipeline.ScanPlan = Forward  # type: ignore[misc, assignment]  # a stand-in, for this process alone
