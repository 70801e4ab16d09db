"""Which keys are a connector's files, and of which partition."""

from __future__ import annotations

import pytest

from tandem.backup_avro.documents.connector_layout import ConnectorFilePlace, ConnectorReading, place_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("topics/orders/partition=3/orders+3+0000000000.avro", ("orders", "topics", 3)),
        ("backup/orders/partition=3/any name at all.avro", ("orders", "backup", 3)),
        ("orders/partition=3/x.avro", ("orders", ".", 3)),
        ("orders/tandem-0/12/orders-12-7.avro", ("orders", "tandem-0", 12)),
        ("topics/orders/partition%3D3/orders%2B3%2B0.avro", ("orders", "topics", 3)),
        ("topics/a/0/x.avro", ("topics", "a", 0)),
        ("topics/a/partition=0/x.avro", ("a", "topics", 0)),
    ],
)
def test_both_layouts(key: str, expected: tuple[str, str, int]) -> None:
    """The folder of the partition tells them apart; names don't matter, also where they were URL-encoded."""
    topic, copy, partition = expected
    assert place_of(key) == ConnectorFilePlace(topic=topic, copy=copy, partition=partition)


@pytest.mark.parametrize(
    "key",
    [
        "topics/orders/partition=3/orders+3+0.parquet",
        "topics/orders/orders+3+0.avro",
        "x.avro",
        "topics/orders/partition=/x.avro",
        "topics/orders/partition=-1/x.avro",
        "topics/orders/partition=2147483648/x.avro",
        "topics/orders/partition=٣/x.avro",
        "topics/or ders/partition=0/x.avro",
        "topics/../partition=0/x.avro",
        "orders/a/b/x.avro",
        "pair/a/generation=00000001/topics/orders/partition=0/orders+0+1+2+3.avro",
        "old/topics/orders/partition=0/x.avro",
    ],
)
def test_other_keys_are_none(key: str) -> None:
    """Nothing is guessed: what fits neither layout is no file of a connector."""
    assert place_of(key) is None


def test_whose_copy() -> None:
    """What is said of one topic counts more than what is said of all."""
    reading = ConnectorReading(instance="a", instances=(("orders", "b"),))
    assert (reading.wanted("orders"), reading.wanted("customers")) == ("b", "a")
    assert ConnectorReading().wanted("orders") is None
