"""Names in the store: what may stand in them, and that they sort as their numbers do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import ConfigError, DamagedError


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a..b", "a b", "x" * 129, "ä", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    """Nothing that climbs, hides, or means something to a shell or a store."""
    with pytest.raises(ConfigError, match="TDM-A029"):
        layout.check_name(name, "pair")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "a b", "t\n"])
def test_what_is_no_topic_is_damage(name: str) -> None:
    """Topic names come from stored bytes; only Kafka's own alphabet goes into a key."""
    with pytest.raises(DamagedError, match="TDM-A030"):
        layout.data_key(("p", "a", 1), topic=name, partition=0, first=0, last=1, nonce="0")


def test_names_are_what_the_design_says() -> None:
    """The layout is a public format."""
    assert layout.claim_key("shop", 7) == "shop/generations/00000007.json"
    assert layout.claim_number("00000007.json") == 7
    assert layout.claim_number("00000007") is None
    assert layout.claim_number("7.json") is None
    assert layout.chain_prefix("shop", 7) == "shop/generations/00000007/"
    assert layout.entry_key("shop", 7, 42) == "shop/generations/00000007/00000000000000000042.json"
    assert layout.claims_prefix("shop") == "shop/generations/"
    assert layout.pins_prefix("shop") == "shop/pins/"
    assert layout.checkpoint_key("shop", "x") == "shop/checkpoints/x.json"
    assert layout.data_key(("shop", "a", 7), topic="t.x", partition=3, first=1, last=2, nonce="ab") == (
        "shop/a/generation=00000007/topics/t.x/partition=3/t.x+3+00000000000000000001+00000000000000000002+ab.avro"
    )
    assert layout.journal_key("shop", "a", 7, seq=5, nonce="ab") == (
        "shop/a/generation=00000007/journal/00000000000000000005+ab.avro"
    )
    assert layout.journal_number(layout.journal_key("shop", "a", 7, seq=5, nonce="ab")) == 5
    with pytest.raises(DamagedError, match="TDM-A032"):
        layout.journal_number("shop/a/generation=00000007/topics/t/partition=0/x.avro")


def test_pair_and_generation_of_a_data_object() -> None:
    """Keys of a KMS are bound to them; other names are told."""
    for name in (
        layout.journal_key("shop", "a", 7, seq=5, nonce="ab"),
        layout.data_key(("shop", "b", 7), topic="t", partition=3, first=1, last=2, nonce="ab"),
    ):
        assert layout.place_of(name) == ("shop", 7)
    for name in (layout.claim_key("shop", 7), layout.data_prefix("shop", "a", 7), "shop/a/b/generation=00000007/x"):
        with pytest.raises(DamagedError, match="TDM-A031"):
            layout.place_of(name)


def test_what_a_catch_up_job_stores_is_told_by_its_name() -> None:
    """Offers by their folder, whatever lies there; data objects by topic and partition, journals by neither."""
    where = ("shop", "a", 7)
    data = layout.data_key(where, topic="offers", partition=12, first=1, last=2, nonce="ab")
    assert layout.partition_of(data) == ("offers", 12)
    assert not layout.is_offer(data)
    for name in ("x", layout.offer_name(layout.OfferedOffsets("t", 0, floor=1, leader=1, low=0, high=9), "ab")):
        assert layout.is_offer(layout.offers_prefix(*where) + name)
        assert layout.partition_of(layout.offers_prefix(*where) + name) is None
    journal = layout.journal_key(*where, seq=5, nonce="ab")
    assert not layout.is_offer(journal)
    assert layout.partition_of(journal) is None


@pytest.mark.parametrize("make", [layout.data_key, layout.swept_key])
def test_a_name_fits_into_a_segment_however_long_the_topic_is(make: Callable[..., str]) -> None:
    """Kafka takes 249 letters, a file system 255 bytes for one name; topics that differ at their end stay apart."""
    where = {"first": 2**63 - 2, "last": 2**63 - 1, "partition": 2**31 - 1, "nonce": layout.marked("0" * 16, "a" * 7)}
    for length in range(1, 250):
        key = make(("shop", "a", 7), topic="t" * length, **where)
        assert len(key.rpartition("/")[2]) <= 240
        assert layout.partition_of(key) == ("t" * length, 2**31 - 1)
        assert layout.place_of(key) == ("shop", 7)
        assert layout.by_janitor(key) == (make is layout.swept_key)
    names = {layout.name_of_topic("t" * 248 + last) for last in "abc"}
    assert len(names) == 3
    assert {name.partition("~")[0] for name in names} == {"t" * 142}
    assert layout.name_of_topic("t" * 159) == "t" * 159
    assert layout.mark_in(layout.data_key(("shop", "a", 7), topic="t" * 249, **where)) == "a" * 7
