"""Whoever writes to the bucket can't fill a reader's memory: documents have a largest size, packed and unpacked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.backups.build_backup import Backup, records
from support.backups.chains import PAIR
from support.pages.stored_documents import HUGE, KINDS, RESTORED, grow

from tandem.backup_avro.chain import document_limits, layout
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.json_codec import canonical, decode_entry, dump_object, pack, unpack
from tandem.backup_avro.chain.signatures import Signer
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.errors import DamagedError, ExitCode, RefusedError
from tandem.backup_avro.record.compression import gzip
from tandem.controller.cli.main import run
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.pauses import PauseReader
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.spark_jobs.restore.groups import group_plan, restore_groups
from tandem.spark_jobs.restore.progress import offset_pages, restore_record
from tandem.spark_jobs.restore.progress.offset_map import LARGEST_PAGE, OffsetRow
from tandem.spark_jobs.restore.progress.offset_pages import TaskMap

LEFT_BY_RESTORES = ("restore record", "group note")
OFFER = layout.offers_prefix(PAIR, "a", 1) + layout.offer_name(
    layout.OfferedOffsets("t", 0, floor=1, leader=1, low=0, high=9), "00"
)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A store in a folder, with a backup of one generation."""
    found = open_store(tmp_path.as_uri())
    Backup.completed(found, records("orders", 0, range(10)))
    return found


@pytest.mark.parametrize(
    ("name", "most"),
    [
        (layout.claim_key(PAIR, 2), document_limits.SMALL),
        (layout.entry_key(PAIR, 1, 2), document_limits.ENTRY),
        (layout.pins_prefix(PAIR) + "x.json", document_limits.PIN),
        (layout.pause_key(PAIR, 1), document_limits.SMALL),
        (layout.release_key(PAIR, 1), document_limits.SMALL),
        (layout.checkpoint_key(PAIR, "x"), document_limits.LISTS),
        (layout.outcome_key(PAIR, "x"), document_limits.SMALL),
        (layout.result_prefix(PAIR, "drill") + "1-x.json", document_limits.SMALL),
        (OFFER, document_limits.LISTS),
        (layout.restore_prefix(PAIR, "r") + "restore.json", document_limits.ENTRY),
        (layout.restore_prefix(PAIR, "r") + "groups-0001-0001.json", document_limits.ENTRY),
        (layout.restore_prefix(PAIR, "r") + "offsets/t+0+aa.json", document_limits.LISTS),
    ],
)
def test_each_kind_of_document_has_a_largest_size(store: ObjectStore, tmp_path: Path, name: str, most: int) -> None:
    """One byte more is not read, and not put; what is no document is of any size."""
    assert document_limits.most_bytes(name) == most
    grow(tmp_path, name)
    with pytest.raises(
        DamagedError, match=rf"{name.rsplit('/', maxsplit=1)[-1].split('+', maxsplit=1)[0]}.* has {HUGE} bytes"
    ):
        store.get(name)
    grow(tmp_path, name, most)
    if most < document_limits.ENTRY:
        assert len(store.get(name)) == most
    with pytest.raises(RefusedError, match=rf"would have {most + 1} bytes"):
        store.put_if_absent(name, memoryview(bytes(most + 1)))


def test_what_is_no_document_has_none() -> None:
    """Of data objects the chain says how large they are: see test_data_object_limits."""
    data = layout.data_key((PAIR, "a", 1), topic="t", partition=0, first=0, last=9, nonce="0" * 16)
    for name in (data, layout.journal_key(PAIR, "a", 1, seq=3, nonce="0")):
        assert document_limits.most_bytes(name) is None


@pytest.mark.parametrize("signed", [False, True])
def test_one_that_is_too_large_is_damage_and_no_more(tmp_path: Path, signed: bool) -> None:
    """It costs what a damaged one costs: a generation, a pause, a release; a pin keeps everything."""
    signer = Signer.generate()
    (tmp_path / "key.pem").write_bytes(signer.pem())
    settings = StoreAccess(
        signing_key_file=str(tmp_path / "key.pem"), trusted_keys=signer.public, require_signatures=True
    )
    (tmp_path / "root").mkdir()
    store = open_store((tmp_path / "root").as_uri(), settings if signed else None)
    Backup.begun(store, records("orders", 0, range(10)))
    pauses = PauseReader(store, PAIR)
    pauses.append(Pause(number=0, pair=PAIR, at=0, until=9, by="me", reason=""))
    for name in (
        layout.claim_key(PAIR, 2),
        layout.pins_prefix(PAIR) + "x.json",
        layout.pause_key(PAIR, 2),
        layout.release_key(PAIR, 1),
    ):
        grow(tmp_path / "root", name)
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh(tolerant=True)] == [1]
    assert f"has {HUGE} bytes" in str(reader.damaged[2])
    (pin,) = pins.list_pins(store, PAIR)
    assert (pin.generation, pin.trouble) == (None, "it can't be read")
    assert pauses.refresh() is None
    with pytest.raises(DamagedError, match="has"):
        ReleaseReader(store, PAIR).refresh()
    os.truncate(tmp_path / "root" / layout.claim_key(PAIR, 2), document_limits.SMALL + 1)
    with pytest.raises(DamagedError, match=f"nothing that belongs there has more than {document_limits.SMALL}"):
        ChainReader(store, PAIR).refresh()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LEFT_BY_RESTORES])
def test_small_documents_do_not_unpack_to_large_ones(kind: str) -> None:
    """A gzip member of twenty kilobytes is not taken for sixteen megabytes of JSON."""
    _, read = KINDS[kind]
    data = gzip(b'{"v":1,"objects":[' + b"[]," * (6 << 20) + b"[]]}")
    with pytest.raises(DamagedError, match="would take more than") if kind != "pin" else pytest.raises(DamagedError):
        read(data)


