"""Records of two stored copies, compared where no broker can be asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.record.current import Record
from tandem.sink.encryption.errors import KeyDeniedError, MissingKeyError
from tandem.sink.store import stored_blocks
from tandem.sink.store.chain.chain_writer import StoppedError
from tandem.sink.store.contract.object_store import ObjectMissingError
from tandem.sink.write import compare_copies
from tandem.sink.write.compare_copies import CopyComparison

SPEC = TopicSpec("t", partitions=2)
KEY = PartitionKey(SPEC.topic().topic_id, 0)
OTHER = PartitionKey(SPEC.topic().topic_id, 1)
LATER = 1_800_000_000_000
"""The time of records of another history: their offsets are used again."""


class Copies:
    """Generation 1 with these records of partition 0 in three objects, generation 2 with those, read by a scan."""

    def __init__(
        self, first: Sequence[Record], second: Sequence[Record], *, log_start: int = 0, policy: str = "compact"
    ) -> None:
        self.store = MemoryStore()
        spec = replace(SPEC, config={"cleanup.policy": policy})
        self.one = Backup.claim(self.store, topics=[spec])
        third = -(-len(first) // 3) or 1
        for at in range(0, len(first), third):
            self.one.commit([*first[at : at + third], *records("t", 1, range(at, at + 3))], journal=at == third)
        if not first:
            self.one.commit([], ends={("t", 0): 20})
        self.one.complete()
        self.two = Backup.claim(self.store, topics=[spec], number=2, instance="b")
        ends = {("t", 0): 40, ("t", 1): 40}
        self.two.commit(
            [*second, *records("t", 1, range(log_start, 30))], ends=ends, base_end=ends, log_start=log_start
        )
        self.two.complete()
        self.stop = threading.Event()
        self.compared = CopyComparison(self.store, stop=self.stop)

    def unproven(self, *keys: PartitionKey) -> frozenset[PartitionKey]:
        """What can't be shown to be of one log."""
        return self.compared.unproven(self.one.writer.state, self.two.writer.state, keys or (KEY,))

    def last_object(self) -> str:
        """The object with the last records of generation 1."""
        return [item.key for item, part in self.one.writer.state.live_parts() if part.key == KEY][-1]


ONE_LOG = records("t", 0, range(20))


@pytest.mark.parametrize("window", [1 << 20, 64], ids=["a part at once", "block by block"])
@pytest.mark.parametrize(
    ("second", "proven"),
    [
        pytest.param(records("t", 0, range(30)), True, id="one log"),
        pytest.param(records("t", 0, [3, 8, 19, 25]), True, id="one log that was compacted"),
        pytest.param([*ONE_LOG[:15], *records("t", 0, range(15, 30), timestamp=LATER)], False, id="set back to 15"),
        pytest.param([*ONE_LOG[:19], *records("t", 0, range(19, 30), timestamp=LATER)], False, id="set back to 19"),
        pytest.param(records("t", 0, [3, 18, 25]), False, id="the last record was superseded, or never there"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_a_newer_copy_has_read_the_same_log_if_it_has_the_last_record(
    second: list[Record], monkeypatch: pytest.MonkeyPatch, *, proven: bool, window: int
) -> None:
    """The other partition is of one log in any case."""
    monkeypatch.setattr(stored_blocks, "_WINDOW", window)
    copies = Copies(ONE_LOG, second)
    assert copies.unproven(KEY, OTHER) == (frozenset() if proven else {KEY})


def test_a_copy_without_records_has_nothing_to_lose() -> None:
    """All had expired, or all were of aborted transactions."""
    assert copies_of_nothing().unproven() == frozenset()


def copies_of_nothing() -> Copies:
    """Generation 1 stands at 20 and has no record."""
    return Copies([], records("t", 0, range(30)))


@pytest.mark.parametrize(
    ("policy", "proven"), [("delete", True), ("compact,delete", True), ("compact", False)], ids=str
)
def test_what_has_expired_is_not_missed(policy: str, *, proven: bool) -> None:
    """The log began at 25 when the newer copy was read. If its policy is compact alone, that is a loss."""
    copies = Copies(ONE_LOG, records("t", 0, range(25, 30)), log_start=25, policy=policy)
    assert copies.unproven() == (frozenset() if proven else {KEY})


def test_a_damaged_older_copy_proves_nothing() -> None:
    """It stays; what is left of it may be all that there is."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    name = copies.last_object()
    copies.store.objects[name] = b"x" * len(copies.store.objects[name])
    assert copies.unproven() == {KEY}


def test_an_object_that_is_missing_is_asked_for_twice() -> None:
    """It may have been merged into another one since the chain was read. If it is still missing, nothing is proven."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    copies.store.delete([copies.last_object()])
    with pytest.raises(ObjectMissingError):
        copies.unproven()
    assert copies.unproven() == {KEY}


def test_a_damaged_cover_proves_nothing() -> None:
    """The older copy stays, and the others of its generation may go."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    (name,) = (item.key for item, part in copies.two.writer.state.live_parts() if part.key == KEY)
    copies.store.objects[name] = b"x" * len(copies.store.objects[name])
    assert copies.unproven(KEY, OTHER) == {KEY}


def test_a_cover_without_its_object_is_an_error() -> None:
    """Whoever calls has looked for it before: it went in between."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    copies.store.delete([item.key for item, part in copies.two.writer.state.live_parts() if part.key == KEY])
    with pytest.raises(ObjectMissingError):
        copies.unproven()


def test_a_record_that_lies_too_deep_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may be a gigabyte."""
    monkeypatch.setattr(compare_copies, "_MOST_BYTES", 600)
    assert Copies(ONE_LOG, records("t", 0, range(22))).unproven() == frozenset()
    assert Copies(ONE_LOG, records("t", 0, range(40))).unproven() == {KEY}


@pytest.mark.parametrize("error", [MissingKeyError, KeyDeniedError])
def test_a_lost_key_proves_nothing(error: type[TandemError], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the generation may go. A key that can't be reached now is asked for again."""

    def refuse(*_: object) -> None:
        raise error("no such key", code="TDM-X001")

    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    monkeypatch.setattr(stored_blocks, "read_range", refuse)
    assert copies.unproven() == {KEY}


def test_it_ends_with_the_process() -> None:
    """Within a block."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    copies.stop.set()
    with pytest.raises(StoppedError):
        copies.unproven()


def test_an_answer_is_kept_until_the_clearing_is_over() -> None:
    """While the generation is in use, the clearing is tried again and again."""
    copies = Copies(ONE_LOG, records("t", 0, range(30)))
    assert copies.unproven() == frozenset()
    copies.store.delete([copies.last_object()])
    assert copies.unproven() == frozenset()
    copies.compared.forget(2)
    assert copies.unproven() == frozenset()
    copies.compared.forget(1)
    with pytest.raises(ObjectMissingError):
        copies.unproven()
