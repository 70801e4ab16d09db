"""Sound examples of everything that is read: golden files, and a small backup in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore
from support.records.odd_batches import odd, refused
from support.records.strategies import kafka_record

from tandem.backup_avro.chain.entries import EntryKind, Horizon, Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.json_codec import pack, unpack
from tandem.backup_avro.documents import outcome
from tandem.backup_avro.documents.outcome import JobKind
from tandem.backup_avro.documents.range_offer import RangeOffer, encode_offer
from tandem.backup_avro.record.compression import gzip
from tandem.backup_avro.record.container import decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import SCHEMA_JSON
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.groups.group_plan import OffsetBefore, encode_snapshot
from tandem.spark_jobs.restore.plan import plan_file
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.progress import restore_record
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow, encode_page
from tandem.spark_jobs.restore.progress.task_progress import (
    PlanPhase,
    PlanState,
    TargetStrand,
    TaskProgress,
    encode_progress,
    encode_state,
)
from tandem.spark_jobs.restore.records.record_changes import RecordChanges

GOLDEN = Path(__file__).parents[1] / "golden"
AT = 1_770_000_000_000
_STRAND = TargetStrand(records=3, hash="00" * 32, first=0, last=2)
_KEY = PartitionKey("11111111-2222-3333-4444-555555555555", 0)
_PART = Part(
    key=_KEY,
    first=0,
    last=9,
    records=10,
    tombstones=1,
    min_timestamp=AT,
    max_timestamp=AT + 5,
    start=60,
    end=500,
)
_OBJECT = StoredObject(
    key="x/topics/orders/partition=0/a.avro", journal=False, bytes=500, sha256="ab" * 32, parts=(_PART,)
)
_BEFORE = (
    OffsetBefore(group="g", topic="orders", partition=0, offset=5, metadata="m"),
    OffsetBefore(group="g", topic="orders", partition=1, offset=None),
)

_TOKEN_ANSWERS = (
    b'{"access_token": "abc.def.ghi", "token_type": "Bearer", "expires_in": 300, "scope": "kafka"}',
    b'{"access_token": "abc", "expires_in": "60"}',
    b'{"expires_in": 0.5, "access_token": "abc"}',
    b'{"error": "invalid_client", "error_description": "no such client"}',
)

CONFIG = """
pair: shop
instance: a
instances: [a, b]
topics:
  include: [orders, users]
kafka:
  bootstrap.servers: localhost:9092
  sasl.password: "secret word"
store:
  root: s3://bucket/backups
  region: eu-central-1
  access_key_id: abc
  secret_access_key: def
rotation:
  interval: 12h
"""


@cache
def load() -> dict[str, tuple[bytes, ...]]:
    """Return sound bytes by kind."""
    chain = [path.read_bytes() for path in sorted(GOLDEN.glob("chain*/*.json")) if path.name != "claim.json"]
    store = store_of_backup()
    plan_options = RestoreOptions(topics=("orders",), shape=RecordChanges(latest=True))
    made = plan_of(ChainReader(store, PAIR), plan_options)
    return {
        "entry": (*chain, *(gzip(data) for data in chain), *(pack(data) for data in chain)),
        "entry document": tuple(unpack(data, "golden") for data in chain),
        "claim": tuple(path.read_bytes() for path in GOLDEN.glob("chain*/claim.json")),
        "checkpoint request": ((GOLDEN / "checkpoint/request.json").read_bytes(),),
        "checkpoint outcome": tuple(
            (GOLDEN / f"checkpoint/{name}.json").read_bytes() for name in ("completed", "failed")
        ),
        "pause": tuple(path.read_bytes() for path in GOLDEN.glob("pause/*.json")),
        "release": tuple(path.read_bytes() for path in GOLDEN.glob("release/*.json")),
        "offer": (encode_offer(_offer()),),
        "result": (outcome.encode_outcome(_result()),),
        "pin": tuple(data for key, data in store.objects.items() if "/pins/" in key),
        "restore plan": (plan_file.encode(made, plan_options),),
        "restore record": (restore_record.encode(_restored()),),
        "offset page": (encode_page([OffsetRow(0, 0, 9, 0, 100, 10), OffsetRow(1, 5, 9, 0, 110, 3)], "a/b.json"),),
        "groups": (encode_snapshot(_BEFORE, AT),),
        "plan state": (encode_state(_state()),),
        "progress": (encode_progress(_progress()),),
        "avro file": tuple(path.read_bytes() for path in sorted(GOLDEN.rglob("*.avro"))),
        "message": tuple(path.read_bytes() for path in sorted(GOLDEN.glob("*/coordination-*.bin"))),
        "token answer": _TOKEN_ANSWERS,
        "batches": tuple(path.read_bytes() for path in sorted(GOLDEN.glob("kafka-*/*.log"))),
    }


@cache
def payloads() -> dict[int, tuple[bytes, ...]]:
    """Return compressed records of batches by the codec's number, three each, in several members, frames and blocks."""
    plain = b"".join(kafka_record(record, 0, AT) for record in records("orders", 0, range(3)))
    found: dict[int, tuple[bytes, ...]] = {}
    for codec, data in (*odd(plain).values(), *refused(plain).values()):
        found[codec] = (*found.get(codec, ()), data)
    return found


