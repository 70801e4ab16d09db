"""Every metric by name: its type, its labels and its meaning. `docs/metrics.md` is made from this list.

Times of day are seconds since the epoch by the store's clock, unless a metric says otherwise. Unknown values are left
out. All metrics have the labels `pair` and `instance_name` besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

COMMON: Final = ("pair", "instance_name")


class MetricKind(StrEnum):
    """The Prometheus metric types in use."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `buckets` are upper bounds, in its unit."""

    name: str
    help: str
    kind: MetricKind = MetricKind.GAUGE
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The sample names that PromQL expressions use."""
        if self.kind is MetricKind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """Metrics that belong together, under a heading of the page."""

    title: str
    about: str
    metrics: tuple[Metric, ...]


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=f"tandem_{name}", help=text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=f"tandem_{name}_total", help=text, kind=MetricKind.COUNTER, labels=labels)


def _seconds(name: str, text: str) -> Metric:
    # From a small object in the same rack to one of 64 MiB over a slow line, or a store that was away for a while.
    buckets = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    return Metric(name=f"tandem_{name}_seconds", help=text, kind=MetricKind.HISTOGRAM, buckets=buckets)


_READING: Final = (
    ("partitions", "Guarded partitions."),
    ("position_offsets", "Next offsets to read."),
    ("end_offsets", "Where a reader of the pair's isolation level gets to, as of the last responses."),
    ("high_watermark_offsets", "High watermarks, as of the last responses."),
    ("lag_offsets", "Offsets between position and high watermark; a compacted log has fewer records."),
    ("lag_seconds", "Longest time since a partition was last read up to its log's end."),
    ("stable_offset_lag_offsets", "Offsets between the last stable offset and the high watermark."),
    ("hanging_partitions", "Partitions that an open transaction has held back for more than five flush intervals."),
    ("base_remaining_offsets", "Offsets of the first reading that are still to be read."),
    (
        "tombstone_margin_seconds",
        "Shortest time until tombstones may be missed: what is left of 0.8 * delete.retention.ms since the log's end.",
    ),
    ("tombstone_margin_ratio", "The same as a share of 0.8 * delete.retention.ms, at most 1."),
)
READING: Final = tuple(name for name, _ in _READING)
"""The fields that describe a tail, a topic and a partition, in this order."""

SECTIONS: Final = (
    MetricSection(
        title="The instance",
        about="",
        metrics=(
            _gauge("build_info", "Always 1; the release and what turns batches into objects.", "version", "transcoder"),
            _gauge("state", "1 for the state that the instance is in, 0 for the others.", "state"),
            _gauge("ready", "Whether it takes part in the pair, see docs/kubernetes.md."),
            _gauge("tick_age_seconds", "Time since the control loop last turned; about a second."),
            _gauge(
                "malloc_allocated_bytes",
                "What the C library has handed out and not got back, without Python's own blocks and free pieces.",
            ),
            _gauge(
                "python_blocks", "Blocks that Python has handed out of its own arenas; an object takes one or a few."
            ),
            _gauge("peer_alive", "Whether the other instance was heard within liveness.timeout and has not left."),
            _gauge(
                "peer_last_heard_timestamp_seconds",
                "When the other instance was last heard, by this process's clock. Left out if not since it started.",
            ),
            _gauge(
                "peer_agrees",
                "Whether the other instance stores in the same place and guards the same topics; left out if unknown.",
            ),
            _gauge("store_failing", "Whether the last look at the chains failed."),
            _gauge("brokers_failing", "Whether the last question to the brokers failed."),
            _gauge(
                "coordination_failing", "Whether messages can't be published, or the coordination topic was never read."
            ),
            _gauge(
                "failing_duties",
                "Duties, such as clearing a generation, that failed three times in a row or do not come to an end.",
            ),
            _counter("retries", "What was tried again, by whom it was asked of: store, brokers or kms.", "target"),
            _counter(
                "skipped_offsets",
                "Offsets at ends of logs that were skipped: asked several times, brokers had nothing readable there.",
            ),
        ),
    ),
    MetricSection(
        title="Reading",
        about="One set for each generation that this instance reads: one, or two while it follows itself. Sums over "
        "all partitions, and the worst of them. Margins are those of compacted topics; a negative one is too late.",
        metrics=(
            _gauge(
                "pipeline_phase", "1 for the phase that the pipeline is in, 0 for the others.", "generation", "phase"
            ),
            *(_gauge(name, text, "generation") for name, text in _READING),
            _gauge(
                "unread_partitions",
                "Guarded partitions that are not read: no leader, a missing right, nothing comes, or set aside.",
                "generation",
            ),
            _gauge("memory_used_bytes", "Bytes held between fetch and store, about.", "generation"),
            _gauge("memory_budget_bytes", "memory.budget, which all pipelines of the process share.", "generation"),
            _gauge("memory_full_seconds", "How long nothing was fetched for that reason, in all.", "generation"),
        ),
    ),
    MetricSection(
        title="Reading by topic",
        about="For pairs of at most `metrics.max_topics` topics; `tandem_topic_series` says whether they are there.",
        metrics=(
            _gauge("topic_series", "Whether metrics by topic are on this page."),
            *(_gauge(f"topic_{name}", text, "generation", "topic") for name, text in _READING),
        ),
    ),
    MetricSection(
        title="Reading by partition",
        about="Only with `metrics.partitions`: ten thousand partitions make a page of 3.6 MB, else of at most 240 kB.",
        metrics=(
            _gauge("partition_position_offsets", "Next offset to read.", "generation", "topic", "partition"),
            _gauge("partition_lag_offsets", "Offsets to the high watermark.", "generation", "topic", "partition"),
            _gauge("partition_lag_seconds", "Time since at the log's end.", "generation", "topic", "partition"),
        ),
    ),
    MetricSection(
        title="Writing",
        about="Of this process, since it began.",
        metrics=(
            _counter("records_written", "Records in committed objects, those of attempts that came to nothing too."),
            _counter("tombstones_written", "Tombstones among them."),
            _counter("bytes_written", "Bytes of committed objects."),
            _counter("objects_written", "Committed objects."),
            _counter("commits", "Entries with news (COMMIT), or that there are none (CONFIRM).", "kind"),
            _seconds("upload_duration", "Time until the store had a data object, tries included."),
            _seconds("commit_duration", "Time of a commit, from its first upload to its entry in the chain."),
        ),
    ),
    MetricSection(
        title="The backup",
        about="What the chains in the store say; both instances show the same, a heartbeat apart.",
        metrics=(
            _gauge("store_read_timestamp_seconds", "When the chains were last read, by this process's clock."),
            _gauge("restorable", "Whether a complete backup can be restored."),
            _gauge("restore_generation", "The generation that a restore would rest on; 0: none."),
            _gauge("restore_window_start_timestamp_seconds", "From then on every moment can be restored."),
            _gauge(
                "recovery_window_short_until_timestamp_seconds",
                "Until then moments of recovery.window are missing, as older copies are gone; absent: none are.",
            ),
            _gauge("restore_window_end_timestamp_seconds", "The newest one: the last commit or confirmation."),
            _gauge("last_complete_timestamp_seconds", "When the newest complete generation became complete."),
            _gauge("generation", "The newest generation that this instance owns; 0: none."),
            _gauge("newest_generation", "The highest number that was claimed."),
            _gauge("generations", "Generations that are not wholly cleared, by where they stand.", "state"),
            _gauge("chain_entries", "Length of the chain, of generations that are not sealed.", "generation"),
            _gauge("stored_bytes", "Data in all generations, but for what merging replaced and will delete."),
            _gauge("stored_objects", "Objects of it."),
            _gauge("complete_bytes", "Data in the generation that a restore would rest on."),
            _gauge("amplification_ratio", "Stored bytes per byte of the generation that a restore would rest on."),
            _gauge(
                "tainted_partitions",
                "Tainted partitions of the Active's generation, if no newer complete one is sound.",
            ),
            _gauge("damaged_generations", "Generations whose chain can't be read."),
            _gauge(
                "vanished_keys",
                "Keys that topics lost without a tombstone, and that only sealed generations still have; those of a "
                "generation that is kept whole are on its owner's page alone.",
            ),
            _gauge(
                "loss_signs",
                "Signs of the last day that topics lost records by accident, by kind; a topic counts once for each.",
                "kind",
            ),
            _gauge(
                "topic_loss_sign_timestamp_seconds",
                "When such a sign was noticed last, of the newest `metrics.max_topics` signs.",
                "topic",
                "kind",
            ),
            _gauge(
                "missing_heads",
                "Generations that lack entries which were published or read before: it is an older state.",
            ),
            _gauge(
                "lost_covers",
                "Generations of this instance that are kept because what covers them has lost objects in the store.",
            ),
            _gauge(
                "store_lifecycle_rules",
                "Enabled lifecycle rules of the bucket that delete or archive objects of the pair; left out where the "
                "store does not say.",
            ),
            _gauge(
                "missing_keys",
                "Encryption keys that stored objects need and the instance's configuration does not name.",
            ),
            _gauge("rotation_due_timestamp_seconds", "When the next turn is due."),
            _gauge(
                "handover_started_timestamp_seconds",
                "When the new generation became complete whose predecessor is not sealed yet; left out if none waits.",
            ),
            _gauge("handover_duration_seconds", "From COMPLETE to the seal of the predecessor, at the last handover."),
            _gauge("catch_up_duration_seconds", "From the claim to COMPLETE, of the newest complete generation."),
        ),
    ),
    MetricSection(
        title="Jobs",
        about="The last `tandem verify`, `drill` and `retention --execute`, from the results that they leave in the "
        "store. They are over when anybody could scrape them.",
        metrics=(
            _gauge("run_last_timestamp_seconds", "When the last one ended; 0: there is none.", "kind"),
            _gauge(
                "run_last_clean",
                "Whether it came to its end and found nothing, and nothing is left of what earlier ones found.",
                "kind",
            ),
            _gauge("run_last_findings", "What it found, and what is left of what earlier ones found.", "kind"),
            _gauge("run_last_duration_seconds", "How long it took.", "kind"),
            _gauge("run_last_records", "Records that it looked at or removed.", "kind"),
        ),
    ),
)

METRICS: Final = {metric.name: metric for section in SECTIONS for metric in section.metrics}
