"""Where fetched record batches end, from their headers; topic ids in both alphabets."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from tandem.backup_avro.errors import DamagedError, PermanentError
from tandem.sink.kafka.wire import topic_ids
from tandem.sink.kafka.wire.batch_bounds import end_of


def batch(base: int, count: int, epoch: int) -> bytes:
    """Return a record batch as a broker stores it: base offset and leader epoch are the broker's."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=100_000)
    for number in range(count):
        builder.append(timestamp=number, key=None, value=b"v" * number, headers=[])
    builder.close()
    made = bytearray(builder.buffer())
    made[0:8] = base.to_bytes(8, "big")
    made[12:16] = epoch.to_bytes(4, "big")
    return bytes(made)


def test_end_of_whole_batches() -> None:
    """The next offset lies past the last record of the last batch; its epoch is that batch's."""
    records = batch(10, 3, epoch=4) + batch(40, 5, epoch=6)
    assert end_of(records, 11) == (45, 6)
    assert end_of(memoryview(records), 0) == (45, 6)
    assert end_of(b"", 11) == (11, -1)


@given(st.integers(min_value=0))
def test_a_cut_batch_does_not_count(cut: int) -> None:
    """Wherever the bytes are cut off, only whole batches count, and the start is never undercut."""
    first, second = batch(10, 3, epoch=4), batch(40, 5, epoch=6)
    records = first + second
    kept = records[: cut % len(records)]
    assert end_of(kept, 12) == ((13, 4) if len(kept) >= len(first) else (12, -1))


def test_a_batch_before_the_start() -> None:
    """A batch that ends before the asked offset (all of it compacted away) does not turn the reader back."""
    assert end_of(batch(10, 3, epoch=4), 20) == (20, 4)


@pytest.mark.parametrize(("at", "value"), [(16, 1), (16, 0), (8, 0xFF)])
def test_what_is_no_batch(at: int, value: int) -> None:
    """Old formats and nonsense lengths are damage, not an endless loop."""
    records = bytearray(batch(10, 3, epoch=4))
    records[at] = value
    with pytest.raises(DamagedError, match="magic"):
        end_of(bytes(records), 10)


@given(st.uuids())
def test_topic_ids(uuid: UUID) -> None:
    """Both forms lead to each other, and librdkafka's spelling to Kafka's."""
    text = topic_ids.as_text(uuid)
    assert len(text) == 22
    assert topic_ids.as_uuid(text) == uuid
    assert topic_ids.from_base64(text.replace("-", "+").replace("_", "/")) == text


@pytest.mark.parametrize("text", ["", "abc", "v7+w4tOTRhyO/4u4YVlzqQ", "ä" * 22])
def test_no_topic_id(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(PermanentError, match="topic id"):
        topic_ids.as_uuid(text)
