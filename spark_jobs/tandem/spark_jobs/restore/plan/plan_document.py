"""The document of a restore's plan: what `tandem restore --dry-run` shows of each topic and partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.plan.expiry import ExpiryForecast
from tandem.spark_jobs.restore.plan.plan import MAX_MESSAGE_BYTES, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.plan.target_codec import codec_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A configuration key in which an existing target differs."""

    present: str | None
    recorded: str | None


def differences(recorded: Mapping[str, str], present: Mapping[str, str]) -> dict[str, Difference]:
    """Return the config keys in which an existing target differs: key -> present and recorded value."""
    return {
        key: Difference(present=present.get(key), recorded=recorded.get(key))
        for key in sorted(recorded.keys() | present.keys())
        if recorded.get(key) != present.get(key)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """`records` and `fillers` are bounds unless `exact`; `end` is the offset below which everything is restored."""

    partition: int
    objects: int
    records: int
    exact: bool
    tombstones: int
    bytes: int
    end: int
    expired_below: int | None
    generations: Sequence[int]
    fillers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """One topic of a plan. `largest_record`: bytes, uncompressed; None: not known. `max_message_bytes`: while it loads.

    `bytes` are those stored, compressed. `compression`: the codec of the batches that are written; `codecs`: those that
    the topic's batches had, empty: not known.
    """

    source: str
    topic_id: str
    target: str
    target_exists: bool
    target_partitions: int
    target_empty: bool
    replication_factor: int
    config: Mapping[str, str]
    config_differences: Mapping[str, Difference]
    records: int
    bytes: int
    largest_record: int | None
    max_message_bytes: int
    compression: str
    codecs: Sequence[str]
    expire_at_once: ExpiryForecast
    offsets: str
    offsets_why: str
    partitions: Sequence[PlannedPartition]


def describe_topic(
    topic: TopicPlan, target: TargetTopic | None, *, now: int, compression: Compression | None
) -> PlannedTopic:
    """Return the entry for a topic in the document of a plan; `compression` is the user's choice, if there is one."""
    return PlannedTopic(
        source=topic.source.name,
        topic_id=topic.source.topic_id,
        target=topic.target,
        target_exists=target is not None,
        target_partitions=topic.count,
        target_empty=target is None or target.empty,
        replication_factor=topic.source.replication_factor,
        config=dict(sorted(topic.final_config.items())),
        config_differences={} if target is None else differences(topic.source.config, target.config),
        records=topic.records,
        bytes=topic.bytes,
        largest_record=topic.largest,
        max_message_bytes=int(topic.loading_config()[MAX_MESSAGE_BYTES]),
        compression=topic.compression(compression).name.lower(),
        codecs=codec_names(topic.codecs),
        expire_at_once=topic.expiry(now),
        offsets=topic.offsets.mode.value,
        offsets_why=topic.offsets.why,
        partitions=[
            PlannedPartition(
                partition=item.key.partition,
                objects=len({piece.item.key for piece in item.slices}),
                records=item.records,
                exact=all(piece.whole for piece in item.slices),
                tombstones=sum(piece.part.tombstones for piece in item.slices),
                bytes=sum(piece.part.end - piece.part.start for piece in item.slices),
                end=item.end,
                expired_below=item.expired,
                generations=item.generations,
                fillers=topic.most_fillers(item),
            )
            for item in topic.partitions
        ],
    )
