"""Make the page that Prometheus scrapes from `InstanceMetrics`. Scrapes run one at a time."""

from __future__ import annotations

import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tandem.backup_avro.chain.entries import Entry
from tandem.backup_avro.documents.outcome import JobKind
from tandem.controller.decision.loss_sign_format import LossKind, LossSign
from tandem.controller.decision.observation import Role
from tandem.controller.metrics.catalogue import COMMON, METRICS, READING, MetricKind
from tandem.controller.metrics.instance_metrics import BackupMetrics, InstanceMetrics, LastRuns
from tandem.controller.process import memory_allocator
from tandem.controller.status.overview import GenerationState
from tandem.sink.pipeline_report import Phase
from tandem.sink.process.meters import Meters
from tandem.sink.read.progress.reading_progress import PartitionReading, ReadingProgress, by_topic, sum_readings

_STARTING = "Starting"
Sample = tuple[str, tuple[str, ...], float]
"""Name without `tandem_`, values of its labels, value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDetail:
    """The level of detail of the reading metrics: per topic, if there are at most `max_topics`, and per partition."""

    max_topics: int = 200
    partitions: bool = False


class MetricTally:
    """Counters and histograms of a process, fed by pipelines. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str) -> Counter:
            described = METRICS[name]
            return Counter(name, described.help, described.labels, registry=registry)

        def histogram(name: str) -> Histogram:
            described = METRICS[name]
            return Histogram(name, described.help, buckets=described.buckets, registry=registry)

        self._retries = counter("tandem_retries_total")
        self._skipped = counter("tandem_skipped_offsets_total")
        self._records = counter("tandem_records_written_total")
        self._tombstones = counter("tandem_tombstones_written_total")
        self._bytes = counter("tandem_bytes_written_total")
        self._objects = counter("tandem_objects_written_total")
        self._commits = counter("tandem_commits_total")
        self._uploads = histogram("tandem_upload_duration_seconds")
        self._durations = histogram("tandem_commit_duration_seconds")
        # A counter that begins with its first event hides that event from rate().
        for target in ("store", "brokers", "kms"):
            self._retries.labels(target)

    @property
    def meters(self) -> Meters:
        """The meters that pipelines report to."""
        return Meters(
            uploaded=self._uploads.observe,
            committed=self._committed,
            retried=self.retried,
            skipped=self._skipped.inc,
        )

    def retried(self, target: str) -> None:
        """Count a retry of a request to the store, the brokers or the KMS."""
        self._retries.labels(target).inc()

    def _committed(self, seconds: float, entry: Entry) -> None:
        self._durations.observe(seconds)
        self._commits.labels(entry.kind.value).inc()
        self._objects.inc(len(entry.objects))
        self._bytes.inc(sum(item.bytes for item in entry.objects))
        self._records.inc(sum(part.records for item in entry.objects for part in item.parts))
        self._tombstones.inc(sum(part.tombstones for item in entry.objects for part in item.parts))


class MetricsPage:
    """The metrics page of one process. `look` and `results` may be replaced while the server runs.

    Both must return at once, even if the store or the brokers hang.
    """

    def __init__(
        self,
        *,
        pair: str,
        instance: str,
        transcoder: Callable[[], str],
        detail: MetricDetail,
        now: Callable[[], float],
    ) -> None:
        self.look: Callable[[], InstanceMetrics] = InstanceMetrics
        self.results: Callable[[], LastRuns] = LastRuns
        inner = CollectorRegistry()
        self.tally = MetricTally(inner)
        ProcessCollector(registry=inner)
        inner.register(_Gauges(self, transcoder=transcoder, detail=detail, now=now))
        self._outer = CollectorRegistry()
        self._outer.register(_Labelled(inner, dict(zip(COMMON, (pair, instance), strict=True))))
        self._lock = threading.Lock()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type; `accept` is the request's header."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, content_type = choose_encoder("")
        with self._lock:
            return encode(self._outer), content_type

    def families(self) -> list[Metric]:
        """Return the metric families of the page."""
        with self._lock:
            return list(self._outer.collect())


