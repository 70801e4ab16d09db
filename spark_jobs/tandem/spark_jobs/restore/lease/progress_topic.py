"""Creating the topic `_tandem_restore_progress`, and checking its policy and its limits on the size of records.

With each commit a task writes one record that lists the records of each partition of its target. Where a topic is
re-partitioned, that record grows with the number of partitions, by some hundred bytes each, and with the brokers'
default `max.message.bytes` the first commit would be refused from about 11,000 on. So the topic's limits are raised to
what a plan may need, before anything else is created.
"""

from __future__ import annotations

from typing import Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterDeniedError,
    ClusterRequestError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.progress.batch_producer import LARGEST_RECORD
from tandem.spark_jobs.restore.progress.offset_map import PAGE_ROWS, OffsetRow, page_key
from tandem.spark_jobs.restore.progress.task_progress import (
    TOPIC,
    TargetStrand,
    TaskProgress,
    encode_progress,
    partitions,
)

#: How many partitions a new topic has: that of the plans, and those over which tasks are spread.
PARTITIONS: Final = 17
_REPLICAS: Final = 3
_POLICY: Final = "cleanup.policy"
_SEGMENT: Final = "segment.bytes"
_LIMIT: Final = "max.message.bytes"
#: The brokers' default of `max.message.bytes`.
_USUAL_LIMIT: Final = 1_048_588
# Only closed segments are compacted; a segment of the default size would be read whole by each task.
_CONFIG: Final = {_POLICY: "compact", "min.cleanable.dirty.ratio": "0.1", _SEGMENT: str(8 * 1024 * 1024)}
#: A batch must fit each of these.
_ROOM: Final = (_LIMIT, _SEGMENT)
#: Bytes that a record takes besides its value: its key, and the header of its batch.
_BESIDES: Final = 1024
_INT_MAX: Final = 2**31 - 1


def record_bytes(plan: RestorePlan) -> int:
    """Return the most bytes that the record of a task of this plan may have, including the header of its batch."""
    spread = [topic for topic in plan.topics if topic.repartitioned]
    # Whether tasks merge all source partitions is known only after their records were surveyed.
    targets = max((topic.count for topic in spread), default=1)
    sources = max((topic.source.partitions for topic in spread), default=1)
    topic_id = max((topic.source.topic_id for topic in plan.topics), key=len, default="")
    largest = TaskProgress(
        plan=plan.hash,
        topic_id=topic_id,
        task=_INT_MAX,
        target="t" * layout.LONGEST_TOPIC,
        target_topic_id=topic_id,
        next_offsets=dict.fromkeys(range(sources), LONG_MAX),
        strands=dict.fromkeys(
            range(targets), TargetStrand(records=LONG_MAX, hash="f" * 64, first=LONG_MAX, last=LONG_MAX)
        ),
        tombstones=LONG_MAX,
        null_keys=LONG_MAX,
        left_out=LONG_MAX,
        page=page_key(plan.pair, plan.hash[:16], topic_id=topic_id, task=_INT_MAX, nonce=plan.hash[:16]),
        rows=(OffsetRow(_INT_MAX, LONG_MAX, LONG_MAX, _INT_MAX, LONG_MAX, LONG_MAX, LONG_MAX),) * (PAGE_ROWS - 1),
    )
    return len(encode_progress(largest)) + _BESIDES


def ensure_topic(admin: ClusterAdmin, *, brokers: int, largest: int) -> int:
    """Create the topic unless it exists, with limits that admit records of `largest` bytes.

    Returns over how many partitions a new plan's tasks are spread. Raises as `make_room`.
    """
    there = partitions(admin)
    if there:
        make_room(admin, largest)
        return len(there) - 1
    config = {**_CONFIG, _SEGMENT: str(max(int(_CONFIG[_SEGMENT]), largest))}
    if largest > _USUAL_LIMIT:
        config[_LIMIT] = str(largest)
    try:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=min(_REPLICAS, brokers), config=config)
    except TopicExistsError:  # another restore has just created it
        make_room(admin, largest)
    except ClusterRequestError as error:
        if largest <= _USUAL_LIMIT:
            raise
        raise _too_narrow(f"could not be created with {_LIMIT}={largest}: {error.args[0]}", largest) from error
    return PARTITIONS - 1


def make_room(admin: ClusterAdmin, largest: int, *, only_ask: bool = False) -> None:
    """Raise the topic's limits where a record of `largest` bytes does not fit; with `only_ask` only validate that.

    Raises RefusedError if the cluster refuses, or if the record exceeds the largest request. A topic that does not
    exist, or whose config may not be read, is left unchanged.
    """
    if largest > LARGEST_RECORD:
        raise RefusedError(
            f"the progress record of one task of this restore may take {largest:,} bytes, as it names each "
            f"partition of its target; no more than {LARGEST_RECORD:,} fit in a request",
            code="TDM-R037",
            remedy="restore into a topic of fewer partitions (--partitions)",
        )
    try:
        config = admin.config([TOPIC], defaults=_ROOM)[TOPIC]
    except (UnknownTopicError, ClusterDeniedError):
        return
    changes = {key: str(largest) for key in _ROOM if int(config.get(key, largest)) < largest}
    if not changes:
        return
    try:
        admin.alter_config(TOPIC, changes, only_ask=only_ask)
    except (ClusterDeniedError, ClusterRequestError) as error:
        has = ", ".join(f"{key}={config[key]}" for key in changes)
        raise _too_narrow(f"on the target has {has}, and that could not be raised: {error.args[0]}", largest) from error


def _too_narrow(why: str, largest: int) -> RefusedError:
    return RefusedError(
        f"the progress record of one task of this restore may take {largest:,} bytes, as it names each "
        f"partition of its target; {TOPIC} {why}",
        code="TDM-R038",
        remedy=f"let a Kafka administrator raise the limit: kafka-configs.sh --alter --topic {TOPIC} --add-config "
        f"{','.join(f'{key}={largest}' for key in _ROOM)}; or restore into a topic of fewer partitions (--partitions)",
    )


def refuse_unless_kept(admin: ClusterAdmin) -> None:
    """Raise RefusedError if the topic exists and its policy lets records expire.

    Without the right to read the config nothing is checked.
    """
    try:
        config = admin.config([TOPIC], defaults=(_POLICY,))[TOPIC]
    except (UnknownTopicError, ClusterDeniedError):
        return
    policy = config.get(_POLICY, "")
    if policy != _CONFIG[_POLICY]:
        raise RefusedError(
            f"{TOPIC} on the target has {_POLICY}={policy}: the progress of restores would be deleted by age or size, "
            "and a resumed restore might write its records twice",
            code="TDM-R039",
            remedy=f"kafka-configs.sh --alter --topic {TOPIC} --add-config {_POLICY}={_CONFIG[_POLICY]}",
        )
