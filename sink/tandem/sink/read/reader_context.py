"""What both lanes share: the tracks, the buffers, the transcoder, counters and troubles. One thread uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tandem.backup_avro.chain.entries import PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.selection.last_records import LastRecord, contradicts
from tandem.sink import clock
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.fetch.events import AtHead, Evidence, Fetched, FetchFault, LogBounds, Place, TopicPartition
from tandem.sink.memory_budget import MemoryBudget, MemoryShare
from tandem.sink.meters import NOBODY, Meters
from tandem.sink.read.partition_progress import Track
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.object_store import ObjectStore
from tandem.sink.transcode.segment import Transcoded, Transcoder
from tandem.sink.write.object_buffer import Roller

_LOG = structlog.get_logger()
DAMAGED_RETRY_S = 5.0


def reading(tp: TopicPartition, *, tail: bool) -> object:
    """Return the subject of what goes wrong while a partition is read, by the tail or for its base."""
    return (tp, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptiness:
    """Brokers say that nothing readable lies in [start, end) of a log, which ends there; times as in `Fetched`."""

    start: int
    end: int
    requested: float
    received: float
    evidence: Evidence | None = None


def _withheld(tp: TopicPartition, *, tail: bool) -> object:
    return ("withheld", tp, tail)


class Source(Protocol):
    """One lane of raw fetches, as `sink.kafka.fetch.fetcher` has it. Used from one thread alone."""

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        last_epoch: int = -1,
        *,
        topic_id: str | None = None,
        led_by: tuple[int, int] | None = None,
    ) -> None:
        """Begin to fetch a partition at `offset`, of this life of the topic alone.

        `led_by` is the leader that the reader knows of, and its epoch: if it is not that one any more, it has moved.
        """
        ...

    def seek(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        """Go somewhere else; what is under way for the partition is dropped."""
        ...

    def advance(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        """Go on after what was handed out."""
        ...

    def unassign(self, tp: TopicPartition) -> None:
        """Stop fetching a partition."""
        ...

    def poll(self, timeout_s: float) -> Sequence[Fetched | AtHead | FetchFault]:
        """Return what has arrived, waiting at most `timeout_s` for something."""
        ...

    def bounds(
        self, tps: Sequence[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, LogBounds], Mapping[TopicPartition, str]]:
        """Return where logs begin and end and who leads; why nothing is known of those without a leader or a right."""
        ...

    def known_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the ends of logs (by isolation level), each with the leader epoch of the record before it.

        Takes little time: without those that no leader answers for.
        """
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return what the leaders know of these epochs: the largest one up to each, and its end (KIP-320)."""
        ...

    def record_hashes(self, places: Mapping[TopicPartition, Place]) -> dict[TopicPartition, RecordHash | None]:
        """Return what the leaders have at these offsets: the last record at or below, within the same record batch.

        None where nothing is left there. Takes little time: without those that no leader answers for.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class ScanLane(Protocol):
    """Has the bases of partitions read, here or elsewhere."""

    @property
    def busy(self) -> bool:
        """Whether a base is still to be read."""
        ...

    def add(self, tp: TopicPartition) -> None:
        """Have the base of a partition read."""
        ...

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        ...

    def leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Begin the base anew if another replica leads, or did: they are cleaned independently, halves don't add up."""
        ...

    def step(self, timeout_s: float) -> None:
        """Go on for about `timeout_s`."""
        ...

    def stop(self) -> None:
        """Call off what was begun elsewhere on this lane's behalf."""
        ...


