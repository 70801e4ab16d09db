"""Documents that no link of a chain speaks for say themselves whether they are what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest
from chains import PAIR, key
from doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import GroupOffset, Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.json_codec import PACKED_FROM, unpack
from tandem.backup_avro.documents import checkpoint, outcome
from tandem.backup_avro.documents.pause import Pause, decode_pause, encode_pause
from tandem.backup_avro.documents.range_offer import RangeOffer, decode_offer, encode_offer
from tandem.backup_avro.documents.release import Release, decode_release, encode_release
from tandem.backup_avro.documents.restore_targets import RestoreTargets, decode_targets, encode_targets
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain import pins
from tandem.spark_jobs.restore import offset_map, restore_record
from tandem.spark_jobs.restore.groups import group_plan, restore_groups
from tandem.spark_jobs.restore.lease.progress import TargetStrand

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
        raise DamagedError("here: a pin")
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


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_makes_another_document(kind: str) -> None:
    """Whichever bit it is, and wherever it is cut short or goes on."""
    data, read = KINDS[kind]
    for at in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[at] ^= 1 << bit
            with pytest.raises(DamagedError, match=r"^here"):
                read(bytes(spoilt))
        with pytest.raises(DamagedError, match=r"^here"):
            read(data[:at])
    for more in (b" ", b"}", data):
        with pytest.raises(DamagedError, match=r"^here"):
            read(data + more)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_without_a_sum_is_read(kind: str) -> None:
    """By the first versions: the same document in other bytes."""
    data, read = KINDS[kind]
    assert data.startswith(b'{"_sum":"')
    assert read(unpack(data, kind)) == read(data)


def test_a_checkpoint_of_many_partitions_is_packed() -> None:
    """Ten thousand offsets are a tenth of a megabyte as gzip, which has a sum of its own."""
    many = replace(REQUEST, cut={PartitionKey("t", number): number for number in range(10_000)})
    data = checkpoint.encode_request(many)
    assert len(data) < 100_000
    assert len(unpack(data, "x")) > PACKED_FROM
    assert checkpoint.decode_request(data, "x") == many
    with pytest.raises(DamagedError, match=r"^here"):
        checkpoint.decode_request(data[:-1], "here")


def test_a_pin_in_place_of_another_one_keeps_everything() -> None:
    """Its bytes are right; the generation that the other one kept must not go for it. The first pins had no id."""
    store = MemoryStore()
    for name, generation in (("one", 7), ("other", 8)):
        pins.put_pin(store, PAIR, generation=generation, owner="x", until=9, pin_id=name)
    one, other = store.objects
    store.objects[one] = store.objects[other]
    assert [pin.generation for pin in pins.list_pins(store, PAIR)] == [None, 8]
    store.objects[one] = b'{"generation":7,"owner":"x","until":9,"v":1}'
    assert [pin.generation for pin in pins.list_pins(store, PAIR)] == [7, 8]


def test_a_record_of_another_restore_is_damage() -> None:
    """Groups would be set by offsets of other topics."""
    store = MemoryStore()
    store.objects[restore_record.record_key(PAIR, "r2")] = restore_record.encode(RESTORED)
    with pytest.raises(DamagedError, match="is the record of restore r1 of pair"):
        restore_groups.load(store, PAIR, "r2")


def test_a_pin_that_was_put_without_a_sum_is_the_same_one() -> None:
    """Who put it goes on holding it."""
    store = MemoryStore()
    pins.put_pin(store, PAIR, generation=7, owner="x", until=9, pin_id="one")
    (name,) = store.objects
    store.objects[name] = unpack(store.objects[name], name)
    assert pins.put_pin(store, PAIR, generation=7, owner="x", until=9, pin_id="one").generation == 7
