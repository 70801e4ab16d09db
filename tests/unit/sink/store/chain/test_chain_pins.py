"""Pins on a real file store: who keeps what, until when."""

from __future__ import annotations

import os
import threading
from datetime import datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tandem.backup_avro.chain.json_codec import canonical, pack
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins

PAIR = "shop"


def test_a_pin_holds_its_generation_until_it_ends(store: ObjectStore) -> None:
    """Only the pinned generation is kept, and only before `until`."""
    pins.put_pin(store, PAIR, generation=7, owner="restore", until=1000)
    found = pins.list_pins(store, PAIR)
    assert [pin.owner for pin in pins.pins_on(found, 7, 999)] == ["restore"]
    assert pins.pins_on(found, 7, 1000) == []
    assert pins.pins_on(found, 8, 999) == []


def test_renewing_leaves_no_moment_without_a_pin(store: ObjectStore) -> None:
    """The old pin stays beside the renewed one until it is released."""
    first = pins.put_pin(store, PAIR, generation=7, owner="verify", until=1000)
    second = pins.renew_pin(store, PAIR, first, until=2000)
    assert {pin.until for pin in pins.list_pins(store, PAIR)} == {1000, 2000}
    pins.release_pin(store, PAIR, first)
    assert pins.list_pins(store, PAIR) == [second]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"v":2,"generation":1,"owner":"x","until":1}', b'{"v":1,"generation":"1","owner":"x","until":1}'],
)
def test_an_unreadable_pin_keeps_everything_for_a_while(store: ObjectStore, content: bytes) -> None:
    """What can't be understood may matter to somebody, who puts another one before this one ends."""
    store.put_if_absent(f"{PAIR}/pins/broken.json", content)
    store.put_if_absent(f"{PAIR}/pins/{pins.LASTING}broken.json", content)
    end = round(store.now().timestamp() * 1000) + pins.LONGEST_MS
    pin, lasting = pins.list_pins(store, PAIR)
    assert pin.until is not None
    assert abs(pin.until - end) < 10_000
    assert pin.trouble == "it can't be read"
    assert [pin.holds(number, pin.until - 1) for number in (1, 99)] == [True, True]
    assert not pin.holds(1, pin.until)
    assert lasting.holds(1, 10**15), "what a checkpoint needs is not a reader's to let go"


@pytest.mark.parametrize("pin_id", ["reader-1", "f" * 32, "checkpoint-1"])
def test_a_readers_pin_ends_by_the_time_of_its_object(store: ObjectStore, tmp_path: Path, pin_id: str) -> None:
    """One that names the year 9999 once stopped all clearing; readers renew theirs by putting new ones."""
    pins.put_pin(store, PAIR, generation=7, owner="restore", until=pins.FOR_EVER, pin_id=pin_id)
    written_s = store.now().timestamp() - 7200
    os.utime(tmp_path / "store" / PAIR / "pins" / f"{pin_id}.json", (written_s, written_s))
    (pin,) = pins.list_pins(store, PAIR)
    if pin.lasting:
        assert (pin.until, pin.trouble) == (pins.FOR_EVER, None)
    else:
        assert pin.until == round(written_s * 1000) + pins.LONGEST_MS
        assert pin.trouble is not None
        assert pins.pins_on([pin], 7, round(store.now().timestamp() * 1000)) == []


def test_a_flood_of_junk_pins_is_a_few_lines(store: ObjectStore) -> None:
    """All are listed each half a minute, by both instances."""
    for number in range(30):
        store.put_if_absent(f"{PAIR}/pins/junk{number}.json", b"")
    with capture_logs() as lines:
        for _ in range(10):
            pins.list_pins(store, PAIR)
    assert len(lines) <= 5


def test_a_pin_that_unpacks_to_more_than_one_is_unreadable(store: ObjectStore) -> None:
    """A thousand of them, a kilobyte each, would take a gigabyte of each process that looks at pins."""
    until = round(store.now().timestamp() * 1000) + 1000
    fields = {"v": 1, "generation": 3, "owner": "restore", "until": until}
    for name, padding in (("small", 10), ("large", 1 << 20)):
        store.put_if_absent(f"shop/pins/{name}.json", pack(canonical(fields | {"id": name}) + b" " * padding))
    found = {pin.id: (pin.owner, pin.generation) for pin in pins.list_pins(store, "shop")}
    assert found == {"small": ("restore", 3), "large": ("unknown", None)}


def test_held_pins_are_renewed_and_then_removed(store: ObjectStore) -> None:
    """While the block lasts there is always a pin that has not ended; afterwards there is none."""
    now = round(store.now().timestamp() * 1000)
    renewed = threading.Event()
    with pins.hold_pins(store, PAIR, [3, 4], owner="verify", lifetime_ms=300):
        first = {pin.until for pin in pins.list_pins(store, PAIR)}
        assert {pin.generation for pin in pins.list_pins(store, PAIR)} == {3, 4}
        for _ in range(200):
            found = pins.list_pins(store, PAIR)
            assert pins.pins_on(found, 3, now)
            if {pin.until for pin in found} - first and not first & {pin.until for pin in found}:
                renewed.set()
                break
            threading.Event().wait(0.02)
    assert renewed.is_set()
    assert pins.list_pins(store, PAIR) == []


def test_a_renewal_that_fails_in_any_way_is_tried_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is none of Tandem's does not end the thread: its pins would end, and their objects might go."""
    now = store.now
    failures = [ValueError("no time"), RuntimeError("no thread")]

    def fails_twice() -> datetime:
        if failures:
            raise failures.pop()
        return now()

    with pins.hold_pins(store, PAIR, [3], owner="restore", lifetime_ms=60), capture_logs() as logs:
        first = pins.list_pins(store, PAIR)
        monkeypatch.setattr(store, "now", fails_twice)
        for _ in range(500):
            if not set(first) & set(pins.list_pins(store, PAIR)):
                break
            threading.Event().wait(0.02)
        else:
            pytest.fail("no pin was renewed")
    assert [entry["event"] for entry in logs] == ["a pin could not be renewed, trying again"] * 2
