"""Stand-ins at the seams: a store in memory that can fail, a cluster, a source that plays a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tandem.backup_avro.chain.entries import GroupOffset, RecordHash, Topic
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GroupPositions, GuardedTopics
from tandem.sink.kafka.events import AtHead, Evidence, Fetched, FetchFault, LogBounds, LogPlace, TopicPartition
from tandem.sink.store.contract.object_store import ObjectInfo, ObjectMissingError, PutResult, UploadInfo, check_size

Fault = Callable[[str, str], Exception | None]
Event = Fetched | AtHead | FetchFault


def no_fault(operation: str, key: str) -> Exception | None:
    del operation, key
    return None


@dataclass
class MemoryStore:
    """Objects in a dictionary. `before` and `after` may make an operation fail: before or after it took effect.

    They are asked with the operation's name and key. `clock_ms` is the store's time, moved by whoever owns it.
    """

    clock_ms: int = 1_000_000
    step_ms: int = 1
    before: Fault = no_fault
    after: Fault = no_fault
    objects: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    keys: KeyRing = NO_KEYS
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        return "memory:///"

    def _do(self, operation: str, key: str) -> None:
        self.log.append((operation, key))
        error = self.before(operation, key)
        if error is not None:
            raise error

    def _done(self, operation: str, key: str) -> None:
        error = self.after(operation, key)
        if error is not None:
            raise error

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists."""
        self._do("put", key)
        with self._lock:
            outcome = PutResult.EXISTS if key in self.objects else PutResult.CREATED
            self.objects.setdefault(key, bytes(body))
        self._done("put", key)
        return outcome

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes of an object."""
        self._do("get", key)
        try:
            data = self.objects[key][start:end]
        except KeyError:
            raise ObjectMissingError(key, code="TDM-X001") from None
        check_size(key, len(data), most)
        return data

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object."""
        self._do("head", key)
        data = self.objects.get(key)
        return None if data is None else ObjectInfo(key=key, size=len(data), modified=self.now())

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects in order."""
        self._do("list", prefix)
        with self._lock:
            found = sorted(key for key in self.objects if key.startswith(prefix) and key > (after or ""))
        for key in found:
            yield ObjectInfo(key=key, size=len(self.objects.get(key, b"")), modified=self.now())

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next path segments."""
        rest = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        yield from sorted({name.split("/")[0] for name in rest if "/" in name})

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield the names in one folder."""
        self._do("list", prefix)
        rest = [key.removeprefix(prefix) for key in list(self.objects) if key.startswith(prefix)]
        yield from sorted(name for name in rest if "/" not in name)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._do("delete", key)
            self.objects.pop(key, None)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        self._do("uploads", prefix)
        yield from ()

    def abort_upload(self, upload: UploadInfo) -> None:
        """There are none."""

    def now(self) -> datetime:
        """The store's clock, which goes on a little with every look."""
        with self._lock:
            self.clock_ms += self.step_ms
            return datetime.fromtimestamp(self.clock_ms / 1000, UTC)

    def probe(self, prefix: str) -> tuple[str, ...]:
        del prefix
        return ()

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class UnchangingStore(MemoryStore):
    """The same, whose listings say as those of real stores do when an object was put."""

    put_at: dict[str, datetime] = field(default_factory=dict)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects in order."""
        for info in super().list(prefix, after=after):
            yield replace(info, modified=self.put_at.setdefault(info.key, info.modified))

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        super().delete(gone)
        for key in gone:
            self.put_at.pop(key, None)


@dataclass
class StandInCluster:
    """A cluster whose topics the test changes. `hidden` topics are missing from answers about ids alone.

    What is `undescribed` may not be described, of what is `unconfigured` the configuration may not be.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    undescribed: set[str] = field(default_factory=set)
    unconfigured: set[str] = field(default_factory=set)
    groups: dict[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    unrecorded: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    error: Exception | None = None

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error

    def guarded(self) -> GuardedTopics:
        self._answer()
        denied = self.undescribed | self.unconfigured
        return GuardedTopics(
            topics=tuple(topic for name, topic in self.topics.items() if name not in denied),
            denied=tuple(
                DeniedTopic(
                    name=name,
                    why=f"a right on {name} is missing (grant it)",
                    topic=None if name in self.undescribed else replace(self.topics[name], config={}),
                )
                for name in sorted(denied)
            ),
        )

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str]:
        """The ids of those that exist and are not hidden."""
        self._answer()
        unsaid = self.hidden | self.undescribed
        return {name: self.topics[name].topic_id for name in names if name in self.topics and name not in unsaid}

    def group_offsets(self, topics: Sequence[Topic]) -> GroupPositions:
        """What the test set."""
        del topics
        self._answer()
        return GroupPositions(offsets=self.groups, unrecorded=self.unrecorded)


