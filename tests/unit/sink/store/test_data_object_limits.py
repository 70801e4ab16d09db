"""A data object that was replaced by a far larger one is damage, and none of it is read: the chain says its size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from golden.encrypted import KEY_TEXT
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.old_files import avro, put, rows, sink_key
from support.pages.stored_documents import grow
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.documents.connector_layout import ConnectorReading
from tandem.backup_avro.errors import DamagedError, ExitCode
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.store import ObjectStore, OutsizedObjectError, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import StoreDeniedError, put_new
from tandem.sink.store.encrypted_objects import read_range
from tandem.sink.write.confirm import ObjectLostError, ReadBack
from tandem.spark_jobs.connector import connector_reader
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.connector.file_findings import FileFault
from tandem.spark_jobs.reading.object_reader import ObjectReader, StoreAddress
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.retention.sweep_partition import sweep_partition
from tandem.spark_jobs.retention.sweep_plan import SweepRules, plan_sweep
from tandem.spark_jobs.verify.verify_objects import check_one
from tandem.spark_jobs.verify.verify_plan import VerifyFault, plan_objects

SPEC = TopicSpec("orders")
KEY = PartitionKey(SPEC.topic().topic_id, 0)
LARGE = 256 << 20
ALLOWED = 8 << 20
"""Bytes that a reader may take on the way to its refusal; it took all of `LARGE` once."""


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A store in a folder, with a complete generation of three objects of the same keys."""
    (tmp_path / "key").write_text(KEY_TEXT)
    (tmp_path / "root").mkdir()
    keys = KeySettings(key_file=str(tmp_path / "key")) if request.param == "encrypted" else KeySettings()
    found = open_store((tmp_path / "root").as_uri(), StoreAccess(encryption=keys))
    backup = Backup.claim(found, topics=[SPEC])
    for first in (0, 10, 20):
        backup.commit(records("orders", 0, range(first, first + 5), keys=10))
    backup.complete()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where its objects lie."""
    return tmp_path / "root"


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """No test of these takes more than what is allowed."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ALLOWED


def _restore(store: ObjectStore) -> None:
    state = ChainReader(store, PAIR).load(1)
    for item, part in state.live_parts():
        piece = Slice(generation=1, opening=state.opening, item=item, part=part, low=part.first, high=part.last + 1)
        list(ObjectReader(store).bodies(piece))


def _sweep(store: ObjectStore) -> None:
    state = ChainReader(store, PAIR).load(1)
    ((task,), _) = plan_sweep(
        state, {KEY: 25}, past=state, others=(), cuts={}, rules=SweepRules(horizon=0, min_gain=0.0)
    )
    sweep_partition(store, task, write=True)


@pytest.mark.parametrize("work", [_restore, _sweep])
def test_restores_and_sweeps_stop_at_it(store: ObjectStore, root: Path, work: Callable[[ObjectStore], None]) -> None:
    """With the words, the remedy and the exit code of any other object that is not what the chain says."""
    work(store)
    item = next(iter(ChainReader(store, PAIR).load(1).objects.values()))
    (root / item.key).unlink()
    grow(root, item.key, LARGE)
    with pytest.raises(DamagedError) as caught:
        work(store)
    assert caught.value.args == (f"{item.key} has {LARGE} bytes, the chain says {item.bytes}",)
    assert "restore the object from the bucket's versions" in (caught.value.remedy or "")
    assert caught.value.exit_code is ExitCode.UNHEALTHY


@pytest.mark.parametrize("more", [1, LARGE])
def test_verify_finds_it_and_goes_on(store: ObjectStore, root: Path, more: int) -> None:
    """A byte or a quarter of a gigabyte too many: the same finding; all other objects are read."""
    checks = plan_objects([ChainReader(store, PAIR).load(1)])
    item = checks[1].item
    size = item.bytes + more
    (root / item.key).unlink()
    grow(root, item.key, size)
    results = [check_one(store, check) for check in checks]
    assert sum(result.records for result in results) == 10
    (finding,) = [finding for result in results for finding in result.findings]
    assert (finding.fault, finding.where) == (VerifyFault.CHECKSUM, item.key)
    assert finding.message == f"has {size} bytes, the chain says {item.bytes}"


