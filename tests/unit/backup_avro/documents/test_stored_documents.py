"""Documents that no link of a chain speaks for say themselves whether they are what was written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.chains import PAIR
from support.pages.stored_documents import KINDS, REQUEST, RESTORED
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.json_codec import PACKED_FROM, unpack
from tandem.backup_avro.documents import checkpoint
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain import pins
from tandem.spark_jobs.restore.groups import restore_groups
from tandem.spark_jobs.restore.progress import restore_record


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
