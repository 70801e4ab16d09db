"""Tasks of a catch-up, and what they read."""

from __future__ import annotations

from dataclasses import replace

from support.backups.chains import OPENING, PAIR, key
from support.pipeline.pipelines import Bench, Log
from tandem.sink.read.scan.range_reader import put_offer, read_range
from tandem.sink.read.scan.range_tasks import RangeRead, RangeSizes, RangeTask
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

FOLDER = (PAIR, "a", 1)


def task(low: int, high: int, **changes: object) -> RangeTask:
    """A range of the only partition."""
    made = RangeTask(
        folder=FOLDER,
        key=key(),
        topic="t",
        floor=1,
        leader=1,
        low=low,
        high=high,
        opening=OPENING,
        limit_s=60.0,
        best_effort=False,
        run="job",
        give_up_s=5.0,
    )
    sizes = {name: changes.pop(name) for name in ("object_size", "block_size", "rate") if name in changes}
    return replace(made, sizes=RangeSizes(**{"block_size": 100} | sizes), **changes)  # type: ignore[arg-type]  # named


def read(bench: Bench, low: int, high: int, *, log: Log | None = None, **changes: object) -> RangeRead:
    """Read a range, as a worker does."""
    wanted = task(low, high, **changes)
    source = (log or bench.log).open()
    found = read_range(wanted, source=source, store=bench.store, transcoder=ReferenceTranscoder())
    put_offer(bench.store, wanted, found.offer)
    return found
