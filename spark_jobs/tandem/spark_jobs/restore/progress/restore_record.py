"""The record of a verified restore in the store: its topics, record counts and hashes, and its offset map. Pure.

The object `<pair>/restores/<id>/restore.json` is put once, when the check has found the target equal to the backup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import ENTRY_JSON
from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey, from_iso, iso
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand, dump_strands, load_strands

_NAME: Final = "restore.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task that loaded the source partitions `sources`. `page`: last page of its offset map, None without rows."""

    sources: tuple[int, ...]
    strands: Mapping[int, TargetStrand]
    page: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One topic. `partitions`: their number in the source. `ends`: source partition -> end of the source's records."""

    name: str
    topic_id: str
    partitions: int
    target: str
    target_topic_id: str
    ends: Mapping[int, int]
    tasks: tuple[TaskRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRecord:
    """A restore that was verified at `at` (ms since the epoch). `as_of`: the restored moment, None: the newest state.

    `groups` are the offsets that consumer groups had committed on the source. `append`: whether the targets held other
    records before; None in records of releases that did not record it.
    """

    id: str
    pair: str
    plan: str
    generation: int
    seq: int
    as_of: int | None
    at: int
    target_cluster: str
    topics: tuple[TopicRecord, ...]
    groups: Mapping[str, tuple[GroupOffset, ...]]
    append: bool | None = None


def record_key(pair: str, restore: str) -> str:
    """Return the object key of the record."""
    return f"{layout.restore_prefix(pair, restore)}{_NAME}"


def encode(record: RestoreRecord) -> bytes:
    """Return the bytes to store. OversizeError if they exceed the limit of readers."""
    document = {
        "v": VERSION,
        "id": record.id,
        "pair": record.pair,
        "plan": record.plan,
        "generation": record.generation,
        "seq": record.seq,
        "as_of": None if record.as_of is None else iso(record.as_of),
        "at": iso(record.at),
        "target_cluster": record.target_cluster,
        "topics": [_dump_topic(topic) for topic in record.topics],
        "groups": {name: [_dump_group(item) for item in items] for name, items in record.groups.items()},
        **({} if record.append is None else {"append": record.append}),
    }
    return pack(canonical(document))


def _dump_topic(topic: TopicRecord) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "target": topic.target,
        "target_topic_id": topic.target_topic_id,
        "ends": {str(number): end for number, end in topic.ends.items()},
        "tasks": [
            {
                "sources": list(task.sources),
                "page": task.page,
                "strands": dump_strands(task.strands),
            }
            for task in topic.tasks
        ],
    }


def decode(data: bytes, where: str) -> RestoreRecord:
    """Read a record. DamagedError names `where`."""
    fields = Fields.of_stored(data, where, ENTRY_JSON)
    as_of: str | None = fields.take_field("as_of", str, None)
    groups: dict[str, Any] = fields.take_field("groups", dict)
    try:
        record = RestoreRecord(
            id=fields.take_field("id", str),
            pair=fields.take_field("pair", str),
            plan=fields.take_field("plan", str),
            generation=fields.take_field("generation", int),
            seq=fields.take_field("seq", int),
            as_of=None if as_of is None else from_iso(as_of),
            at=from_iso(fields.take_field("at", str)),
            target_cluster=fields.take_field("target_cluster", str),
            topics=tuple(_load_topic(item, where) for item in fields.take_field("topics", list)),
            groups={name: tuple(_load_group(*item) for item in items) for name, items in groups.items()},
            append=fields.take_field("append", bool, None),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError(f"{where}: {error}", code="TDM-R089") from error
    fields.refuse_other_fields()
    return record


def _load_topic(document: object, where: str) -> TopicRecord:
    fields = Fields(document, where)
    ends: dict[str, Any] = fields.take_field("ends", dict)
    topic = TopicRecord(
        name=fields.take_field("name", str),
        topic_id=fields.take_field("topic_id", str),
        partitions=fields.take_field("partitions", int),
        target=fields.take_field("target", str),
        target_topic_id=fields.take_field("target_topic_id", str),
        ends={int(number): int(end) for number, end in ends.items()},
        tasks=tuple(_load_task(item, where) for item in fields.take_field("tasks", list)),
    )
    fields.refuse_other_fields()
    return topic


def _load_task(document: object, where: str) -> TaskRecord:
    fields = Fields(document, where)
    strands: dict[str, Any] = fields.take_field("strands", dict)
    task = TaskRecord(
        sources=tuple(int(number) for number in fields.take_field("sources", list)),
        page=fields.take_field("page", str, None),
        strands=load_strands(strands),
    )
    fields.refuse_other_fields()
    return task


def _dump_group(item: GroupOffset) -> list[Any]:
    return [item.key.topic_id, item.key.partition, item.offset, item.epoch, item.metadata]


def _load_group(topic_id: str, partition: int, offset: int, epoch: int, metadata: str) -> GroupOffset:
    return GroupOffset(
        key=PartitionKey(str(topic_id), int(partition)), offset=int(offset), epoch=int(epoch), metadata=str(metadata)
    )
