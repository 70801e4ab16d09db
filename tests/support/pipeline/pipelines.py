"""A pipeline on a scripted log of one partition, without brokers: what the log holds is changed while it runs."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.backups.chains import CLUSTER, OPENING, PAIR, key, topic
from support.pipeline.doubles import Event, MemoryStore, ScriptedSource, StandInCluster, evidence, fetched
from support.records.strategies import batch
from tandem.backup_avro.chain.entries import PartitionKey, RecordHash
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.record.container import Codec, decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import Record, TimestampType, decode_body, encode
from tandem.sink.kafka.events import AtHead, FetchFault, TopicPartition
from tandem.sink.pipeline import Pipeline, PipelineParts, PipelinePolicy
from tandem.sink.process import clock
from tandem.sink.process.meters import NOBODY, Meters
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.worker_ranges import RangeWorkers
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, Identity, claim
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.write.object_buffer import ObjectBuffer

T0 = TopicPartition("t", 0)
QUICK = PipelinePolicy(flush_interval_s=0.05, survey_interval_s=0.05, groups_interval_s=None, block_size=200)


@dataclass
class Log:
    """One partition's log, and the sources that read it. `faults` come before anything else, once.

    If it `finds_nothing`, it names no record at any offset to sources after those of a pipeline's two lanes.
    """

    offsets: list[int] = field(default_factory=list)
    values: dict[int, bytes] = field(default_factory=dict)
    hashes: dict[int, RecordHash] = field(default_factory=dict)
    end: int = 0
    start: int = 0
    leader: int = 1
    epoch: int = 1
    faults: list[FetchFault] = field(default_factory=list)
    spoilt: bool = False
    sources: list[ScriptedSource] = field(default_factory=list)
    quiet: bool = False
    finds_nothing: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def append(self, *offsets: int, value: bytes = b"v") -> None:
        """Produce records; the end is behind the last one."""
        with self.lock:
            self.offsets.extend(offsets)
            self.values.update(dict.fromkeys(offsets, value))
            hashes = (hashlib.sha256(encode(self.record(offset))).hexdigest()[:12] for offset in offsets)
            self.hashes.update({offset: RecordHash(offset, one) for offset, one in zip(offsets, hashes, strict=True)})
            self.end = self.offsets[-1] + 1
            for source in self.sources:
                source.ends[T0] = (self.end, 1)

    def set_back(self, at: int, *offsets: int, value: bytes = b"another") -> None:
        """The broker's volume is put back to when the log ended at `at`, and others write to it, in the same epoch."""
        with self.lock:
            self.offsets = [offset for offset in self.offsets if offset < at]
            self.append(*offsets, value=value)

    def record(self, offset: int) -> Record:
        """The record at an offset."""
        return Record(
            topic="t",
            partition=0,
            offset=offset,
            timestamp=offset,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"k%d" % offset,
            value=self.values.get(offset, b"v"),
        )

    def compact_to(self, end: int, *, epoch: int) -> None:
        """Have the end go on, with nothing readable below; the last record there was of this epoch."""
        with self.lock:
            self.end = end
            for source in self.sources:
                source.ends[T0] = (end, epoch)

    def open(self) -> ScriptedSource:
        source = ScriptedSource(
            ends={T0: (self.end, 1)},
            answer=self.answer,
            starts={T0: (self.start, 0)},
            leader={T0: self.leader},
            hashes={T0: {} if self.finds_nothing and len(self.sources) >= 2 else self.hashes},
        )
        if self.sources:  # all see one cluster, also those that are opened later
            first = self.sources[0]
            source.ends, source.starts, source.leader = first.ends, first.starts, first.leader
        self.sources.append(source)
        return source

    def answer(self, source: ScriptedSource) -> list[Event]:
        """Up to four records of each assigned partition, or that it is at head."""
        with self.lock:
            return self._answer(source)

    def _answer(self, source: ScriptedSource) -> list[Event]:
        now = clock.now()
        if T0 not in source.positions or self.quiet:
            return []
        if self.faults and source is self.sources[0]:
            return [self.faults.pop(0)]
        position = source.positions[T0]
        ahead = [offset for offset in self.offsets if offset >= max(position, self.start)][:4]
        if not ahead and position == self.end:
            time.sleep(0.002)
            return [AtHead(leader_id=self.leader, partitions={T0: self.end}, requested_at=now, received_at=now)]
        records = [self.record(offset) for offset in ahead]
        data = batch(records, leader_epoch=1) if records else b""
        if self.spoilt and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return [
            fetched(
                data,
                position,
                end=self.end,
                at=now,
                log_start_offset=self.start,
                leader_id=self.leader,
                leader_epoch=self.epoch,
                evidence=None if records or position >= self.end else evidence(now),
            )
        ]


