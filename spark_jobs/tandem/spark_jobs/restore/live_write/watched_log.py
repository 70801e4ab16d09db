"""What others wrote into a live partition, as far as it was committed and behind that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol

from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.restore.live_write.guarded_writer import Key
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange, in_ranges
from tandem.spark_jobs.restore.progress.batch_producer import ProduceError

KeysIn = Callable[[Iterable[Segment]], Iterable[tuple[Key, int]]]
"""Returns key and offset of those records that are to be told of."""


class OpenLog(Protocol):
    """Opens the partition's log where the caller has last read it."""

    def __call__(self, *, read_committed: bool) -> AbstractContextManager[LiveLog]:
        """Open it in this isolation level."""
        ...


@dataclass(slots=True, kw_only=True)
class LogSince(Generic[Key]):
    """A partition's log from where both readers stand, which is where the caller has last read it.

    `stable` reads committed records, each once, up to the last stable offset: aborted records are no writes. What lies
    behind it may still be committed or aborted, and counts as written: `open_end` reads that part again each time.
    """

    stable: LiveLog
    open_end: LiveLog
    keys_in: KeysIn[Key]
    _others: set[Key] = field(default_factory=set, init=False)
    _own: set[Key] = field(default_factory=set, init=False)

    def written_since(self, own: Sequence[OffsetRange], *, until: int | None = None) -> set[Key]:
        """See `WatchedLog`. Raises the errors of a `LiveLog`, and ProduceError if the log ends below `until`."""
        for key, offset in self.keys_in(self.stable.below(self.stable.head())):
            (self._own if in_ranges(offset, own) else self._others).add(key)
        reach = self.open_end.head() if until is None else until
        if reach <= self.stable.at:
            return self._others
        self.open_end.jump_to(self.stable.at)
        found = {key for key, offset in self.keys_in(self.open_end.below(reach)) if not in_ranges(offset, own)}
        if self.open_end.end is not None:
            raise ProduceError(
                f"the log ends at {self.open_end.end}, below records that the broker has confirmed", code="TDM-R151"
            )
        return self._others | found

    def committed_at(self, own: Sequence[OffsetRange]) -> set[Key]:  # noqa: ARG002 - they were told apart when read
        """See `WatchedLog`."""
        return self._own


@contextmanager
def log_since(keys_in: KeysIn[Key], open_log: OpenLog) -> Iterator[LogSince[Key]]:
    """Yield the log that `open_log` opens, and close its connections after the block."""
    with open_log(read_committed=True) as stable, open_log(read_committed=False) as open_end:
        yield LogSince(stable=stable, open_end=open_end, keys_in=keys_in)
