"""Stored documents of every kind, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from support.backups.chains import PAIR, key
from support.pipeline.doubles import MemoryStore
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import GroupOffset, Part, StoredObject
from tandem.backup_avro.documents import checkpoint, outcome
from tandem.backup_avro.documents.pause import Pause, decode_pause, encode_pause
from tandem.backup_avro.documents.range_offer import RangeOffer, decode_offer, encode_offer
from tandem.backup_avro.documents.release import Release, decode_release, encode_release
from tandem.backup_avro.documents.restore_targets import RestoreTargets, decode_targets, encode_targets
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain import pins
from tandem.spark_jobs.restore.groups import group_plan
from tandem.spark_jobs.restore.progress import offset_map, restore_record
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand

HUGE = 4 << 30


def grow(folder: Path, name: str, size: int = HUGE) -> None:
    """Have an object of so many bytes, which take no room on the disk."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


K = key()

NONCE = "ab" * 16

PART = Part(
    key=K, first=60, last=99, records=40, tombstones=0, min_timestamp=1, max_timestamp=2, start=10, end=90, scan=1
)

OBJECT = StoredObject(
    key="shop/a/generation=00000001/topics/t/x.avro", journal=False, bytes=100, sha256="ab", parts=(PART,)
)

REQUEST = checkpoint.CheckpointRequest(
    id="nightly", nonce=NONCE, pair=PAIR, cluster_id="c", at=0, deadline=9, keep_until=None, by="me", reason="",
    topics={"t": "orders"}, cut={K: 1234}, witnesses=(1,),
)  # fmt: skip

OFFER = RangeOffer(
    generation=1, key=K, floor=1, leader=1, low=60, high=100, started_at=1, ended_at=2, took_ms=1, objects=(OBJECT,),
    run="job",
)  # fmt: skip

RELEASE = Release(
    number=1, pair=PAIR, topic="orders", topic_id="t", partitions=(1, 3), through=5, at=0, by="me", reason="r"
)

RESULT = outcome.JobOutcome(
    kind=outcome.JobKind.DRILL, pair=PAIR, at=0, by="me", clean=True, what="all", findings=0, records=7, bytes=9,
    generations={7: 42}, phases={"load": 1.5},
)  # fmt: skip

RESTORED = restore_record.RestoreRecord(
    id="r1", pair=PAIR, plan="p", generation=7, seq=42, as_of=None, at=0, target_cluster="c",
    topics=(
        restore_record.TopicRecord(
            name="orders", topic_id="t", partitions=1, target="orders", target_topic_id="u", ends={0: 10},
            tasks=(
                restore_record.TaskRecord(
                    sources=(0,), strands={0: TargetStrand(records=9, hash="ab", first=0, last=8)}, page="p"
                ),
            ),
        ),
    ),
    groups={"g": (GroupOffset(key=K, offset=5),)},
)  # fmt: skip

Read: TypeAlias = Callable[[bytes], object]


def pin_of(data: bytes) -> pins.Pin:
    """A pin as it is listed. One that can't be read keeps everything, which is no error."""
    (pin,) = pins.list_pins(MemoryStore(objects={f"{layout.pins_prefix(PAIR)}x.json": data}), PAIR)
    if pin.generation is None:
        raise DamagedError("here: a pin", code="TDM-X001")
    return pin


def pin_bytes() -> bytes:
    """What is stored for a pin."""
    store = MemoryStore()
    pins.put_pin(store, PAIR, generation=7, owner="restore", until=1_800_000_000_000, pin_id="x")
    (data,) = store.objects.values()
    return data


KINDS: dict[str, tuple[bytes, Read]] = {
    "offer": (encode_offer(OFFER), lambda data: decode_offer(data, "here")),
    "release": (encode_release(RELEASE), lambda data: decode_release(data, "here")),
    "pause": (
        encode_pause(Pause(number=1, pair=PAIR, at=0, until=3_600_000, by="me", reason="r")),
        lambda data: decode_pause(data, "here"),
    ),
    "checkpoint request": (checkpoint.encode_request(REQUEST), lambda data: checkpoint.decode_request(data, "here")),
    "checkpoint outcome": (
        checkpoint.encode_outcome(
            checkpoint.CheckpointOutcome(id="nightly", nonce=NONCE, at=0, by="me", generation=7, seq=42)
        ),
        lambda data: checkpoint.decode_outcome(data, "here"),
    ),
    "result": (outcome.encode_outcome(RESULT), lambda data: outcome.decode_outcome(data, "here")),
    "pin": (pin_bytes(), pin_of),
    "restore record": (restore_record.encode(RESTORED), lambda data: restore_record.decode(data, "here")),
    "offset page": (
        offset_map.encode_page([offset_map.OffsetRow(0, 0, 9, 0, 100, 10)], "before"),
        lambda data: offset_map.decode_page(data, "here"),
    ),
    "restore targets": (
        encode_targets(RestoreTargets(pair=PAIR, plan="ab" * 32, cluster_id="c", topics={"t.restored": "id", "u": ""})),
        lambda data: decode_targets(data, "here"),
    ),
    "group note": (
        group_plan.encode_snapshot([group_plan.OffsetBefore(group="g", topic="t", partition=0, offset=4)], 0),
        lambda data: group_plan.decode_snapshot(data, "here", {"t"}),
    ),
}
