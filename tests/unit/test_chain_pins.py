"""Pins on a real file store: who keeps what, until when."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from backup_avro.chain_json import canonical, pack
from sink.chain import pins
from sink.object_store import ObjectStore, open_store

PAIR = "shop"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A file store."""
    return open_store(tmp_path.as_uri())


def test_a_pin_holds_its_generation_until_it_ends(store: ObjectStore) -> None:
    """Only the pinned generation is kept, and only before `until`."""
    pins.put(store, PAIR, generation=7, owner="restore", until=1000)
    found = pins.list_pins(store, PAIR)
    assert [pin.owner for pin in pins.holding(found, 7, 999)] == ["restore"]
    assert pins.holding(found, 7, 1000) == []
    assert pins.holding(found, 8, 999) == []


def test_renewing_leaves_no_moment_without_a_pin(store: ObjectStore) -> None:
    """The old pin stays beside the renewed one until it is released."""
    first = pins.put(store, PAIR, generation=7, owner="verify", until=1000)
    second = pins.renew(store, PAIR, first, until=2000)
    assert {pin.until for pin in pins.list_pins(store, PAIR)} == {1000, 2000}
    pins.release(store, PAIR, first)
    assert pins.list_pins(store, PAIR) == [second]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"v":2,"generation":1,"owner":"x","until":1}', b'{"v":1,"generation":"1","owner":"x","until":1}'],
)
def test_an_unreadable_pin_keeps_everything(store: ObjectStore, content: bytes) -> None:
    """What can't be understood may matter to somebody: it holds every generation for ever."""
    store.put_if_absent(f"{PAIR}/pins/broken.json", content)
    (pin,) = pins.list_pins(store, PAIR)
    assert pin.holds(1, 10**15)
    assert pin.holds(99, 10**15)


def test_a_pin_that_unpacks_to_more_than_one_is_unreadable(store: ObjectStore) -> None:
    """A thousand of them, a kilobyte each, would take a gigabyte of each process that looks at pins."""
    fields = {"v": 1, "generation": 3, "owner": "restore", "until": 10**15}
    for name, padding in (("small", 10), ("large", 1 << 20)):
        store.put_if_absent(f"shop/pins/{name}.json", pack(canonical(fields | {"id": name}) + b" " * padding))
    found = {pin.id: (pin.owner, pin.until) for pin in pins.list_pins(store, "shop")}
    assert found == {"small": ("restore", 10**15), "large": ("unknown", None)}


def test_held_pins_are_renewed_and_then_removed(store: ObjectStore) -> None:
    """While the block lasts there is always a pin that has not ended; afterwards there is none."""
    now = round(store.now().timestamp() * 1000)
    renewed = threading.Event()
    with pins.held(store, PAIR, [3, 4], owner="verify", lifetime_ms=300):
        first = {pin.until for pin in pins.list_pins(store, PAIR)}
        assert {pin.generation for pin in pins.list_pins(store, PAIR)} == {3, 4}
        for _ in range(200):
            found = pins.list_pins(store, PAIR)
            assert pins.holding(found, 3, now)
            if {pin.until for pin in found} - first and not first & {pin.until for pin in found}:
                renewed.set()
                break
            threading.Event().wait(0.02)
    assert renewed.is_set()
    assert pins.list_pins(store, PAIR) == []
