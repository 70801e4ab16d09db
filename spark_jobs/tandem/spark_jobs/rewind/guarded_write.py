"""Write changes back into a live partition, and leave every key alone that another producer wrote meanwhile.

Kafka has no conditional write. So the log decides, in the transaction: the records are sent, but not committed, and
then the log is read from where the comparison ended to behind them. If it has a record of one of their keys by another
producer, the transaction is aborted and sent again without these keys; nobody who reads committed records ever sees it.
What another producer writes behind the records is newer, and stands.

Pure but for its three collaborators: the log, the producers, and the record in the store, which names the offsets of a
transaction before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from tandem.backup_avro.record.current import Record
from tandem.spark_jobs.rewind.key_changes import OffsetRange

#: Most records and most bytes of keys and values (uncompressed) of one transaction: it is sent again if keys collide.
MOST_RECORDS: Final = 5_000
MOST_BYTES: Final = 8 * 1024 * 1024


class PlannedRecord(NamedTuple):
    """A record to be written: the hash of its key, and its contents; a value of None is a tombstone."""

    key: int
    record: Record


class WatchedLog(Protocol):
    """What was appended to the partition since the comparison ended."""

    def written_since(self, own: Sequence[OffsetRange], *, until: int | None = None) -> set[int]:
        """Return the hashes of the keys that others wrote, committed or not, below `until` (None: to the log's end).

        `own` are the offsets that are not others'.
        """
        ...

    def committed_at(self, own: Sequence[OffsetRange]) -> set[int]:
        """Return the hashes of the keys whose committed records lie at the offsets `own`, as far as was read."""
        ...


class OpenTransaction(Protocol):
    """One transaction of a producer that has fenced all earlier ones."""

    def send(self, records: Sequence[Record]) -> list[OffsetRange]:
        """Send records and wait for the broker; return their offsets."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abandon(self) -> None:
        """Abort."""
        ...


@dataclass(slots=True, kw_only=True)
class GuardedWriter:
    """Writes the changes of one partition. `note` puts the offsets of a transaction into the store.

    `own` are the offsets that earlier attempts of the same run have noted, ascending; what they committed counts as
    written.
    """

    log: WatchedLog
    begin: Callable[[], OpenTransaction]
    note: Callable[[Sequence[OffsetRange]], None]
    own: list[OffsetRange] = field(default_factory=list)
    written: int = field(default=0, init=False)
    left_alone: set[int] = field(default_factory=set, init=False)

    def write(self, records: Iterable[PlannedRecord]) -> None:
        """Write records of different keys. Raises the errors of the collaborators; then all of it is to be repeated."""
        for some in _in_transactions(records):
            self._write_together(some)

    def _write_together(self, records: list[PlannedRecord]) -> None:
        # What an earlier attempt has committed lies at noted offsets.
        meanwhile = self.log.written_since(self.own)
        done = self.log.committed_at(self.own)
        self.written += sum(one.key in done for one in records)
        records = self._without(meanwhile, [one for one in records if one.key not in done])
        while records:
            transaction = self.begin()
            ranges = transaction.send([one.record for one in records])
            meanwhile = self.log.written_since([*self.own, *ranges], until=max(last for _, last in ranges) + 1)
            rest = self._without(meanwhile, records)
            if len(rest) == len(records):
                self.note(ranges)
                transaction.commit()
                self.own += ranges
                self.written += len(records)
                return
            transaction.abandon()
            records = rest

    def _without(self, meanwhile: set[int], records: list[PlannedRecord]) -> list[PlannedRecord]:
        self.left_alone |= {one.key for one in records if one.key in meanwhile}
        return [one for one in records if one.key not in meanwhile]


def _in_transactions(records: Iterable[PlannedRecord]) -> Iterator[list[PlannedRecord]]:
    found: list[PlannedRecord] = []
    size = 0
    for one in records:
        found.append(one)
        size += len(one.record.key or b"") + len(one.record.value or b"")
        if len(found) >= MOST_RECORDS or size >= MOST_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found