@dataclass
class Bench:
    """A pipeline at work."""

    log: Log = field(default_factory=Log)
    store: MemoryStore = field(default_factory=MemoryStore)
    cluster: StandInCluster = field(default_factory=lambda: StandInCluster(topics={"t": topic()}))
    policy: PipelinePolicy = QUICK
    abort: threading.Event = field(default_factory=threading.Event)
    started: list[Pipeline] = field(default_factory=list)
    workers: RangeWorkers | None = None
    meters: Meters = NOBODY
    copies: tuple[Generation, ...] = ()
    committed: Callable[[], None] = lambda: None

    def claim(self) -> ChainWriter:
        who = Identity(pair=PAIR, instance="a", incarnation="a-1", cluster_id=CLUSTER)
        return claim(self.store, who, 1, opening=OPENING, reason="test", stop=self.abort)

    def start(self, writer: ChainWriter | None = None) -> Pipeline:
        """Start a pipeline on a new claim, or go on with a chain."""
        pipeline = Pipeline(
            writer or self.claim(),
            PipelineParts(
                store=self.store,
                cluster=self.cluster,
                open_source=self.log.open,
                transcoder=ReferenceTranscoder(),
                policy=self.policy,
                abort=self.abort,
                workers=self.workers,
                committed=self.committed,
                copies=lambda: self.copies,
                meters=self.meters,
            ),
        )
        self.started.append(pipeline)
        pipeline.start()
        return pipeline

    def read(self, *offsets: int) -> Pipeline:
        """Append records, start a pipeline, and wait until it has read them."""
        self.log.append(*offsets)
        pipeline = self.start()
        self.until(through(offsets[-1] + 1))
        return pipeline

    def again(self) -> Pipeline:
        """Start on what the chain says, as after a failure."""
        self.log.sources.clear()
        return self.start(ChainWriter(self.store, self.chain(), "a-1", stop=self.abort))

    def chain(self) -> Generation:
        """What a reader sees."""
        return ChainReader(self.store, PAIR).load(1)

    def until(self, true: Callable[[Generation], Any], seconds: float = 8.0) -> Generation:
        """Wait until the chain says so."""
        deadline = time.monotonic() + seconds
        while True:
            state = self.chain()
            if true(state):
                return state
            assert time.monotonic() < deadline, f"not so after {seconds} s: {self.started[-1].report()}"
            time.sleep(0.02)

    def stored(self, state: Generation, of: PartitionKey | None = None) -> list[int]:
        """The offsets of all live records, in offset order, read from the objects."""
        return [record.offset for record in self._records(state, of)]

    def values(self, state: Generation) -> list[bytes | None]:
        """The values of all live records, in offset order, read from the objects."""
        return [record.value for record in self._records(state)]

    def _records(self, state: Generation, of: PartitionKey | None = None) -> list[Record]:
        found: list[Record] = []
        for item, part in state.live_parts():
            data = self.store.objects[item.key]
            header = decode_header(data)
            if part.key == (of or key()):
                for block in iter_blocks(data, header, part.start, part.end):
                    body = decompress(block, header.codec)
                    found += decode_body(body, block.count)
        return sorted(found, key=lambda record: record.offset)


def through(offset: int) -> Callable[[Generation], bool]:
    """Whether all is read through, up to an offset."""
    return lambda state: state.read_through(key()) and state.positions[key()].offset >= offset


@contextmanager
def at_work(**how: Any) -> Iterator[Bench]:
    """A bench, with an empty log unless said otherwise; whatever was started on it is ended."""
    bench = Bench(**how)
    yield bench
    bench.abort.set()
    for pipeline in bench.started:
        pipeline.drain()
        assert pipeline.join(8.0)


def bare_context(**how: Any) -> ReaderContext:
    """A board without a partition, before an empty store."""
    fields: dict[str, Any] = {
        "store": MemoryStore(),
        "buffer": ObjectBuffer(codec=Codec.NULL, sync=b"0" * 16, block_size=1000),
        "transcoder": ReferenceTranscoder(),
        "read_committed": True,
        "hurry_survey": lambda: None,
    }
    return ReaderContext(**(fields | how))
