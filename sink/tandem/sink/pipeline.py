"""The pipeline of one generation: Kafka -fetch-> batches -transcode-> blocks -buffer-> objects -commit-> chain.

One thread reads both lanes: the tail, never paused, and the scan, newest range first. The committer's thread uploads
and appends; the surveyor's thread asks the cluster for topics and consumer groups, so that a slow broker never holds up
the tail; further threads look up where the logs of new partitions begin and end; the merger's thread merges small
objects. Memory is bounded: a full budget stops the fetch.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.selection.last_records import PartitionCopy, partition_copies
from tandem.sink.commit_draft import CommitDrafter
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.cluster.guarded_topics import DELETE_RETENTION, ClusterView, expires, tombstone_guarantee_s
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.pipeline_report import Phase, PipelineReport, StoringState
from tandem.sink.process import clock
from tandem.sink.process.memory_budget import MemoryBudget
from tandem.sink.process.meters import NOBODY, Meters
from tandem.sink.process.resource_limits import resource_shortage
from tandem.sink.read.backpressure import PATIENCE_S, Backpressure
from tandem.sink.read.new_partitions import NewPartition, NewPartitions
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress, is_recognizable, last_known
from tandem.sink.read.progress.reading_progress import PartitionReading, partition_reading
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S, away_s, shorter_guarantee
from tandem.sink.read.reader_context import FetchSource, ReaderContext
from tandem.sink.read.scan.accept_ranges import RangeAcceptor
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.scan.range_tasks import RangeSizes
from tandem.sink.read.scan.range_time_limit import range_time_limit
from tandem.sink.read.scan.scan_lane import RangeBackEnd, ScanLane
from tandem.sink.read.scan.spark_ranges import SparkRanges
from tandem.sink.read.scan.worker_ranges import RangeWorkers, WorkerRanges
from tandem.sink.read.survey import ClusterSurvey, ClusterSurveyor
from tandem.sink.read.tail import TailReader, held_back
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.transcode.transcoder_result import OUTPUT_LIMIT, Transcoder
from tandem.sink.write.commit import CommitResult, Committer, Task
from tandem.sink.write.confirm import ObjectLoss
from tandem.sink.write.merge import Merger
from tandem.sink.write.merge_plan import MergeRules
from tandem.sink.write.object_buffer import ObjectBuffer
from tandem.sink.write.topics_aside import TopicsAside

_LOG = structlog.get_logger()
_IDLE_POLL_S = 0.2
_SCAN_POLL_S = 0.05
_PROOF_INTERVAL_S = 1.0
_NOT_READ = "not read"
_DENIED = "denied"
_UNJUDGED = "not judged"
_ASIDE = "set aside"
_NAMED = 5
_HELD_FLUSHES = 5
"""Flush intervals that an open transaction may hold records back. Those records reach the backup that much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePolicy:
    """Times in seconds, sizes in bytes, `scan_rate` in bytes per second."""

    flush_interval_s: float = 60.0
    max_objects: int = 64
    object_size: int = 64 << 20
    block_size: int = 256 << 10
    codec: str = "zstandard"
    compression_level: int | None = None
    """Applies to generations of `codec`; a generation that was opened with another codec keeps that codec's level."""
    memory_budget: int = 160 << 20
    compressors: int = 2
    chunk_ceiling_s: float = 60.0
    scan_rate: int | None = None
    parallel_scans: int = 8
    survey_interval_s: float = 10.0
    groups_interval_s: float | None = 300.0
    offers_patience_s: float | None = None
    """Seconds that scans wait for a catch-up job; None: this process reads them, at once."""
    merge: MergeRules = field(default_factory=MergeRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParts:
    """What all pipelines of an instance are made of.

    `committed` is called after each commit, from the pipeline's thread. `workers`, if given, read large scans. `copies`
    returns the pair's generations as they were last seen; these objects do not change any more.
    """

    store: ObjectStore
    cluster: ClusterView
    open_source: Callable[[], FetchSource]
    transcoder: Transcoder
    policy: PipelinePolicy
    abort: threading.Event
    workers: RangeWorkers | None = None
    committed: Callable[[], None] = lambda: None
    copies: Callable[[], Sequence[Generation]] = lambda: ()
    meters: Meters = NOBODY


class Pipeline:
    """Reads and commits for one generation until it is drained or fails. All public methods are thread-safe.

    Pipelines of one process share one `budget`; without one it is that of the policy.
    """

    def __init__(self, writer: ChainWriter, parts: PipelineParts, *, budget: MemoryBudget | None = None) -> None:
        store, policy, meters = parts.store, parts.policy, parts.meters
        opening = writer.state.opening
        assert opening is not None
        self._writer = writer
        self._open_source = parts.open_source
        record_keys = RecordKeys(keys_of(store))
        self._newcomer_lookup = NewPartitions(
            parts.open_source, recorded=writer.state.positions.get, record_keys=record_keys
        )
        # Before the committer appends to the chain: its thread changes the state in place.
        self._found_empty = writer.state.found_empty(writer.state.positions)
        self._aside = TopicsAside()
        self._committed = parts.committed
        self._workers = parts.workers
        self._level = policy.compression_level if policy.codec == opening.codec else None
        self._policy = policy
        self._generation = writer.state.number
        self._drain = threading.Event()
        self._compressors = ThreadPoolExecutor(policy.compressors, thread_name_prefix="compress")
        self._copy_reader = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._surveyor = ClusterSurveyor(
            cluster=parts.cluster,
            interval_s=policy.survey_interval_s,
            groups_interval_s=policy.groups_interval_s,
            meters=meters,
        )
        self._context = ReaderContext(
            floor=_last_told(writer.state),
            store=store,
            buffer=ObjectBuffer(
                codec=Codec(opening.codec),
                sync=bytes.fromhex(opening.sync),
                block_size=policy.block_size,
                level=self._level,
                pool=self._compressors,
            ),
            transcoder=parts.transcoder,
            read_committed=opening.isolation_level == "read_committed",
            hurry_survey=self._surveyor.survey_soon,
            record_keys=record_keys,
            copies=self._partition_copies,
            pool=self._copy_reader,
            meters=meters,
        )
        self._copies = parts.copies
        self._drafter = CommitDrafter(
            self._context,
            writer.state,
            max_objects=policy.max_objects,
            flush_interval_s=policy.flush_interval_s,
            copies=parts.copies,
        )
        self._committer = Committer(
            writer=writer,
            store=store,
            cluster=parts.cluster,
            stop=parts.abort,
            name=f"commit-{self._generation}",
            meters=meters,
        )
        self._budget = MemoryBudget(policy.memory_budget) if budget is None else budget
        self._merger = Merger(
            writer=writer,
            store=store,
            committer=self._committer,
            rules=policy.merge,
            name=f"merge-{self._generation}",
            turn=self._budget.merging,
        )
        self._thread = threading.Thread(target=self._run, name=f"pipeline-{self._generation}", daemon=True)
        self._lanes: tuple[TailReader, ScanLane] | None = None
        self._in_flight = 0
        self._pressure = Backpressure()
        self._flushed = time.monotonic()
        self._looked = -math.inf
        self._bytes = self._commits = 0
        self._unbegun = self._unstored = 0
        self._set_aside: tuple[str, ...] = ()
        self._clocks_disagree = False
        self._last_commit: float | None = None
        self._phase = Phase.STARTING
        self._error: Exception | None = None

    @property
    def generation(self) -> int:
        """The generation's number."""
        return self._generation

    @property
    def writer(self) -> ChainWriter:
        """The writer of the generation's chain; callers may use it once the pipeline is drained."""
        return self._writer

    def start(self) -> None:
        """Start the threads. If one can't be started, the pipeline has failed and the exception is raised."""
        try:
            self._committer.start()
            self._surveyor.start()
            self._merger.start()
            self._thread.start()
        except Exception as error:
            self._surveyor.stop()
            self._merger.stop()
            self._committer.stop()
            self._error = error
            raise

    def drain(self) -> None:
        """Stop fetching, commit all records that were read, then end. Returns at once."""
        self._drain.set()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the pipeline to end after `drain`; return whether it has ended."""
        if self._thread.is_alive():  # it may never have been started
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def request(self, task: Task) -> None:
        """Queue `task`, which the committer runs between commits so that it can append to the chain."""
        self._committer.request(task)

    @property
    def error(self) -> Exception | None:
        """The exception that ended the pipeline or its committer; None if there is none."""
        return self._error or self._committer.error

    @property
    def phase(self) -> Phase:
        """The current phase; FAILED once there is an error."""
        return self._phase if self.error is None else Phase.FAILED

    @property
    def lost_objects(self) -> tuple[ObjectLoss, ...]:
        """Objects of the generation that merging found to be missing or damaged."""
        return self._merger.lost_objects

    @property
    def storing(self) -> StoringState:
        """Whether records get stored. Unlike `report` it looks at no partition, so it may be asked at each tick."""
        failing = self.error is not None or (not self.drained and self._committer.trouble is not None)
        return StoringState(self._last_commit, failing)

    def report(self) -> PipelineReport:
        """Return the current state and figures. Thread-safe."""
        progress_of = list(self._context.progress_of.values())
        error, now = self.error, clock.now()
        damaged = dict(self._context.damaged)
        trouble = [*self._storing_trouble(now), *self._aside_trouble(damaged)]
        first = {_ASIDE, *damaged}
        trouble += [text for subject, text in list(self._context.trouble.items()) if subject not in first]
        if self._surveyor.trouble is not None:
            trouble.append(self._surveyor.trouble)
        if self._merger.trouble is not None:
            trouble.append(f"objects that were replaced can't be deleted: {self._merger.trouble}")
        if self.drained:  # earlier trouble no longer matters and is not updated any more
            trouble = []
        trouble += [f"{item.key} {what}" for item, what in self.lost_objects[:1]]
        return PipelineReport(
            generation=self._generation,
            phase=Phase.FAILED if error is not None else self._phase,
            partitions=len(progress_of),
            base_remaining=sum(progress.scan.remaining for progress in progress_of),
            lag_records=sum(progress.lag for progress in progress_of),
            records=self._context.records,
            bytes=self._bytes,
            commits=self._commits,
            last_commit=self._last_commit,
            trouble=tuple(trouble),
            held=() if self.drained else held_back(self._context),
            error=error,
            aside=() if self.drained else self._set_aside,
            unread=self._newcomer_lookup.missing
            + self._unbegun
            + self._unstored
            + len(self._context.withheld().union(damaged.values())),
            held_bytes=self._held,
            memory_budget=self._budget.bytes,
            waited_s=self._pressure.waited_s(now),
        )

    @property
    def _held(self) -> int:
        """Approximate bytes between fetch and store."""
        return self._context.buffer.bytes + self._in_flight

    def _storing_trouble(self, now: float) -> Iterator[str]:
        refused = self._committer.trouble
        if refused is not None:
            yield f"what was read is not stored yet: {refused}"
        if self._pressure.stopped_s(now) >= PATIENCE_S:
            yield f"nothing is read, because memory.budget ({self._budget.bytes:,} bytes) is full of what is not stored"

    def _aside_trouble(self, damaged: Mapping[object, TopicPartition]) -> Iterator[str]:
        """Yield the troubles of single topics and partitions; they come first, as a heartbeat has room for few."""
        aside = self._context.trouble.get(_ASIDE)
        if aside is not None:
            yield aside
        found = sorted((tp, text) for of, tp in damaged.items() if (text := self._context.trouble.get(of)) is not None)
        if found:
            more = f"; and {len(found) - _NAMED} more partitions" if len(found) > _NAMED else ""
            yield "; ".join(text for _, text in found[:_NAMED]) + more

    @property
    def drained(self) -> bool:
        """Whether the pipeline has committed everything and ended after `drain`."""
        return self._phase is Phase.DRAINED

    def readings(self) -> list[PartitionReading]:
        """Return the reading progress of each partition, from the last responses; sends no request."""
        lanes = self._lanes
        hanging = frozenset[TopicPartition]() if lanes is None else lanes[0].hanging()
        now = clock.now()
        return [
            partition_reading(tp, progress, now=now, hanging=hanging)
            for tp, progress in list(self._context.progress_of.items())
        ]

    def _run(self) -> None:
        sources: list[FetchSource] = []
        self._context.share = share = self._budget.open_share()
        try:
            sources.append(self._open_source())
            sources.append(self._open_source())
            patience_s = _HELD_FLUSHES * self._policy.flush_interval_s
            tail = TailReader(self._context, sources[0], patience_s=patience_s)
            base = self._scan_lane(sources[1])
            self._lanes = (tail, base)
            self._read(sources[1], tail, base)
            self._finish()
        except Exception as error:  # noqa: BLE001 (the controller decides what a failed pipeline means)
            lacking = resource_shortage(error)
            remedy = {} if lacking is None else {"remedy": lacking.remedy}
            _LOG.error("pipeline failed", generation=self._generation, error=error, kind=type(error).__name__, **remedy)
            # The commit under way may still append its entry. A new pipeline must not read the chain before that.
            self._committer.finish(timeout=None)
            self._error = error
        finally:
            if self._lanes is not None:
                self._lanes[1].stop()
            self._surveyor.stop()
            self._merger.stop()
            self._committer.finish(timeout=0.0)
            # The caller keeps the ended pipeline for its report, which does not need the buffers.
            for progress in self._context.progress_of.values():
                self._context.buffer.drop(progress.key)
            self._in_flight = 0
            share.close()
            self._compressors.shutdown(wait=False)
            self._copy_reader.shutdown(wait=False, cancel_futures=True)
            for source in sources:
                source.close()

    def _scan_lane(self, source: FetchSource) -> ScanLane:
        context, policy, state, workers = self._context, self._policy, self._writer.state, self._workers
        acceptor = RangeAcceptor(context, state)
        elsewhere: list[RangeBackEnd] = []
        rate = policy.scan_rate
        if policy.offers_patience_s is not None:
            elsewhere.append(SparkRanges(context, state, acceptor, patience_s=policy.offers_patience_s))
        if workers is not None:
            rate = None if rate is None else max(1, rate // (workers.count + 1))
            sizes = RangeSizes(
                object_size=policy.object_size,
                block_size=policy.block_size,
                compression_level=self._level,
                rate=rate,
            )
            elsewhere.append(WorkerRanges(context, state, acceptor, workers=workers, sizes=sizes))
        here = LocalRanges(context, source, parallel=policy.parallel_scans, allowance=FetchAllowance(rate))
        return ScanLane(context, elsewhere, here)

    def _read(self, source: FetchSource, tail: TailReader, base: ScanLane) -> None:
        share = self._context.share
        while not self._drain.is_set():
            self._collect()
            survey = self._surveyor.take_survey()
            if survey is not None:
                self._survey(survey)
            if not self._context.progress_of:
                source.poll(0.0)  # so that the scan's source is connected, too, before there is anything to read
            self._start_new_partitions(tail, base)
            share.held = self._held
            if not self._pressure.record_full(full=share.is_full(), now=clock.now()):
                # With a slow store the share has next to no room at each step, and the deferred part of a response
                # would be fetched again each time: so each step may always read as much as a usual response expands to.
                self._context.room = OUTPUT_LIMIT // self._budget.shares
                tail.step(0.0 if base.busy else _IDLE_POLL_S if self._context.progress_of else _SCAN_POLL_S)
                for tp, leader, epoch in tail.moved:
                    base.leader_moved(tp, leader, epoch)
                tail.moved.clear()
                base.step(_SCAN_POLL_S)
            else:
                time.sleep(_SCAN_POLL_S)
            self._log_memory_wait()
            if self._context.progress_of:
                self._phase = Phase.SCANNING if base.busy else Phase.READING
            if not (self._newcomer_lookup.waiting or len(self._aside)):  # a mark has the ends of all logs
                self._drafter.mark()
            if self._flush_due():
                self._flush()

    def _log_memory_wait(self) -> None:
        waited_s = self._pressure.due_report_s(clock.now())
        if waited_s is not None:
            _LOG.info(
                "memory.budget is full, reading waits until the store has taken what was read",
                generation=self._generation,
                budget=self._budget.bytes,
                waited_s=round(waited_s, 1),
                remedy="if that is too slow: a larger memory.budget, a faster way to the store",
            )

    def _finish(self) -> None:
        self._phase = Phase.DRAINING
        self._merger.stop()
        self._settle()
        if not self._is_unsure():  # else the next reader reads it again
            self._flush()
        self._settle()
        self._pressure.record_full(full=False, now=clock.now())
        self._phase = Phase.DRAINED

    def _settle(self) -> None:
        while self._committer.busy:
            time.sleep(0.01)
            self._collect()
        self._collect()

    def _collect(self) -> None:
        for done in self._committer.outcomes():
            self._in_flight = 0
            self._commits += 1
            self._last_commit = time.monotonic()
            self._bytes += done.bytes
            _LOG.debug("committed", seq=done.entry.seq, kind=done.entry.kind.value, seconds=round(done.seconds, 3))
            self._note_refused(done)
            for topic_id in done.lost_topics:
                # Records read of this topic are not in the chain. If the topic still exists, it is read on from there.
                self._forget(topic_id)
                self._drafter.reset_topic(topic_id)
                self._surveyor.survey_soon()
            self._merger.committed()
            self._committed()
        if self._committer.error is not None:
            raise self._committer.error

    def _note_refused(self, done: CommitResult) -> None:
        """Set aside the topics whose objects the store refused, and release those of which it has accepted objects."""
        names = {topic.topic_id: topic.name for topic in self._drafter.guarded}
        for topic_id, why in done.refused.items():
            self._aside.set_aside(topic_id, name=names.get(topic_id, topic_id), why=why, now=clock.now())
        self._aside.committed({part.key.topic_id for item in done.entry.objects for part in item.parts})
        self._log_topics_aside()

    def _log_topics_aside(self) -> None:
        trouble = self._aside.trouble
        if trouble is None:
            self._context.clear_trouble(_ASIDE)
        else:
            self._context.report_trouble(_ASIDE, trouble)
        self._set_aside = self._aside.names
        self._unstored = sum(topic.partitions for topic in self._drafter.guarded if topic.topic_id in self._aside)

    def _flush_due(self) -> bool:
        return not self._committer.busy and self._flush_wanted() and not self._is_unsure()

    def _flush_wanted(self) -> bool:
        if not self._context.progress_of:  # nothing is guarded any more, but a removed topic still has to be recorded
            return self._drafter.has_changes()
        buffer = self._context.buffer
        if buffer.largest >= self._policy.object_size or buffer.bytes >= self._context.share.worth_storing:
            return True
        # The checks below go over all partitions, and a step is run for each response: so they are rate-limited.
        now, often_s = time.monotonic(), min(_PROOF_INTERVAL_S, self._policy.flush_interval_s)
        waited = now - self._flushed
        if now - self._looked < often_s:
            return False
        self._looked = now
        if waited >= self._policy.flush_interval_s and self._drafter.has_changes():
            return True
        # The peer waits for the proof that all logs are read to their ends, so it does not wait for a flush interval.
        if waited >= often_s and self._drafter.proof_due():
            return True
        return waited >= self._drafter.confirm_interval_s()

    def _is_unsure(self) -> bool:
        """Return whether a commit has to wait: after a suspension, or because a topic can't be described."""
        if not self._drafter.unsure():
            self._context.clear_trouble(_UNJUDGED)
            return False
        self._surveyor.survey_soon()
        self._context.report_trouble(
            _UNJUDGED, "nothing is committed: records came late, and delete.retention.ms is not known now"
        )
        return True

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        draft = self._drafter.draft()
        if draft is not None:
            self._in_flight = draft.bytes
            self._committer.submit(draft)

    def _survey(self, survey: ClusterSurvey) -> None:
        for topic in self._drafter.survey(survey):
            _LOG.warning("topic is gone, its backup is kept", topic=topic.name, topic_id=topic.topic_id)
            self._forget(topic.topic_id)
        begun = {topic.name for topic in self._drafter.guarded}
        denied = [one.topic for one in survey.found.denied if one.name not in begun]
        # A topic that may not be described counts as one partition, the fewest that it can have.
        self._unbegun = sum(1 if topic is None else topic.partitions for topic in denied)
        trouble = survey.found.trouble
        if trouble is None:
            self._context.clear_trouble(_DENIED)
        else:
            self._context.report_trouble(_DENIED, trouble)
        for progress in self._context.progress_of.values():  # its topic's configuration may have changed
            time_limit = range_time_limit(progress.base_held_to_s, self._policy.chunk_ceiling_s)
            progress.scan.limit_s, progress.scan.best_effort = time_limit["limit_s"], time_limit["best_effort"]
        self._aside.forget_unguarded({topic.topic_id for topic in self._drafter.guarded})
        self._log_topics_aside()
        now = clock.now()
        self._newcomer_lookup.want(
            {
                TopicPartition(topic.name, n): topic
                for topic in self._drafter.guarded
                if not self._aside.is_set_aside(topic.topic_id, now)
                for n in range(topic.partitions)
                if TopicPartition(topic.name, n) not in self._context.progress_of
            }
        )

    def _start_new_partitions(self, tail: TailReader, base: ScanLane) -> None:
        """Start reading the new partitions whose log bounds are known by now."""
        for tp, new_partition in self._newcomer_lookup.step(clock.now()).items():
            progress = self._progress(tp, new_partition)
            self._context.progress_of[tp] = progress
            tail.add(tp, progress)
            if not progress.scan.base.complete:
                base.add(tp)
        trouble = self._newcomer_lookup.trouble
        if trouble is None:
            self._context.clear_trouble(_NOT_READ)
        else:
            self._context.report_trouble(_NOT_READ, trouble)

    def _forget(self, topic_id: str) -> None:
        assert self._lanes is not None
        self._newcomer_lookup.forget(topic_id)
        for tp, progress in list(self._context.progress_of.items()):
            if progress.key.topic_id == topic_id:
                self._context.buffer.drop(progress.key)
                self._context.adopted.pop(progress.key, None)
                for lane in self._lanes:
                    lane.remove(tp)
                del self._context.progress_of[tp]

    def _progress(self, tp: TopicPartition, new_partition: NewPartition) -> PartitionProgress:
        topic, bounds, asked = new_partition.topic, new_partition.bounds, new_partition.asked
        key = PartitionKey(topic.topic_id, tp.partition)
        state = self._writer.state
        retention_s = tombstone_guarantee_s(topic.config)
        before = state.positions.get(key)
        known = topic if before is None else state.topics.get(topic.topic_id, topic)
        held_to_s = shorter_guarantee(tombstone_guarantee_s(known.config), retention_s)
        time_limit = range_time_limit(held_to_s, self._policy.chunk_ceiling_s)
        if retention_s is not None and retention_s < SHORTEST_RETENTION_S:
            _LOG.warning(
                "delete.retention.ms is too short to prove that no deleted key comes back: best effort",
                topic=topic.name,
                delete_retention_ms=topic.config.get(DELETE_RETENTION),
                remedy=f"set it to at least {SHORTEST_RETENTION_S:.0f} s",
            )
        if before is None:
            return PartitionProgress(
                key=key,
                topic=tp.topic,
                offset=bounds.end,
                epoch=bounds.end_epoch,
                log_start=bounds.start,
                head_at=self._context.at(asked),
                head_mono=asked,
                head_offset=bounds.end,
                scan=ScanPlan(
                    Base(
                        start=min(bounds.start, bounds.end),
                        end=bounds.end,
                        leader=bounds.leader,
                        epoch=bounds.leader_epoch,
                    ),
                    **time_limit,
                ),
                retention_s=retention_s,
                expires=expires(topic.config),
                known=new_partition.hashes,
            )
        # A record that was looked up in a log that had none was not read: the tail compares the two.
        found_empty = key in self._found_empty and not before.hashes
        progress = PartitionProgress(
            key=key,
            topic=tp.topic,
            offset=before.offset,
            epoch=before.epoch,
            log_start=before.log_start,
            head_at=state.head_at(key),
            head_mono=asked - self._away_s(key),
            head_offset=before.offset,
            scan=ScanPlan(before.base, **time_limit),
            retention_s=held_to_s,
            expires=expires(topic.config),
            skew=state.skew(key),
            recorded=before,
            known=before.hashes if found_empty else new_partition.hashes or before.hashes,
            unhashed=before.base.complete and not before.hashes and not found_empty,
        )
        progress.set_guarantee(retention_s, now=asked)
        led_by = progress.scan.led_by(bounds.leader, bounds.leader_epoch)
        if not (led_by and is_recognizable(progress.scan, last_known(before.hashes))):
            progress.scan.start_again(leader=bounds.leader, epoch=bounds.leader_epoch, start=bounds.start)
            progress.begins_at(bounds.start)
        return progress

    def _partition_copies(self, progress: PartitionProgress) -> Sequence[PartitionCopy]:
        held_to_s = shorter_guarantee(progress.held_to_s, progress.base_held_to_s)
        return partition_copies(self._copies(), {progress.key: held_to_s})[progress.key]

    def _away_s(self, key: PartitionKey) -> float:
        """Return the seconds since an earlier process last read the partition to the head of its log."""
        state = self._writer.state
        head_at, store_ms = state.head_at(key), now_ms(self._context.store)
        local_ms = clock.local_ms()
        by_store_s = away_s(head_at=head_at, skew=None, store_ms=store_ms, local_ms=local_ms)
        longest_s = away_s(head_at=head_at, skew=state.skew(key), store_ms=store_ms, local_ms=local_ms)
        if longest_s > by_store_s and not self._clocks_disagree:
            self._clocks_disagree = True
            _LOG.warning(
                "the store's clock or this machine's was set while nobody read: the longer time away counts",
                generation=self._generation,
                by_store_s=round(by_store_s, 1),
                by_machine_s=round(longest_s, 1),
                remedy="keep the clocks of machines and store synchronised",
            )
        return longest_s


def _last_told(state: Generation) -> int:
    """Return the latest time in the chain (ms); it is ahead of the store's clock if that clock was set back."""
    return max([state.at, *(state.head_at(key) for key in state.positions)])
