"""Write records into a live partition, and leave every key alone that another producer wrote meanwhile.

Kafka has no conditional write. So the log decides, in the transaction: the records are sent, but not committed, and
then the log is read from where the caller has last read it to behind them. If it has a record of one of their keys by
another producer, the transaction is aborted and sent again without these keys; nobody who reads committed records ever
sees it. What another producer writes behind the records is newer, and stands.

Pure but for its three collaborators: the log, the producers, and whoever notes the offsets of a transaction before it
is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from tandem.backup_avro.errors import TandemError
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange
from tandem.spark_jobs.restore.progress.batch_producer import FencedError

#: Most records and most bytes (uncompressed) of one transaction: it is sent again if keys collide.
MOST_RECORDS: Final = 5_000
MOST_BYTES: Final = 8 * 1024 * 1024


Key = TypeVar("Key", bound=Hashable)
"""What stands for a key: its bytes, or a hash of them."""
_Key_co = TypeVar("_Key_co", bound=Hashable, covariant=True)


@dataclass(frozen=True, slots=True)
class PlannedRecord(Generic[Key]):
    """A record to be written: what stands for its key, and its Avro body. Its offset does not matter."""

    key: Key
    body: bytes


class WatchedLog(Protocol[_Key_co]):
    """What was appended to the partition since the caller last read it."""

    def written_since(self, own: Sequence[OffsetRange], *, until: int | None = None) -> AbstractSet[_Key_co]:
        """Return the keys that others wrote, committed or not, below `until` (None: to the log's end).

        `own` are the offsets that are not others'.
        """
        ...

    def committed_at(self, own: Sequence[OffsetRange]) -> AbstractSet[_Key_co]:
        """Return the keys whose committed records lie at the offsets `own`, as far as was read."""
        ...


class OpenTransaction(Protocol):
    """One transaction of a producer that has fenced all earlier ones."""

    def send(self, bodies: Sequence[bytes]) -> list[OffsetRange]:
        """Send records and wait for the broker; return their offsets."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abandon(self) -> None:
        """Abort."""
        ...


@dataclass(slots=True, kw_only=True)
class GuardedWriter(Generic[Key]):
    """Writes the records of one partition. `note` is told the offsets of each transaction as soon as it is sent.

    `own` are the offsets that earlier attempts of the same run have noted, ascending; what they committed counts as
    written. Those of this run's transactions are added, also of the aborted ones.
    """

    log: WatchedLog[Key]
    begin: Callable[[], OpenTransaction]
    note: Callable[[Sequence[OffsetRange]], None] | None = None
    own: list[OffsetRange] = field(default_factory=list)
    written: int = field(default=0, init=False)
    left_alone: set[Key] = field(default_factory=set, init=False)

    def write(self, records: Iterable[PlannedRecord[Key]]) -> None:
        """Write records of different keys. Raises the errors of the collaborators; then all of it is to be repeated."""
        for some in _in_transactions(records):
            self._write_together(some)

    def _write_together(self, records: list[PlannedRecord[Key]]) -> None:
        # What an earlier attempt has committed lies at noted offsets.
        meanwhile = self.log.written_since(self.own)
        done = self.log.committed_at(self.own)
        self.written += sum(one.key in done for one in records)
        records = self._without(meanwhile, [one for one in records if one.key not in done])
        while records:
            transaction = self.begin()
            try:
                rest = self._commit_unless_written(transaction, records)
            except FencedError:
                raise  # an abort would fence the producer that has taken over
            except BaseException:
                # Left open, it would hold back all readers of committed records until it times out.
                with suppress(TandemError):
                    transaction.abandon()
                raise
            if len(rest) == len(records):
                return
            transaction.abandon()
            records = rest

    def _commit_unless_written(
        self, transaction: OpenTransaction, records: list[PlannedRecord[Key]]
    ) -> list[PlannedRecord[Key]]:
        """Send the records; commit if others wrote none of their keys before. Return those of the other keys."""
        ranges = transaction.send([one.body for one in records])
        # Also what is aborted then: below an older transaction that is open, it looks like any other record, for
        # a later attempt too.
        if self.note is not None:
            self.note(ranges)
        self.own += ranges
        meanwhile = self.log.written_since(self.own, until=max(last for _, last in ranges) + 1)
        rest = self._without(meanwhile, records)
        if len(rest) == len(records):
            transaction.commit()
            self.written += len(records)
        return rest

    def _without(self, meanwhile: AbstractSet[Key], records: list[PlannedRecord[Key]]) -> list[PlannedRecord[Key]]:
        self.left_alone |= {one.key for one in records if one.key in meanwhile}
        return [one for one in records if one.key not in meanwhile]


def _in_transactions(records: Iterable[PlannedRecord[Key]]) -> Iterator[list[PlannedRecord[Key]]]:
    found: list[PlannedRecord[Key]] = []
    size = 0
    for one in records:
        found.append(one)
        size += len(one.body)
        if len(found) >= MOST_RECORDS or size >= MOST_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found