def _of_connector(root: Path) -> tuple[StoreAddress, str]:
    key = put(root / "old", sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    put(root / "old", sink_key("orders", 0, 9), avro(rows("orders", 0, range(9, 20))))
    return StoreAddress(root=(root / "old").as_uri(), settings=StoreAccess(), connector=ConnectorReading()), key


def test_a_file_of_a_connector_that_grew_since_it_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a finding with its key, and a plan stops with it."""
    address, key = _of_connector(tmp_path)
    listing = ConnectorReader(address).listing()
    grow(tmp_path / "old", key, LARGE)
    (item,) = [item for item in listing.files if item.key == key]
    (finding,) = connector_reader.examine_one(address, item).findings
    assert (finding.fault, finding.where) == (FileFault.CONTAINER, key)
    assert finding.message == f"it has {LARGE} bytes, and had {item.size} when it was listed: it was changed"
    monkeypatch.setattr(ConnectorReader, "listing", lambda _: listing)
    with pytest.raises(DamagedError, match=f"{LARGE} bytes, and had {item.size}") as caught:
        plan_of(ConnectorReader(address), RestoreOptions())
    assert str(caught.value).startswith(key)
    assert caught.value.remedy


def test_a_file_of_a_connector_that_grew_since_it_was_read(tmp_path: Path) -> None:
    """As any other that was changed meanwhile."""
    address, key = _of_connector(tmp_path)
    ready = ConnectorReader(address).find(StateRequest()).ready
    assert ready is not None
    (selected,) = ready.selection.partitions
    grow(tmp_path / "old", key, LARGE)
    (piece,) = [piece for piece in selected.slices if piece.item.key == key]
    bodies = address.reader().bodies(piece)
    with pytest.raises(DamagedError, match=f"{key.replace('+', '.')} was changed since it was first read"):
        next(bodies)


def test_a_topic_that_has_the_name_of_a_folder_of_ours(tmp_path: Path) -> None:
    """Its files are no documents, and may be larger than those."""
    put(tmp_path / "old", sink_key("results", 0, 0), avro(rows("results", 0, range(9), value=bytes(1 << 18))))
    address = StoreAddress(root=(tmp_path / "old").as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    assert plan_of(ConnectorReader(address), RestoreOptions()).records == 9


class _Whole(MemoryStore):
    """A store that sends all of an object, whatever range is asked for, as some gateways do."""

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Hold all of it against `most`."""
        return super().get(key, most=most)[start:end]


def test_a_store_that_knows_no_ranges_sends_no_more_than_the_object() -> None:
    """What is read in parts, by merges, by journals' readers and for COMPLETE, is bounded by the object's size."""
    store = _Whole()
    backup = Backup.claim(store, topics=[SPEC])
    backup.commit(records("orders", 0, range(5)), journal=True)
    ((item, part),) = backup.writer.state.live_parts()
    assert len(read_range(store, item, part.start, part.end)) == part.end - part.start
    ReadBack(store).read_back([item])
    store.objects[item.key] += b"\0"
    with pytest.raises(OutsizedObjectError, match=f"has {item.bytes + 1} bytes"):
        read_range(store, item, part.start, part.end)
    with pytest.raises(ObjectLostError, match=f"was replaced by {item.bytes + 1} bytes") as raised:
        ReadBack(store).read_back([item])
    assert (raised.value.item, raised.value.remedy) == (item, "check the store's disks")


def test_what_stands_in_the_way_of_a_new_object_is_not_read_if_it_is_larger(tmp_path: Path) -> None:
    """A name with a nonce, and still somebody was there before."""
    store = open_store(tmp_path.as_uri())
    grow(tmp_path, "a/b", LARGE)
    with pytest.raises(DamagedError, match=f"a/b has {LARGE} bytes"):
        put_new(store, "a/b", b"new")


def test_whoever_may_not_read_finds_its_own_object_by_its_size() -> None:
    """A catch-up job may put data and list it. The answer to its put was lost, and the next try met the object."""

    def denied(operation: str, key: str) -> Exception | None:
        return StoreDeniedError(f"get {key}: 403", code="TDM-X001") if operation == "get" else None

    store = MemoryStore(objects={"a/b": b"mine", "a/bc": b"of others"}, before=denied)
    put_new(store, "a/b", b"mine")
    with pytest.raises(DamagedError, match="a/b holds other bytes"):
        put_new(store, "a/b", b"mine, and more")