@dataclass(slots=True, kw_only=True)
class Board:
    """State of a pipeline that its lanes work on.

    `floor` is the last time in ms that the chain tells of: its clock never goes back behind that.
    `adopted` are objects that others have stored and that the next commit is to name. With `a_range` what the lanes
    take for bases are ranges of somebody else's. `room` are the bytes that a step may still transcode however full
    `share`, the pipeline's part of the memory budget, is. `damaged` are the subjects of troubles with what a partition
    holds, which rests then. `lasting` returns the last records of a partition that other copies hold.
    """

    store: ObjectStore
    roller: Roller
    transcoder: Transcoder
    read_committed: bool
    hurry_survey: Callable[[], None]
    tracks: dict[TopicPartition, Track] = field(default_factory=dict)
    trouble: dict[object, str] = field(default_factory=dict)
    damaged: dict[object, TopicPartition] = field(default_factory=dict)
    adopted: dict[PartitionKey, list[StoredObject]] = field(default_factory=dict)
    records: int = 0
    floor: int = 0
    a_range: bool = False
    room: float = math.inf
    share: MemoryShare = field(default_factory=MemoryBudget(0).open_share)
    record_keys: RecordKeys = PLAIN
    meters: Meters = NOBODY
    lasting: Callable[[Track], Sequence[LastRecord]] = lambda _: ()
    _ahead_ms: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the floor: whatever is requested from now on is requested later than what the chain tells of."""
        self._ahead_ms = self.floor - clock.now() * 1000

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be transcoded in this step."""
        return self.room <= 0 and self.share.is_full()

    def now(self) -> int:
        """Return the store's time in ms. It goes on by `sink.clock` where the store's own clock is set back."""
        mono_ms = clock.now() * 1000
        self._ahead_ms = max(self._ahead_ms, now_ms(self.store) - mono_ms)
        return round(mono_ms + self._ahead_ms)

    def at(self, mono: float) -> int:
        """Return the store's time for one by `sink.clock`."""
        return self.now() - round((clock.now() - mono) * 1000)

    def skew(self) -> int:
        """Return by how many ms the local clock is ahead of `now`."""
        return clock.local_ms() - self.now()

    def take(
        self, fetched: Fetched, *, key: PartitionKey, scan: int | None, start: int, until: int | None
    ) -> Transcoded:
        """Transcode what was fetched and buffer it. Raises DamagedError, and buffers nothing, on a bad batch."""
        result = self.transcoder.transcode(
            fetched.records,
            topic=fetched.topic,
            partition=fetched.partition,
            start=start,
            until=until,
            aborted=fetched.aborted,
            read_committed=self.read_committed,
        )
        self.roller.add(key, scan, result.segments)
        size = sum(len(segment.body) for segment in result.segments)
        self.room -= size
        self.share.held += size
        self.records += sum(segment.records for segment in result.segments)
        self.well(reading(TopicPartition(fetched.topic, fetched.partition), tail=scan is None))
        return result

    def may_skip(self, track: Track, seen: Emptiness, *, to: int, tail: bool) -> bool:
        """Whether to skip what lies below `to`, because brokers say that nothing readable is left of a log.

        Not if another copy has a record there that compaction leaves in the log: then brokers do not send what they
        have, or have lost it. That is a trouble until something comes (`reads_on`).
        """
        start, end, now = seen.start, seen.end, self.now()
        record = next((one for one in self.lasting(track) if contradicts(one, start, end, now=now)), None)
        if record is None:
            if to > start:
                where = {"topic": track.topic, "partition": track.key.partition, "start": start, "to": to, "end": end}
                _LOG.info("nothing is left of a range of a log, reading skips it", **where, evidence=str(seen.evidence))
                self.meters.skipped(to - start)
            return True
        self.say(
            _withheld(TopicPartition(track.topic, track.key.partition), tail=tail),
            f"{track.topic}-{track.key.partition}: nothing comes of offsets {start} to {end}, but generation "
            f"{record.generation} has the record at offset {record.offset}, which compaction does not remove; it is "
            "asked again. Find out what the broker, or what lies between, holds back; if the topic has lost these "
            "records, bring them back with `tandem restore`",
        )
        return False

    def reads_on(self, tp: TopicPartition, *, tail: bool) -> None:
        """Records came, or the position is at the end: what a broker did not send is no trouble any more."""
        self.well(_withheld(tp, tail=tail))

    def say(self, subject: object, text: str) -> None:
        """Note a trouble, and log it if it is a new one."""
        if self.trouble.get(subject) != text:
            _LOG.warning("trouble while reading", detail=text)
        self.trouble[subject] = text

    def say_damaged(self, tp: TopicPartition, error: DamagedError, *, tail: bool) -> None:
        """Note that a partition holds what can't be read: it is set aside, and all others are read on."""
        subject = reading(tp, tail=tail)
        self.damaged[subject] = tp
        self.say(subject, str(error))

    def forget(self, subject: object) -> str | None:
        """Forget a trouble; return it if there was one."""
        self.damaged.pop(subject, None)
        return self.trouble.pop(subject, None)

    def well(self, subject: object) -> None:
        """Forget a trouble, and say so if there was one."""
        text = self.forget(subject)
        if text is not None:
            _LOG.info("trouble is over", detail=text)