@cache
def bodies() -> tuple[tuple[bytes, int], ...]:
    """Return what is in the blocks of files of the present version, with the number of records."""
    found = []
    for data in load()["avro file"]:
        header = decode_header(data)
        if header.schema_json == SCHEMA_JSON:
            blocks = iter_blocks(data, header)
            found += [(decompress(block, header.codec), block.count) for block in blocks]
    return tuple(found)


def store_of_backup(*, snapshot: bool = False) -> MemoryStore:
    """A store with a sealed and a complete generation of two topics, and a pin; the latter with a SNAPSHOT at its end.

    Its state has something of everything, as far as a generation that can be restored does.
    """
    store = MemoryStore(clock_ms=AT)
    specs = [TopicSpec("orders", partitions=2), TopicSpec("prices")]
    one = Backup.claim(store, topics=specs)
    for batch in (records("orders", 0, range(12), tombstones=[3]), records("orders", 1, range(5))):
        one.commit(batch)
    one.complete()
    one.commit(records("prices", 0, range(7)), journal=True)
    two = Backup.completed(
        store,
        [*records("orders", 0, range(12)), *records("orders", 1, range(5)), *records("prices", 0, range(7))],
        topics=specs,
        number=2,
        instance="b",
    )
    one.seal()
    if snapshot:
        _fill(two)
    pins.put_pin(store, PAIR, generation=2, owner="restore", until=AT * 2)
    return store


def _fill(backup: Backup) -> None:
    backup.commit(records("orders", 0, range(12, 15)), groups={"billing": {("orders", 0): 5, ("prices", 0): 2}})
    backup.taint("prices", 0, 6)
    state = backup.writer.state
    first, *_ = (item for item in state.objects.values() if not item.journal)
    again = replace(first, key=f"{first.key}.merged")
    swept = Horizon(seq=state.moments[-1].seq, offsets={backup.key("orders", 0): 2})
    backup.append(EntryKind.REWRITE, objects=(again,), replaced=(first.key,))
    backup.append(EntryKind.REWRITE, horizon=swept, fence=True)
    backup.append(EntryKind.REWRITE, replaced=(again.key,))
    backup.append(EntryKind.SNAPSHOT)


def _offer() -> RangeOffer:
    return RangeOffer(
        generation=2,
        key=_KEY,
        floor=0,
        leader=1,
        low=0,
        high=10,
        started_at=AT,
        ended_at=AT + 5,
        took_ms=4,
        objects=(_OBJECT,),
        run="r",
    )


def _result() -> outcome.JobOutcome:
    return outcome.JobOutcome(
        kind=JobKind.DRILL,
        pair=PAIR,
        at=AT,
        by="cron",
        clean=True,
        what="all",
        findings=0,
        records=5,
        bytes=500,
        generations={2: 7},
        phases={"load": 1.5},
        error="none",
    )


def _restored() -> restore_record.RestoreRecord:
    topic = restore_record.TopicRecord(
        name="orders",
        topic_id=_KEY.topic_id,
        partitions=2,
        target="orders",
        target_topic_id="t",
        ends={0: 10},
        tasks=(restore_record.TaskRecord(sources=(0,), strands={0: _STRAND}, page=None),),
    )
    return restore_record.RestoreRecord(
        id="r1",
        pair=PAIR,
        plan="p",
        generation=2,
        seq=7,
        as_of=AT,
        at=AT,
        target_cluster="c",
        topics=(topic,),
        groups={},
    )


def _state() -> PlanState:
    return PlanState(
        plan="p",
        run="r",
        state=PlanPhase.LOADING,
        generation=2,
        basis={2: 7},
        targets={"orders": "t"},
        sources={_KEY.topic_id: 2},
        merged=(),
        at=AT,
        before={"orders": {"cleanup.policy": "compact"}},
    )


def _progress() -> TaskProgress:
    return TaskProgress(
        plan="p",
        topic_id=_KEY.topic_id,
        task=0,
        target="orders",
        target_topic_id="t",
        next_offsets={0: 10},
        strands={0: _STRAND},
        tombstones=1,
        null_keys=0,
        left_out=0,
        page=None,
        rows=(OffsetRow(0, 0, 9, 0, 100, 10),),
    )


def documents(kind: str) -> tuple[bytes, ...]:
    """Return those of a kind that are plain JSON."""
    return tuple(data for data in load()[kind] if _is_json(data))


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