def evidence(at: float) -> Evidence:
    """What was asked often enough, in no time."""
    return Evidence(answers=6, since=at, until=at)


def fetched(data: bytes, offset: int, *, end: int, at: float = 0.0, **other: Any) -> Fetched:
    """What broker 1 answers for partition 0 of topic t at `at`, unless `other` fields say otherwise."""
    fields: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "fetch_offset": offset,
        "records": data,
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": 0,
        "end_offset": end,
        "aborted": (),
        "leader_id": 1,
        "leader_epoch": 1,
        "requested_at": at,
        "received_at": at,
    }
    return Fetched(**(fields | other))


@dataclass
class ScriptedSource:
    """One lane. `answer` is asked at each poll with the positions of the assigned partitions, and returns events.

    As the fetcher does, it hands out no more records of a partition before it is told how far the last ones were used.
    """

    ends: dict[TopicPartition, tuple[int, int]]
    answer: Callable[[ScriptedSource], list[Event]]
    starts: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    leader: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    known: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    hashes: dict[TopicPartition, dict[int, RecordHash]] = field(default_factory=dict)
    named: dict[TopicPartition, int] = field(default_factory=dict)
    unnamed: bool = False
    name_error: Exception | None = None
    closed: bool = False
    error: Exception | None = None
    handed_out: set[TopicPartition] = field(default_factory=set)

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        last_epoch: int = -1,
        *,
        topic_id: str | None = None,
        led_by: tuple[int, int] | None = None,
    ) -> None:
        del last_epoch
        if led_by is not None:
            self.known[tp] = led_by
        assert topic_id, "another topic of the same name must never be read"
        assert tp not in self.positions, "assigned twice"
        self.positions[tp] = offset

    def seek(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        del last_epoch
        assert tp in self.positions
        self.positions[tp] = offset
        self.handed_out.discard(tp)

    def advance(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        assert offset >= self.positions[tp]
        self.seek(tp, offset, last_epoch)

    def unassign(self, tp: TopicPartition) -> None:
        del self.positions[tp]
        self.handed_out.discard(tp)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if self.error is not None:
            raise self.error
        events = [event for event in self.answer(self) if self._may_come(event)]
        if not events:
            threading.Event().wait(min(timeout_s, 0.01))
        return events

    def _may_come(self, event: Event) -> bool:
        if not isinstance(event, Fetched):
            return True
        tp = TopicPartition(event.topic, event.partition)
        if not event.records or event.fetch_offset != self.positions.get(tp):
            return True
        if tp in self.handed_out:
            return False
        self.handed_out.add(tp)
        return True

    def known_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The ends that the test set, of the partitions that have a leader."""
        return {tp: self.ends[tp] for tp in tps if tp in self.ends and self.leader.get(tp, 1) >= 0}

    def end_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The ends that the test set."""
        return {tp: self.ends[tp] for tp in tps if tp in self.ends}

    def start_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The starts that the test set; 0 by default."""
        return {tp: self.starts.get(tp, (0, -1)) for tp in tps}

    def bounds(
        self, tps: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        """Ends as above, starts of 0 and broker 1 as the leader unless the test says otherwise; leader -1 for none."""
        ends = self.known_ends(tps)
        found = {
            tp: LogBounds(
                start=self.starts.get(tp, (0, 0))[0],
                end=end,
                end_epoch=epoch,
                leader=self.leader.get(tp, 1),
            )
            for tp, (end, epoch) in ends.items()
        }
        return found, {tp: "no leader" for tp in tps if tp not in found}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """What the test set; else every epoch goes on to the log's end."""
        return {tp: self.epochs.get(tp, (epoch, self.ends[tp][0])) for tp, epoch in epochs.items()}

    def record_hashes(self, places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        """What the test set for a partition and offset, of the partitions that have a leader."""
        return {
            tp: self._readable(tp, place) if place.readable else self.hashes.get(tp, {}).get(place.offset)
            for tp, place in places.items()
            if self.leader.get(tp, 1) >= 0
        }

    def _readable(self, tp: TopicPartition, place: LogPlace) -> RecordHash | None:
        start = max(place.offset, self.starts.get(tp, (0, 0))[0])
        there = (one for offset, one in sorted(self.hashes.get(tp, {}).items()) if start <= offset < place.until)
        return next(there, None)

    def named_records(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """What the test set; nobody answers if `unnamed`, and `name_error` is raised if there is one."""
        if self.name_error is not None:
            raise self.name_error
        return {} if self.unnamed else {tp: self.named.get(tp, -1) for tp in tps}

    def close(self) -> None:
        self.closed = True


def no_source() -> ScriptedSource:
    """Open a lane where none is needed."""
    raise AssertionError("the brokers need not be asked")