@pytest.mark.parametrize("kind", LEFT_BY_RESTORES)
def test_what_a_restore_leaves_has_the_bounds_of_an_entry(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take more is not unpacked, nor are lists of nothing parsed."""
    _, read = KINDS[kind]
    with monkeypatch.context() as smaller:
        for module in (restore_record, group_plan):
            smaller.setattr(module, "ENTRY_JSON", 10_000)
        with pytest.raises(DamagedError, match="would take more than 10000 bytes"):
            read(gzip(b'{"v":1,"x":"' + b"x" * 10_000 + b'"}'))
    with pytest.raises(DamagedError, match=rf"more than {document_limits.VALUES} values"):
        read(gzip(b'{"v":1,"x":[' + b"[]," * (document_limits.VALUES // 2) + b"[]]}"))


def test_rows_of_a_large_transaction_are_put_into_pages_of_a_few_megabytes(store: ObjectStore) -> None:
    """A transaction may have a row for each of its records, millions: nobody would read them as one document."""
    rows = [OffsetRow(0, number, number, 1, number, 1) for number in range(2 * LARGEST_PAGE + 1)]
    first = offset_pages.write(store, rows[:1], None, TaskMap(pair=PAIR, restore="r", topic_id="t", task=0))
    last = offset_pages.write(store, rows[1:], first, TaskMap(pair=PAIR, restore="r", topic_id="t", task=0))
    assert sorted(offset_pages.read(store, last, pair=PAIR, restore="r")) == rows
    assert len(list(store.list(layout.restore_prefix(PAIR, "r")))) == 3


def test_a_restore_of_more_than_a_document_has_room_for_ends_well(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only groups go by its record, so the restore says that it left none."""
    with monkeypatch.context() as smaller:
        smaller.setattr("tandem.backup_avro.chain.json_codec.ENTRY_JSON", 100)
        assert "JSON has more than 100 bytes" in str(restore_groups.leave(store, RESTORED))
    assert restore_groups.list_restores(store, PAIR) == ([], {})
    assert restore_groups.leave(store, RESTORED) is None
    assert restore_groups.list_restores(store, PAIR) == ([RESTORED], {})
    store.put_if_absent(restore_record.record_key(PAIR, "other"), b"{}")
    found, damaged = restore_groups.list_restores(store, PAIR)
    assert (found, list(damaged)) == ([RESTORED], ["other"])
    assert restore_record.record_key(PAIR, "other") in str(damaged["other"])


def test_a_damaged_record_of_a_restore_hides_no_other(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it is what is wrong; beside another one it may be the one that was meant, so one has to be named."""
    command = ["restore", "groups", "--root", store.url, "--pair", PAIR, "--target-bootstrap-servers", "nowhere:1"]
    store.put_if_absent(restore_record.record_key(PAIR, "other"), b"{}")
    assert run(command) == ExitCode.UNHEALTHY
    assert "restores/other/restore.json: field v is missing" in capsys.readouterr().err
    restore_groups.leave(store, RESTORED)
    assert run(command) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "restore other can't be read: " in err
    assert f"has 2 restores [TDM-R094]\nwhat to do: name one with --restore: {RESTORED.id} of " in err


def test_an_entry_has_a_largest_size_and_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of nothing take twenty times their bytes of memory: they are counted before they are parsed."""
    bomb = b'{"v":1,"objects":[' + b"[]," * (document_limits.VALUES // 2) + b"[]]}"
    for data in (gzip(bomb), bomb):
        with pytest.raises(DamagedError, match=rf"^here: its JSON has more than {document_limits.VALUES} values"):
            decode_entry(data, "here")
    with pytest.raises(RefusedError, match="would not be readable: its JSON has more than"):
        pack(bomb)
    monkeypatch.setattr("tandem.backup_avro.chain.json_codec.ENTRY_JSON", 10_000)
    with pytest.raises(RefusedError, match="its JSON has more than 10000 bytes"):
        pack(b'"' + b"x" * 10_000 + b'"')
    with pytest.raises(DamagedError, match=r"^here: its JSON has more than 10000 bytes"):
        unpack(b'"' + b"x" * 10_000 + b'"', "here", 10_000)
    with pytest.raises(DamagedError, match=r"^here: compressed data would take more than 10000 bytes \(if"):
        unpack(gzip(b'"' + b"x" * 10_000 + b'"'), "here", 10_000)


def test_ten_thousand_partitions_have_room() -> None:
    """A SNAPSHOT of 28 journals, each with a part of every partition, is a third of what is read, or less."""
    parts = tuple(
        Part(
            key=PartitionKey(f"{number % 97:022d}", number), first=number << 20, last=(number << 20) + 900, records=300,
            tombstones=4, min_timestamp=1_760_000_000_000 + number, max_timestamp=1_761_000_000_000 + number,
            start=number << 10, end=(number << 10) + 900, sha256=f"{number * 7919:064x}", largest=900,
            uncompressed=number,
        )
        for number in range(10_000)
    )  # fmt: skip
    name = layout.journal_key(PAIR, "a", 1, seq=3, nonce="0" * 16)
    journal = StoredObject(key=name, journal=True, bytes=9 << 20, sha256="ab" * 32, parts=parts)
    data = canonical(dump_object(journal))
    assert 28 * len(data) * 3 < document_limits.ENTRY_JSON
    assert 28 * sum(data.count(mark) for mark in (b",", b"[", b"{")) * 3 < document_limits.VALUES
