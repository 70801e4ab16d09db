"""Plans over many objects: `python -m bench.cases.many_objects make|restore|retention|steps STORE OBJECTS`.

`make` writes its chain into a folder, the objects themselves are not there: no plan reads them. `restore` reads the
chain and plans a restore of everything, as `tandem restore --dry-run` does; `retention` plans a sweep of it, given the
listing of the store; `steps` also looks at each step of that once more, as `--execute` does before it carries one out.
Records are the objects.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from bench.measured import measured, report
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Base,
    Entry,
    EntryKind,
    Opening,
    Part,
    PartitionKey,
    Position,
    StoredObject,
    Topic,
)
from tandem.backup_avro.errors import OversizeError
from tandem.controller.cli.main import collect_rarely
from tandem.sink.store import ObjectInfo, ObjectStore, StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity, claim, now_ms
from tandem.sink.write.commit import complete_entry
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan_document import describe_topic
from tandem.spark_jobs.retention import retention_plan
from tandem.spark_jobs.retention.retention_steps import RetentionPlan, RetentionRules, StoreObservation

_PAIR = "many"
_TOPICS = 10
_PARTITIONS = 1000
_RECORDS = 1000
_BYTES = 64 << 20
_AT_ONCE = 20_000
_NONCES = 0x9E3779B97F4A7C15


def make(store: ObjectStore, objects: int) -> tuple[int, int]:
    """Write a chain of that many objects, spread over ten thousand partitions, complete; with a SNAPSHOT if it fits."""
    stop = threading.Event()
    who = Identity(pair=_PAIR, instance="a", incarnation="bench", cluster_id="bench")
    opening = Opening(isolation_level="read_committed", codec="zstandard", sync="5a" * 16)
    writer = claim(store, who, 1, opening=opening, reason="bench", stop=stop)
    at = now_ms(store)
    keys = [PartitionKey(f"topic-{topic}", number) for topic in range(_TOPICS) for number in range(_PARTITIONS)]
    base = Base(start=0, end=0, leader=1, done_at=at - 1)
    topics = tuple(
        Topic(
            name=f"topic-{number}",
            topic_id=f"topic-{number}",
            partitions=_PARTITIONS,
            replication_factor=3,
            config={"cleanup.policy": "delete", "retention.ms": "1000"},
        )
        for number in range(_TOPICS)
    )
    items = _items(keys, objects, at)
    ends: dict[PartitionKey, int] = {}
    done = 0
    while done < objects:
        some = [next(items) for _ in range(min(_AT_ONCE, objects - done))]
        done += len(some)
        ends |= {item.parts[0].key: item.parts[0].last + 1 for item in some}
        positions = {
            key: Position(offset=ends.get(key, 0), epoch=0, head_at=at, log_start=0, base=base)
            for key in (keys if done == len(some) else {item.parts[0].key for item in some})
        }
        writer.append(
            _entry(
                EntryKind.COMMIT,
                objects=tuple(some),
                positions=positions,
                head_at=at,
                topics=topics if done == len(some) else (),
            )
        )
    writer.append(complete_entry("bench"))
    with suppress(OversizeError):  # an instance goes on without one, too
        writer.append(_entry(EntryKind.SNAPSHOT))
    return objects, sum(info.size for info in store.list(f"{_PAIR}/generations/"))


def _entry(kind: EntryKind, **content: object) -> Entry:
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0, **content)  # type: ignore[arg-type]  # as named


def _items(keys: list[PartitionKey], objects: int, at: int) -> Iterator[StoredObject]:
    for number in range(objects):
        key, first = keys[number % len(keys)], number // len(keys) * _RECORDS
        last = first + _RECORDS - 1
        nonce = f"{number * _NONCES % (1 << 64):016x}"
        name = layout.data_key(
            (_PAIR, "a", 1), topic=key.topic_id, partition=key.partition, first=first, last=last, nonce=nonce
        )
        part = Part(
            key=key,
            first=first,
            last=last,
            records=_RECORDS,
            tombstones=0,
            min_timestamp=at - 10_000_000,
            max_timestamp=at - 9_000_000,
            start=600,
            end=_BYTES,
            scan=None,
        )
        yield StoredObject(key=name, bytes=_BYTES, sha256=nonce * 4, journal=False, parts=(part,))


def restore(store: ObjectStore, objects: int) -> tuple[int, int]:
    """Read the chain and plan a restore of all of it."""
    plan = plan_of(ChainReader(store, _PAIR), RestoreOptions())
    described = [describe_topic(topic, None, now=0, compression=None) for topic in plan.topics]
    found = sum(item.objects for topic in described for item in topic.partitions)
    if found != objects:
        raise RuntimeError(f"{found} objects are in the plan")
    return objects, objects * _BYTES


def retention(store: ObjectStore, objects: int) -> tuple[int, int]:
    """Read the chain and plan a sweep, with a listing that has every object."""
    _planned(store, objects)
    return objects, objects * _BYTES


def steps(store: ObjectStore, objects: int) -> tuple[int, int]:
    """Plan as `retention` does, and judge each step anew."""
    seen, plan = _planned(store, objects)
    for step in plan.steps:
        if retention_plan.narrow_step(step, seen, RetentionRules()) != step:
            raise RuntimeError(f"nothing has changed, and less would go: {step.topics}")
    return objects, objects * _BYTES


def _planned(store: ObjectStore, objects: int) -> tuple[StoreObservation, RetentionPlan]:
    state = ChainReader(store, _PAIR).load(1)
    when = dt.datetime.now(dt.UTC)
    listed = tuple(ObjectInfo(key=item.key, size=item.bytes, modified=when) for item in state.objects.values())
    seen = StoreObservation(pair=_PAIR, at=now_ms(store), states=(state,), objects={1: listed})
    plan = retention_plan.make_plan(seen, RetentionRules())
    if plan.bytes < (objects - _TOPICS * _PARTITIONS) * _BYTES:
        raise RuntimeError(f"only {plan.bytes} bytes would go")
    return seen, plan


def main() -> None:
    """Run once."""
    what, root, objects = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = StoreAddress(root=root, settings=StoreAccess()).open()
    collect_rarely()
    work = {"make": make, "restore": restore, "retention": retention, "steps": steps}[what]
    report(measured(lambda: work(store, objects)))


if __name__ == "__main__":
    main()
