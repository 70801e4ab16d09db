"""What a simulated process has of the cluster: a fetcher for each lane, an admin view, the transcoder."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulation.log import Cluster, Partition, Record
from simulation.network import Network
from tandem.backup_avro.chain.entries import RecordHash, Topic
from tandem.backup_avro.errors import DamagedError
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GroupPositions, GuardedTopics
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterTransientError, ClusterUnreachableError
from tandem.sink.kafka.events import (
    AtHead,
    Evidence,
    FaultKind,
    Fetched,
    FetchFault,
    LogBounds,
    LogPlace,
    TopicPartition,
)
from tandem.sink.kafka.fetch.empty_answers import SECONDS, EmptyAnswers, EmptyRange
from tandem.sink.transcode.transcoder_result import Segment, Transcoded

_RECORD = struct.Struct(">qiiq")
RECORD_BYTES = _RECORD.size
_TOMBSTONE = -1
_LONG_POLL_S = 0.5
_LONGEST_MOMENT_S = 0.95 * SECONDS
_LONGEST_S = 25.0

Event = Fetched | AtHead | FetchFault


class RawRecords(bytes):
    """Stands for undecoded batches: the records themselves ride along."""

    items: Sequence[Record]
    aborted: frozenset[int]
    bad: frozenset[int]


def raw(records: Sequence[Record], aborted: set[int], bad: set[int]) -> RawRecords:
    """Return a response body."""
    body = RawRecords(b"x" * len(records))
    body.items = records
    body.aborted = frozenset(aborted)
    body.bad = frozenset(bad)
    return body


def encode(records: Sequence[Record]) -> bytes:
    """Return the body of a block."""
    return b"".join(_RECORD.pack(r.offset, r.epoch, r.key, _TOMBSTONE if r.value is None else r.value) for r in records)


def decode(body: bytes | memoryview) -> list[Record]:
    """Return the records of a block."""
    return [
        Record(offset, epoch, key, None if value == _TOMBSTONE else value)
        for offset, epoch, key, value in _RECORD.iter_unpack(body)
    ]


class Transcoder:
    """Leaves out control records and, under read_committed, aborted ones."""

    name = "simulated"

    def transcode(
        self,
        records: bytes | memoryview,
        *,
        topic: str,
        partition: int,
        start: int,
        until: int | None,
        aborted: tuple[tuple[int, int], ...],
        read_committed: bool,
    ) -> Transcoded:
        """As `sink.transcode.transcoder_result.Transcoder` says."""
        del aborted
        if not records:
            return Transcoded(segments=(), next_offset=start, leader_epoch=-1)
        assert isinstance(records, RawRecords)
        wanted = [r for r in records.items if r.offset >= start and (until is None or r.offset < until)]
        bad = next((r.offset for r in wanted if r.offset in records.bad), None)
        if bad is not None:
            raise DamagedError(
                f"topic {topic}, partition {partition}, record batch at offset {bad}: its CRC is wrong", code="TDM-X001"
            )
        kept = [r for r in wanted if not r.control and not (read_committed and r.txn in records.aborted)]
        last = records.items[-1]
        segments = ()
        if kept:
            segments = (
                Segment(
                    body=encode(kept),
                    records=len(kept),
                    tombstones=sum(r.value is None for r in kept),
                    first_offset=kept[0].offset,
                    last_offset=kept[-1].offset,
                    last_at=(len(kept) - 1) * RECORD_BYTES,
                    min_timestamp=0,
                    max_timestamp=0,
                    largest=0,
                    codecs=1,
                ),
            )
        following = max(start, last.offset + 1)
        return Transcoded(
            segments=segments,
            next_offset=following if until is None else min(until, following),
            leader_epoch=last.epoch,
        )


@dataclass(slots=True)
class _Spot:
    offset: int
    epoch: int
    topic_id: str | None
    leader: int = -1
    leader_epoch: int = -1
    starts: int = 0
    resting: bool = False
    serial: int = 0
    held: bool = False
    """Its records were handed out, and nobody has said how far they were used."""
    shut: FaultKind | None = None


class Source:
    """One lane's fetcher, as `sink.read.reader_context.Source` says."""

    def __init__(self, cluster: Cluster, network: Network) -> None:
        self._cluster = cluster
        self._network = network
        self._spots: dict[TopicPartition, _Spot] = {}
        self._answered = -1.0
        self._told = False
        self._empty = EmptyAnswers()
        self._serial = 0
        self._withheld_until: dict[TopicPartition, float] = {}

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        last_epoch: int = -1,
        *,
        topic_id: str | None = None,
        led_by: tuple[int, int] | None = None,
    ) -> None:
        self._serial += 1
        spot = _Spot(offset, last_epoch, topic_id, serial=self._serial)
        self._spots[tp] = spot
        partition = self._partition(tp, spot)
        spot.starts = 0 if partition is None else partition.starts
        if led_by is not None:
            spot.leader, spot.leader_epoch = led_by
        elif partition is not None:
            spot.leader, spot.leader_epoch = partition.leader, partition.epoch

    def seek(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        spot = self._spots[tp]
        self._serial += 1
        spot.offset, spot.epoch, spot.resting, spot.held = offset, last_epoch, False, False
        spot.serial = self._serial

    def advance(self, tp: TopicPartition, offset: int, last_epoch: int = -1) -> None:
        spot = self._spots.get(tp)
        if spot is not None:
            spot.offset, spot.epoch, spot.held = offset, last_epoch, False

    def unassign(self, tp: TopicPartition) -> None:
        self._spots.pop(tp, None)

    def close(self) -> None:
        """Nothing to release."""

    def known_ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The ends, with the epoch of the record before each; none of leaders that don't know their own yet."""
        found = [self._cluster.present(*tp) for tp in tps]
        knowing = [tp for tp, log in zip(tps, found, strict=True) if log is None or log.known is None]
        return self._ask(knowing, lambda partition: (partition.stable, partition.epoch_before(partition.stable)))

    def bounds(
        self, tps: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        """Ends, starts and leaders, each asked for by a request of its own."""
        ends = self.known_ends(tps)
        starts = self._ask(list(ends), lambda partition: (partition.start, partition.epoch))
        leaders = self._ask(list(starts), lambda partition: (partition.leader, partition.epoch))
        found = {
            tp: LogBounds(
                start=starts[tp][0], end=ends[tp][0], end_epoch=ends[tp][1], leader=leader, leader_epoch=epoch
            )
            for tp, (leader, epoch) in leaders.items()
        }
        return found, {tp: "no leader" for tp in tps if tp not in found}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        self._network.broker_call()
        found = {}
        for tp, epoch in epochs.items():
            if not self._network.may_describe(tp.topic):
                raise _denied(tp.topic)
            partition = self._cluster.present(*tp)
            if partition is not None:
                if partition.leaderless:
                    raise ClusterTransientError(
                        f"no leader for {tp.topic}-{tp.partition}", code="TDM-X001", remedy="wait"
                    )
                found[tp] = partition.end_of_epoch(epoch)
        return found

    def record_hashes(self, places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        """The first record at or above each place: all batches have one."""
        self._network.broker_call()
        found: dict[TopicPartition, RecordHash | None] = {}
        for tp, place in places.items():
            log = self._cluster.present(*tp) if self._network.may_describe(tp.topic) else None
            if log is None or log.topic_id != place.topic_id or log.leaderless:
                continue
            there = log.replicas[log.leader].records
            if place.readable:
                within = range(max(place.offset, log.start), min(place.until, log.told))
                records = (there[offset] for offset in within if offset in there)
                record = next((one for one in records if not one.control and one.txn not in log.aborted), None)
                if record is None and log.told < place.until:
                    continue
            else:
                within = range(place.offset, min(place.until, log.end)) if log.start <= place.offset else range(0)
                record = next((there[offset] for offset in within if offset in there), None)
            if record is None or record.control:
                found[tp] = None
            else:
                found[tp] = RecordHash(record.offset, hashlib.sha256(encode([record])).hexdigest()[:12])
        return found

    def named_records(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The last record of each log: the one with the largest timestamp."""
        if not self._network.brokers_answer():
            return {}
        found = {tp: self._cluster.present(*tp) for tp in tps if self._network.may_describe(tp.topic)}
        named = self._network.weather.named
        return {
            tp: log.last_readable() if named else -1
            for tp, log in found.items()
            if log is not None and not log.leaderless
        }

    def _ask(
        self, tps: Sequence[TopicPartition], what: Callable[[Partition], tuple[int, int]]
    ) -> dict[TopicPartition, tuple[int, int]]:
        self._network.broker_call()
        found = {tp: self._cluster.present(*tp) for tp in tps if self._network.may_describe(tp.topic)}
        return {tp: what(log) for tp, log in found.items() if log is not None and not log.leaderless}

    def _leaderless(self, tp: TopicPartition) -> bool:
        partition = self._cluster.present(*tp)
        return partition is not None and partition.leaderless

    def _partition(self, tp: TopicPartition, spot: _Spot) -> Partition | None:
        partition = self._cluster.present(tp.topic, tp.partition)
        if partition is None or (spot.topic_id is not None and partition.topic_id != spot.topic_id):
            return None
        return partition

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """One fetch at most."""
        network = self._network
        if not network.brokers_answer():
            network.pause(timeout_s)
            if self._told:
                return ()
            self._told = True
            return (FetchFault(topic="", partition=-1, kind=FaultKind.TRANSIENT, detail="no answer", at=network.now),)
        self._told = False
        events = self._fetch(network.now)
        if not events and timeout_s > 0:
            asked = network.now
            partitions = [self._partition(tp, spot) for tp, spot in self._spots.items()]
            network.long_poll([p for p in partitions if p is not None], timeout_s)
            if not network.brokers_answer():
                return ()
            events = self._fetch(asked)
        delay = network.answer_delay()
        if events and delay:
            network.pause(delay)
            now = network.now
            events = [_received(event, now) for event in events]
        return events

    def _fetch(self, requested: float) -> list[Event]:
        network, rng = self._network, self._network.random
        now = network.now
        events: list[Event] = []
        heads: dict[int, dict[TopicPartition, int]] = {}
        epochs: dict[TopicPartition, int] = {}
        alone = self._asked_alone(now)
        for tp, spot in self._spots.items():
            if spot.resting or spot.held or self._leaderless(tp):
                continue
            partition = self._partition(tp, spot)
            shut = self._shut(tp, partition)
            if shut is not None and shut is not spot.shut:
                events.append(_fault(tp, shut, now, spot.offset))
            spot.shut = shut
            if partition is None or shut is not None:
                continue
            anew = _started_anew(tp, spot, partition, now, events)
            # Records of its log by now may arrive in the same step as the news.
            if (anew and rng.random() < 0.5) or _led_by(tp, spot, partition, now, events):
                continue
            fault = self._check(tp, spot, partition, now)
            if fault is not None:
                spot.resting = True
                events.append(fault)
                continue
            records = partition.readable(partition.leader, spot.offset, rng.choice((2, 8, 30)))
            stable = partition.told
            if records and self._withholds(tp, now):
                records = []
            spot.held = bool(records)
            evidence = self._evidence(tp, spot, partition, alone=tp in alone)
            # A full response names partitions that have nothing new as well.
            named = 1.0 if evidence else 0.5 if spot.offset < stable else 0.1 if spot.offset == stable else 0.0
            if records or rng.random() < named:
                event = _fetched(tp, spot, partition, records, (requested, now))
                events.append(replace(event, evidence=evidence))
            elif spot.offset == stable and now - self._answered >= _LONG_POLL_S:
                heads.setdefault(partition.leader, {})[tp] = stable
                epochs[tp] = partition.epoch
        if heads:
            self._answered = now
        rng.shuffle(events)
        events.sort(key=lambda event: not isinstance(event, FetchFault))  # of one partition, it comes before records
        for leader, partitions in heads.items():
            events.append(_at_head(leader, partitions, epochs, requested, now))
        return events

    def _asked_alone(self, now: float) -> set[TopicPartition]:
        alone = set()
        while (due := self._empty.take_due(now)) is not None:
            alone.add(due[0])
        return alone

    def _evidence(self, tp: TopicPartition, spot: _Spot, partition: Partition, *, alone: bool) -> Evidence | None:
        """Take in an answer, as `sink.kafka.fetch.responses` does."""
        if spot.held or spot.offset >= partition.told:
            self._empty.forget(tp)
            return None
        place = EmptyRange(serial=spot.serial, offset=spot.offset, end=partition.told, leader_epoch=partition.epoch)
        return self._empty.add(tp, place, asked_alone=alone, now=self._network.now)

    def _withholds(self, tp: TopicPartition, now: float) -> bool:
        """Whether the broker sends nothing of a partition that it has; when that moment is over, it sends some."""
        until = self._withheld_until.pop(tp, None)
        weather = self._network.weather
        if until is None and weather.withheld and weather.answers.random() < weather.withheld:
            lasting = weather.withheld_long and weather.answers.random() < weather.withheld_long
            until = now + weather.answers.random() * (_LONGEST_S if lasting else _LONGEST_MOMENT_S)
        if until is None or now >= until:
            return False
        self._withheld_until[tp] = until
        return True

    def _shut(self, tp: TopicPartition, partition: Partition | None) -> FaultKind | None:
        if not self._network.may_describe(tp.topic):
            return FaultKind.UNAUTHORIZED
        if partition is None:
            return FaultKind.UNKNOWN_TOPIC
        return FaultKind.UNAUTHORIZED if tp.topic in self._cluster.denied else None

    def _check(self, tp: TopicPartition, spot: _Spot, partition: Partition, now: float) -> FetchFault | None:
        if spot.epoch >= 0:
            epoch, end = partition.end_of_epoch(spot.epoch)
            if epoch < spot.epoch or end < spot.offset:
                return _fault(tp, FaultKind.DIVERGED, now, spot.offset, diverging_epoch=epoch, diverging_offset=end)
        if spot.offset > partition.end or spot.offset < partition.start:
            return _fault(
                tp, FaultKind.OUT_OF_RANGE, now, spot.offset, log_start=partition.start, log_end=partition.end
            )
        return None


def _denied(topic: str) -> ClusterDeniedError:
    return ClusterDeniedError(f"topic {topic} is denied", code="TDM-X001", remedy="wait")


def _started_anew(tp: TopicPartition, spot: _Spot, partition: Partition, now: float, events: list[Event]) -> bool:
    """Tell that the leader was lost and is there again."""
    if partition.starts == spot.starts:
        return False
    spot.starts = partition.starts
    events.append(_fault(tp, FaultKind.LEADER_LOST, now, spot.offset))
    return True


def _led_by(tp: TopicPartition, spot: _Spot, partition: Partition, now: float, events: list[Event]) -> bool:
    """Take in who leads, and tell if that is news; return whether another one leads, or may have in between."""
    returned = spot.leader == partition.leader and partition.epoch > spot.leader_epoch + 1
    moved = spot.leader != partition.leader or returned
    if spot.leader != -1 and (moved or 0 <= spot.leader_epoch < partition.epoch):
        kind = FaultKind.LEADER_MOVED if moved else FaultKind.EPOCH_RAISED
        before = {"old_leader": spot.leader, "old_epoch": spot.leader_epoch}
        after = {"new_leader": partition.leader, "new_epoch": partition.epoch}
        events.append(_fault(tp, kind, now, spot.offset, **before, **after))
    spot.leader, spot.leader_epoch = partition.leader, partition.epoch
    return moved


def _fault(tp: TopicPartition, kind: FaultKind, now: float, offset: int, **more: int) -> FetchFault:
    return FetchFault(
        topic=tp.topic,
        partition=tp.partition,
        kind=kind,
        detail=kind.value,
        at=now,
        offset=offset,
        **more,  # type: ignore[arg-type]  # its integer fields
    )


def _fetched(
    tp: TopicPartition, spot: _Spot, partition: Partition, records: list[Record], times: tuple[float, float]
) -> Fetched:
    return Fetched(
        topic=tp.topic,
        partition=tp.partition,
        fetch_offset=spot.offset,
        records=raw(records, partition.aborted, partition.bad),
        high_watermark=partition.end if partition.known is None else partition.known,
        last_stable_offset=partition.told,
        log_start_offset=partition.start,
        end_offset=partition.told,
        aborted=(),
        leader_id=partition.leader,
        leader_epoch=partition.epoch,
        received_at=times[1],
        requested_at=times[0],
    )


def _at_head(
    leader: int, partitions: dict[TopicPartition, int], epochs: dict[TopicPartition, int], requested: float, now: float
) -> AtHead:
    del epochs
    return AtHead(leader_id=leader, partitions=partitions, requested_at=requested, received_at=now)


def _received(event: Event, now: float) -> Event:
    if isinstance(event, Fetched):
        fields = {name: getattr(event, name) for name in Fetched.__slots__}
        return Fetched(**(fields | {"received_at": now}))
    if isinstance(event, AtHead):
        fields = {name: getattr(event, name) for name in AtHead.__slots__}
        return AtHead(**(fields | {"received_at": now}))
    return event


class Admin:
    """The cluster as `controller.watch.guarded_cluster.GuardedCluster` shows it."""

    def __init__(self, cluster: Cluster, network: Network) -> None:
        self._cluster = cluster
        self._network = network

    def guarded(self) -> GuardedTopics:
        """All topics, and those that this process lacks a right on. As if each was named in `topics.include`."""
        network = self._network
        network.broker_call()
        found, denied = [], []
        for name, topic in self._cluster.topics.items():
            if network.may_configure(name):
                found.append(topic)
            else:
                seen = replace(topic, config={}) if network.may_describe(name) else None
                denied.append(DeniedTopic(name=name, why=f"topic {name} is denied", topic=seen))
        gone = [name for name in network.lacks if name not in self._cluster.topics and not network.may_describe(name)]
        denied += [DeniedTopic(name=name, why=f"topic {name} is denied") for name in gone]
        if denied and not found:
            raise _denied(denied[0].name)
        return GuardedTopics(topics=tuple(found), denied=tuple(denied))

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str]:
        self._network.broker_call()
        told = [name for name in names if name in self._cluster.topics and self._network.may_describe(name)]
        return {name: self._cluster.topics[name].topic_id for name in told}

    def group_offsets(self, topics: Sequence[Topic]) -> GroupPositions:
        del topics
        return GroupPositions(offsets={})


__all__ = ["Admin", "ClusterUnreachableError", "RawRecords", "Source", "Transcoder", "decode"]