class _Gauges(Collector):
    def __init__(
        self, page: MetricsPage, *, transcoder: Callable[[], str], detail: MetricDetail, now: Callable[[], float]
    ) -> None:
        self._page = page
        self._transcoder = transcoder
        self._detail = detail
        self._now = now
        self._version = version("tandem-kafka-backup")

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the families of a scrape depend on the known values."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges that have a value, in the order of the catalogue."""
        families = {
            name: GaugeMetricFamily(name, described.help, labels=described.labels)
            for name, described in METRICS.items()
            if described.kind is MetricKind.GAUGE
        }
        families["tandem_build_info"].add_metric((self._version, self._transcoder()), 1.0)
        now = self._now()
        found = (
            samples(self._page.look(), detail=self._detail, now=now),
            results_samples(self._page.results()),
            memory_samples(),
        )
        for name, labels, value in (sample for each in found for sample in each):
            families[f"tandem_{name}"].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


class _Labelled(Collector):
    """Adds labels to all samples of another registry, and leaves out the `_created` samples."""

    def __init__(self, inner: CollectorRegistry, labels: dict[str, str]) -> None:
        self._inner = inner
        self._labels = labels

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as `_Gauges.describe`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the inner registry with the labels added."""
        for metric in self._inner.collect():
            metric.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield metric


def samples(seen: InstanceMetrics, *, detail: MetricDetail, now: float) -> Iterator[Sample]:
    """Yield the samples of a picture. `now` is seconds since the epoch."""
    state = _STARTING if seen.role is None else seen.role.value
    for name in (_STARTING, *(role.value for role in Role)):
        yield "state", (name,), float(name == state)
    yield "ready", (), float(seen.ready)
    yield "tick_age_seconds", (), seen.tick_age_s
    troubles = {
        "peer_alive": seen.peer_alive,
        "peer_agrees": seen.peer_agrees,
        "store_failing": seen.store_failing,
        "brokers_failing": seen.brokers_failing,
        "coordination_failing": seen.coordination_failing,
        "failing_duties": seen.failing_duties,
    }
    yield from ((name, (), float(so)) for name, so in troubles.items() if so is not None)
    if seen.peer_heard_s is not None:
        yield "peer_last_heard_timestamp_seconds", (), now - seen.peer_heard_s
    if seen.store_read_s is not None:
        yield "store_read_timestamp_seconds", (), now - seen.store_read_s
    for report in seen.reports:
        generation = str(report.generation)
        yield from (("pipeline_phase", (generation, phase.value), float(phase is report.phase)) for phase in Phase)
        yield "unread_partitions", (generation,), report.unread
        yield "memory_used_bytes", (generation,), report.held_bytes
        yield "memory_budget_bytes", (generation,), report.memory_budget
        yield "memory_full_seconds", (generation,), report.waited_s
    yield from _reading_samples(seen, detail)
    if seen.backup is not None:
        yield from _backup_samples(seen.backup)
    if seen.missing_heads is not None:
        yield "missing_heads", (), seen.missing_heads
    if seen.lost_covers is not None:
        yield "lost_covers", (), seen.lost_covers
    if seen.missing_keys is not None:
        yield "missing_keys", (), seen.missing_keys
    if seen.loss_signs is not None:
        yield from _loss_samples(seen.loss_signs, detail)
    if seen.handover_ms is not None:
        yield "handover_duration_seconds", (), seen.handover_ms / 1000


def _loss_samples(signs: Sequence[LossSign], detail: MetricDetail) -> Iterator[Sample]:
    counts = Counted(sign.kind for sign in signs)
    yield from (("loss_signs", (kind.value,), counts[kind]) for kind in LossKind)
    for sign in signs[: detail.max_topics]:
        yield "topic_loss_sign_timestamp_seconds", (sign.topic, sign.kind.value), sign.at / 1000


def _reading_samples(seen: InstanceMetrics, detail: MetricDetail) -> Iterator[Sample]:
    shown = True
    for number, readings in seen.readings.items():
        generation = str(number)
        yield from _of_reading("", (generation,), sum_readings(readings))
        topics = by_topic(readings)
        if len(topics) <= detail.max_topics:
            for topic, reading in topics.items():
                yield from _of_reading("topic_", (generation, topic), reading)
        else:
            shown = False
        if detail.partitions:
            for one in readings:
                yield from _of_partition(generation, one)
    yield "topic_series", (), float(shown)


def _of_reading(prefix: str, labels: tuple[str, ...], reading: ReadingProgress) -> Iterator[Sample]:
    values: tuple[float | None, ...] = (
        reading.partitions,
        reading.position,
        reading.end,
        reading.high,
        reading.lag,
        reading.behind_s,
        reading.held,
        reading.hanging,
        reading.base_remaining,
        reading.margin_s,
        reading.margin_share,
    )
    for name, value in zip(READING, values, strict=True):
        if value is not None:
            yield f"{prefix}{name}", labels, value


def _of_partition(generation: str, one: PartitionReading) -> Iterator[Sample]:
    labels = (generation, one.topic, str(one.partition))
    yield "partition_position_offsets", labels, one.position
    yield "partition_lag_offsets", labels, one.lag
    yield "partition_lag_seconds", labels, one.behind_s


def _backup_samples(backup: BackupMetrics) -> Iterator[Sample]:
    yield "restorable", (), float(backup.restore_generation > 0)
    yield "restore_generation", (), backup.restore_generation
    yield "generation", (), backup.generation
    yield "newest_generation", (), backup.newest
    yield from (("generations", (state.value,), backup.states.get(state, 0)) for state in GenerationState)
    yield from (("chain_entries", (str(number),), seq) for number, seq in backup.chain_entries.items())
    yield "stored_bytes", (), backup.stored_bytes
    yield "stored_objects", (), backup.stored_objects
    yield "tainted_partitions", (), backup.tainted
    yield "damaged_generations", (), backup.damaged
    yield "vanished_keys", (), backup.vanished_keys
    if backup.complete_bytes is not None:
        yield "complete_bytes", (), backup.complete_bytes
        if backup.complete_bytes:
            yield "amplification_ratio", (), backup.stored_bytes / backup.complete_bytes
    moments = {
        "restore_window_start_timestamp_seconds": backup.window_start,
        "recovery_window_short_until_timestamp_seconds": backup.window_short_until,
        "restore_window_end_timestamp_seconds": backup.window_end,
        "last_complete_timestamp_seconds": backup.completed_at,
        "rotation_due_timestamp_seconds": backup.rotation_due,
        "handover_started_timestamp_seconds": backup.handover_began,
        "catch_up_duration_seconds": backup.catch_up_ms,
    }
    yield from ((name, (), ms / 1000) for name, ms in moments.items() if ms is not None)


def memory_samples() -> Iterator[Sample]:
    """Yield the memory that is allocated in this process: unlike the resident size it counts no freed memory."""
    bytes_ = memory_allocator.allocated()
    if bytes_ is not None:
        yield "malloc_allocated_bytes", (), bytes_
    yield "python_blocks", (), memory_allocator.blocks()


def results_samples(results: LastRuns) -> Iterator[Sample]:
    """Yield the samples of the last runs."""
    if not results.known:
        return
    if results.lifecycle_rules is not None:
        yield "store_lifecycle_rules", (), results.lifecycle_rules
    for kind in JobKind:
        labels, one = (kind.value,), results.last.get(kind)
        yield "run_last_timestamp_seconds", labels, 0.0 if one is None else one.at / 1000
        if one is not None:
            yield "run_last_clean", labels, float(one.good)
            yield "run_last_findings", labels, one.findings + sum(before.findings for before in one.unsettled)
            yield "run_last_duration_seconds", labels, one.seconds
            yield "run_last_records", labels, one.records
