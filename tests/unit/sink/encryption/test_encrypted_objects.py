"""Encrypted data objects in a backup: written, read, merged, verified; swapped, cut and mislabelled ones are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden.encrypted import KEY_TEXT
from structlog.testing import capture_logs
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.keys import ring
from support.pipeline.doubles import MemoryStore
from support.pipeline.merging import TOPICS, backup_of, merger, to_the_end
from support.pipeline.rolling import Names, buffer, segment

from tandem.backup_avro.chain.entries import PartitionKey, StoredObject, sha256_hex
from tandem.backup_avro.chain.json_codec import decode_entry
from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.container import Codec, decode_header
from tandem.backup_avro.record.current import Record, decode_body
from tandem.backup_avro.record.envelope import CHUNK_SIZE, is_encrypted
from tandem.backup_avro.selection.restorable_state import Slice, select
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.errors import MissingKeyError, PlainObjectError
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import (
    open_object,
    part_hashes,
    read_parts,
    read_range,
    require_keys,
    stored_object,
)
from tandem.sink.write.confirm import ObjectLostError
from tandem.spark_jobs.datasource.key_history import history
from tandem.spark_jobs.reading.object_reader import ObjectReader, StoreAddress
from tandem.spark_jobs.state.read_options import parse_keys, parse_options, store_options
from tandem.spark_jobs.verify.verify_plan import VerifyFault, check_object, plan_objects

OTHER_TEXT = "ff" + "01" * 31


def slices(store: ObjectStore) -> list[Slice]:
    """All parts of generation 1, whole."""
    state = ChainReader(store, PAIR).load(1)
    return [
        Slice(generation=1, opening=state.opening, item=item, part=part, low=part.first, high=part.last + 1)
        for item, part in state.live_parts()
    ]


def read(store: ObjectStore, piece: Slice, *, apart: bool = False, **how: Any) -> list[Record]:
    """The records of a slice."""
    reader = ObjectReader(store, apart=apart)
    return [record for body in reader.bodies(piece, **how) for record in decode_body(body.body, body.records)]


def stored(store: ObjectStore) -> dict[PartitionKey, list[Record]]:
    """All records of generation 1 by partition, in the order of their offsets."""
    found: dict[PartitionKey, list[Record]] = {}
    for piece in sorted(slices(store), key=lambda piece: piece.low):
        found.setdefault(piece.part.key, []).extend(read(store, piece))
    return found


def findings(store: MemoryStore) -> list[tuple[VerifyFault, str]]:
    """What `tandem verify` finds in the objects."""
    checks = plan_objects([ChainReader(store, PAIR).load(1)])
    found = [it for check in checks for it in check_object(check, store.get(check.item.key), store.keys).findings]
    return [(it.fault, it.message) for it in found]


@pytest.mark.parametrize("journal", [True, False])
def test_records_come_back_whole_and_in_parts(journal: bool) -> None:
    """By whole objects, by parts of a journal, from the end, and of some offsets."""
    store = MemoryStore(keys=ring())
    written = records("t", 0, range(4000)) + records("t", 1, range(50))
    backup = Backup.claim(store, topics=[TopicSpec("t", 2)], block_records=50, codec=Codec.NULL)
    backup.commit(written, journal=journal)
    assert max(item.bytes for item in backup.writer.state.objects.values()) > 2 * CHUNK_SIZE
    for apart in (False, True):
        found = {piece.part.key.partition: read(store, piece, apart=apart) for piece in slices(store)}
        assert found[0] + found[1] == written
        (first,) = [piece for piece in slices(store) if piece.part.key.partition == 0]
        some = read(store, replace(first, low=100, high=205), apart=apart)
        assert [record.offset for record in some] == list(range(100, 205))
        assert len(read(store, first, apart=apart, newest_first=True)) == 4000
    assert findings(store) == []


def test_nothing_of_keys_and_values_is_in_the_store() -> None:
    """Neither in data objects nor in the chain: a journal's parts are hashed as they are stored."""
    store = MemoryStore(keys=ring())
    canary = "canary-in-a-coal-mine"
    batch = [
        Record(topic="t", partition=0, offset=n, key=f"{canary}{n}".encode(), value=canary.encode() * 3)
        for n in range(20)
    ]
    backup = Backup.claim(store, topics=TOPICS)
    backup.commit(batch, journal=True)
    backup.complete()
    assert not [key for key, data in store.objects.items() if canary.encode() in data]
    entries = [decode_entry(data, key) for key, data in store.objects.items() if "generations/00000001/" in key]
    parts = [(item, part) for entry in entries for item in entry.objects for part in item.parts]
    assert parts
    for item, part in parts:
        plain = open_object(store.keys, item, store.objects[item.key])
        assert [part.sha256] == list(part_hashes(item, [part], store.objects[item.key]))
        assert part.sha256 != sha256_hex(plain[part.start : part.end])


@pytest.mark.parametrize("journal", [True, False])
def test_what_is_rolled_with_a_seal_is_what_is_rolled_without(journal: bool) -> None:
    """Same parts at the same plain bytes; encrypted as the blocks come, without a second copy."""
    name = "shop/a/generation=00000001/journal/00000000000000000001+0011223344556677.avro"
    seal = ring().new(name)
    assert seal is not None
    built = []
    for given in (None, seal):
        it = buffer()
        for partition in range(4):
            spec = Backup.claim(MemoryStore(), topics=[TopicSpec("t", 4)])
            it.add(spec.key("t", partition), None, [segment(records("t", partition, range(400)))])
        (assembly, *rest) = it.cut(Names(), max_objects=2 if journal else 9)
        assert bool(rest) is not journal
        built.append(replace(assembly, key=name).build(given))
    plain, sealed = built
    assert is_encrypted(sealed.data)
    assert sealed.item.bytes == len(sealed.data)
    opened = open_object(ring(), sealed.item, bytes(sealed.data))
    assert opened == plain.data
    assert [replace(part, sha256=None) for part in plain.item.parts] == [
        replace(part, sha256=None) for part in sealed.item.parts
    ]
    assert all((part.sha256 is not None) is journal for part in sealed.item.parts)
    assert not {part.sha256 for part in plain.item.parts} & {part.sha256 for part in sealed.item.parts} - {None}
    assert sealed.item.separable is plain.item.separable is journal


@pytest.mark.parametrize("journal", [True, False])
def test_merging_opens_and_seals_anew_with_the_newest_key(journal: bool) -> None:
    """After a rotation old objects are read with the old key, and what they become has the new one."""
    store = MemoryStore(keys=ring(OTHER_TEXT))
    backup = backup_of(store, 20, journal=journal)
    store.keys = NO_KEYS  # objects that were not encrypted are merged along
    more = [record for p in range(3) for record in records("t", p, range(40, 44))]
    backup.commit(more, journal=journal)
    store.keys = ring(KEY_TEXT, OTHER_TEXT)
    before = {piece.part.key: [] for piece in slices(store)}
    for piece in sorted(slices(store), key=lambda piece: piece.low):
        before[piece.part.key] += read(store, piece)
    objects = len(backup.writer.state.objects)
    assert to_the_end(merger(backup)) > 0
    state = ChainReader(store, PAIR).load(1)
    assert len(state.objects) < objects
    new = {item.key: item for item in state.objects.values() if item.envelope is not None}
    assert {item.envelope.key_id for item in new.values() if item.envelope} >= {ring().current()}
    after: dict[Any, list[Record]] = {key: [] for key in before}
    for piece in sorted(slices(store), key=lambda piece: piece.low):
        after[piece.part.key] += read(store, piece, apart=True)
    assert after == before
    assert findings(store) == []


def test_a_merge_without_the_key_leaves_everything_as_it_is() -> None:
    """It is told, and nothing was stored."""
    store = MemoryStore(keys=ring(OTHER_TEXT))
    backup = backup_of(store, 20, journal=True)
    store.keys = ring(KEY_TEXT)
    objects = set(store.objects)
    with pytest.raises(MissingKeyError, match="not at hand"):
        to_the_end(merger(backup))
    assert set(store.objects) == objects


@pytest.fixture
def two() -> tuple[MemoryStore, StoredObject, StoredObject]:
    """A store with two encrypted journals of one pair."""
    store = MemoryStore(keys=ring())
    backup = Backup.claim(store, topics=TOPICS)
    for low in (0, 10):
        backup.commit(records("t", 0, range(low, low + 10)), journal=True)
    first, second = backup.writer.state.objects.values()
    return store, first, second


def test_an_object_in_another_s_place_is_found(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """By whole, by part, and even where the chain was made to agree with it."""
    store, first, second = two
    store.objects[first.key] = store.objects[second.key]
    piece = slices(store)[0]
    for apart in (True, False):
        with pytest.raises(DamagedError, match=first.key.replace("+", r"\+")):
            read(store, piece, apart=apart)
    assert [fault for fault, _ in findings(store)] == [VerifyFault.CHECKSUM]
    forged = replace(first, sha256=second.sha256, bytes=second.bytes, envelope=second.envelope)
    with pytest.raises(DamagedError, match="TDM-A080"):
        open_object(store.keys, forged, store.objects[first.key])
    with pytest.raises(DamagedError, match="TDM-A080"):
        read_range(store, forged, 0, 10)


def sealed_by_another(store: MemoryStore, item: StoredObject, at: int) -> bytes:
    """The object as somebody makes it who has the data key: a byte of a record differs, and everything opens."""
    assert item.envelope is not None
    plain = open_object(store.keys, item, store.objects[item.key])
    assert isinstance(plain, bytearray)
    plain[at] ^= 1
    data_key = store.keys.data_key(item.key, item.envelope)
    return bytes(chunk_cipher.seal(item.envelope, data_key, plain, name=item.key))


def test_who_has_the_data_key_makes_no_records(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """He seals what he likes, but the chain has the hash of what was stored: of a journal's parts too."""
    store, first, _ = two
    part = first.parts[0]
    store.objects[first.key] = sealed_by_another(store, first, part.end - 20)
    assert len(store.objects[first.key]) == first.bytes
    read_range(store, first, part.start, part.end)  # it does open
    with pytest.raises(DamagedError, match="TDM-N018"):
        read_parts(store, first, [part])
    for apart, what in ((True, "are not what the chain says"), (False, "has the SHA-256")):
        with pytest.raises(DamagedError, match=what):
            read(store, slices(store)[0], apart=apart)
    assert [fault for fault, _ in findings(store)] == [VerifyFault.CHECKSUM]


@pytest.mark.parametrize("hashed", [True, False])
def test_a_merge_takes_no_record_from_who_has_the_data_key(hashed: bool) -> None:
    """It would lie in an object that the chain vouches for."""
    store = MemoryStore(keys=ring())
    backup = backup_of(store, 6, journal=True)
    if not hashed:
        forget_hashes(backup)
    item = next(iter(backup.writer.state.objects.values()))
    store.objects[item.key] = sealed_by_another(store, item, item.parts[0].end - 20)
    before = dict(store.objects)
    with pytest.raises(ObjectLostError, match="what the chain says"):
        merger(backup).step()
    assert store.objects == before


def forget_hashes(backup: Backup) -> None:
    """Have a state that is read from a chain of the first release with encryption."""
    objects = backup.writer.state.objects
    for key, item in objects.items():
        objects[key] = replace(item, parts=tuple(replace(part, sha256=None) for part in item.parts))


def test_a_journal_without_hashes_is_read_whole(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """As encrypted ones once were: nothing but the whole object's hash vouches for them."""
    store, first, _ = two
    bare = replace(first, parts=tuple(replace(part, sha256=None) for part in first.parts))
    piece = replace(slices(store)[0], item=bare, part=bare.parts[0])
    assert [record.offset for record in read(store, piece, apart=True)] == list(range(10))
    store.objects[first.key] = sealed_by_another(store, first, first.parts[0].end - 20)
    with pytest.raises(DamagedError, match="TDM-P063"):
        read(store, piece, apart=True)


def test_parts_are_checked_one_by_one() -> None:
    """Those of many partitions, in chunks that hold the end of one and the beginning of the next one."""
    store = MemoryStore(keys=ring())
    backup = Backup.claim(store, topics=[TopicSpec("t", 40)])
    backup.commit([r for p in range(40) for r in records("t", p, range(240))], journal=True)
    (item,) = backup.writer.state.objects.values()
    assert item.envelope is not None
    assert item.bytes > 3 * CHUNK_SIZE
    plain = bytes(open_object(store.keys, item, store.objects[item.key]))
    for parts in (item.parts, item.parts[3:5], item.parts[-1:], item.parts[7::9]):
        assert read_parts(store, item, parts) == [plain[part.start : part.end] for part in parts]
    touched = next(part for part in item.parts if part.start // CHUNK_SIZE != part.end // CHUNK_SIZE)
    store.objects[item.key] = sealed_by_another(store, item, touched.end - 20)
    for part in item.parts:
        stretch = item.chunk_range(part.start, part.end)
        hit = stretch.plain <= touched.end - 20 < stretch.plain + stretch.end - stretch.start
        if hit:
            with pytest.raises(DamagedError, match=f"bytes {part.start} to {part.end} are not what the chain says"):
                read_parts(store, item, [part])
        else:
            assert read_parts(store, item, [part]) == [plain[part.start : part.end]]


def test_small_parts_in_one_chunk_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of ten thousand partitions would be hashed hundreds of times over."""
    store = MemoryStore(keys=ring())
    backup = Backup.claim(store, topics=[TopicSpec("t", 300)])
    backup.commit([r for p in range(300) for r in records("t", p, range(40))], journal=True)
    (item,) = backup.writer.state.objects.values()
    assert item.envelope is not None
    data = store.objects[item.key]
    hashed: list[int] = []

    def count(view: memoryview) -> str:
        hashed.append(len(view))
        return sha256_hex(view)

    monkeypatch.setattr("tandem.sink.store.encrypted_objects.sha256_hex", count)
    assert list(part_hashes(item, item.parts, data)) == [part.sha256 for part in item.parts]
    assert sum(hashed) < 4 * len(data)
    assert len(hashed) < len(item.parts) / 10


def test_what_the_chain_says_of_encryption_must_be_so(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """An encrypted object that is said to be plain, and a plain one that is said to be encrypted."""
    store, first, _ = two
    data = store.objects[first.key]
    with pytest.raises(DamagedError, match="TDM-N017"):
        open_object(store.keys, replace(first, envelope=None), data)
    opened = bytes(open_object(store.keys, first, data))
    assert decode_header(opened).length > 0
    plain = stored_object(bytearray(opened), key=first.key, journal=True, parts=first.parts, seal=None)
    with pytest.raises(DamagedError, match="TDM-A081"):
        open_object(store.keys, replace(plain, envelope=first.envelope), opened)


def test_a_part_that_is_cut_short_is_found(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """A range beyond the end of what the store has."""
    store, first, _ = two
    store.objects[first.key] = store.objects[first.key][:-1]
    with pytest.raises(DamagedError, match="TDM-N018"):
        read(store, slices(store)[0], apart=True)
    with pytest.raises(DamagedError, match=f"the chain says {first.bytes}"):
        read_range(store, first, 0, first.plain_bytes)
    assert [fault for fault, _ in findings(store)] == [VerifyFault.CHECKSUM]


def test_a_chunk_that_was_changed_is_a_finding_of_verify(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """Also where its checksum was changed with it: what the chain says is then not enough."""
    store, first, _ = two
    data = bytearray(store.objects[first.key])
    data[-1] ^= 1
    forged = stored_object(data, key=first.key, journal=True, parts=first.parts, seal=None)
    (check, *_) = plan_objects([ChainReader(store, PAIR).load(1)])
    check = replace(check, item=replace(forged, envelope=first.envelope))
    (finding,) = check_object(check, bytes(data), store.keys).findings
    assert finding.fault is VerifyFault.CHECKSUM
    assert finding.message.startswith("chunk 0 is not")


def test_a_missing_key_is_told_before_anything_is_read(two: tuple[MemoryStore, StoredObject, StoredObject]) -> None:
    """And it is no finding of a verification."""
    store, *_ = two
    store.keys = ring(OTHER_TEXT)
    pieces = slices(store)
    with pytest.raises(MissingKeyError):
        store.keys.require(piece.item for piece in pieces)
    with pytest.raises(MissingKeyError):
        read(store, pieces[0])
    with pytest.raises(MissingKeyError):
        findings(store)


def test_the_history_of_a_key_is_read_from_encrypted_objects() -> None:
    """`tandem records` needs no Spark, and the keys go along with the store."""
    store = MemoryStore(keys=ring())
    backup = Backup.claim(store, topics=TOPICS)
    backup.commit(records("t", 0, range(30), keys=10), journal=True)
    backup.complete()
    selection = select([ChainReader(store, PAIR).load(1)])
    require_keys(store, selection.partitions)
    found = history(store, selection.partitions, b"key-3")
    assert [item.record.offset for item in found] == [3, 13, 23]
    store.keys = NO_KEYS
    with pytest.raises(MissingKeyError):
        require_keys(store, selection.partitions)


def test_a_store_is_opened_with_the_keys_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is opened: what travels are names of files and variables, and no key."""
    monkeypatch.setenv("BACKUP_KEY", KEY_TEXT)
    settings = StoreAccess(encryption=KeySettings(key_env="BACKUP_KEY"))
    address = StoreAddress(root=tmp_path.as_uri(), settings=settings)
    assert KEY_TEXT not in repr(address)
    Backup.begun(address.open(), records("t", 0, range(10)), topics=TOPICS)
    (piece,) = slices(open_store(tmp_path.as_uri()))
    assert piece.item.envelope is not None
    assert len(list(address.reader().bodies(piece))) == 3


def test_options_of_the_data_source_name_keys() -> None:
    """They come back from settings as they were, and unknown ones are refused."""
    settings = StoreAccess(
        region="eu-central-1",
        encryption=KeySettings(key_file="/k", decrypt_key_files=("/a", "/b"), require=True),
    )
    options = store_options(settings)
    assert options == {
        "encryption.key_file": "/k",
        "encryption.decrypt_key_files": "/a,/b",
        "encryption.require": "true",
        "store.region": "eu-central-1",
    }
    assert parse_options({"root": "file:///x", "pair": PAIR, **options}).address.settings == settings
    with pytest.raises(Exception, match=r"unknown option encryption.keyfile"):
        parse_keys({"keyfile": "/k"})
    with pytest.raises(Exception, match=r"unknown option store.encryption"):
        parse_options({"root": "file:///x", "pair": PAIR, "store.encryption": "x"})
    with pytest.raises(ConfigError, match=r"option encryption.require is no bool"):
        parse_keys({"key_file": "/k", "require": "perhaps"})


# --- what is not encrypted --------------------------------------------------------------------------------------------


def demanding(*, new: bool = True) -> KeyRing:
    """Keys that take nothing that is not encrypted."""
    field: dict[str, Any] = {"key_env": "NEW"} if new else {"decrypt_key_envs": ("NEW",)}
    return KeyRing(KeySettings(require=True, **field), environment={"NEW": KEY_TEXT})


@pytest.mark.parametrize("journal", [True, False])
def test_what_is_not_encrypted_is_refused_wherever_it_is_read(journal: bool) -> None:
    """Whoever can write a chain, and has no key, could name a plain object in it, which was read like an old one."""
    store = MemoryStore(keys=ring())
    backup = backup_of(store, 4, journal=journal)
    store.keys = NO_KEYS
    backup.commit(records("t", 0, range(40, 44)), journal=journal)
    backup.complete()
    store.keys = demanding()
    *sealed, plain = slices(store)
    assert [read(store, piece, apart=apart) for piece in sealed for apart in (True, False)]
    for apart in (True, False):
        with pytest.raises(PlainObjectError) as caught:
            read(store, plain, apart=apart)
        assert str(caught.value).startswith(f"{plain.item.key} is not encrypted, and encryption.require is set (if it")
        assert caught.value.exit_code is ExitCode.UNHEALTHY
    with pytest.raises(PlainObjectError):
        require_keys(store, select([ChainReader(store, PAIR).load(1)]).partitions)
    assert findings(store) == [(VerifyFault.CHECKSUM, "is not encrypted, and encryption.require is set")]
    store.keys = ring()
    assert findings(store) == []


def test_a_merge_takes_nothing_that_is_not_encrypted() -> None:
    """It would be sealed by the instance, and nobody could tell any more."""
    store = MemoryStore()
    backup = backup_of(store, 20, journal=True)
    store.keys = demanding()
    objects = set(store.objects)
    with capture_logs() as logs:
        assert to_the_end(merger(backup)) == 0
    assert set(store.objects) == objects
    told = [(line["event"], line["objects"]) for line in logs if line["log_level"] == "warning"]
    assert told == [("objects that are not encrypted are not merged: encryption.require is set", 20)]


@pytest.mark.parametrize("journal", [True, False])
def test_what_is_encrypted_is_merged_beside_what_is_not(journal: bool) -> None:
    """Wherever the plain objects lie: older than the key, or put among the others by whoever has none."""
    store = MemoryStore()
    backup = backup_of(store, 6, journal=journal)
    for n in range(6, 40):
        store.keys = NO_KEYS if n in {20, 39} else ring()
        batch = [record for p in range(3) for record in records("t", p, range(2 * n, 2 * n + 2))]
        backup.commit(batch, journal=journal)
    plain = {item.key for item in backup.writer.state.objects.values() if item.envelope is None}
    store.keys = ring()
    before, objects = stored(store), len(backup.writer.state.objects)
    store.keys = demanding()
    with capture_logs() as logs:
        assert to_the_end(merger(backup)) > 0
    assert [line["objects"] for line in logs if line["log_level"] == "warning"] == [len(plain)]
    state = ChainReader(store, PAIR).load(1)
    assert {item.key for item in state.objects.values() if item.envelope is None} == plain
    assert len(state.objects) - len(plain) < (objects - len(plain)) / 2
    store.keys = ring()
    assert stored(store) == before
    assert findings(store) == []


def test_what_has_to_be_encrypted_is_never_written_in_the_clear() -> None:
    """An instance says so at its start; a reader needs no key for new objects."""
    with pytest.raises(ConfigError, match="require: is set, and no key is named"):
        KeySettings(require=True)
    keys = demanding(new=False)
    for writing in (lambda: keys.check(PAIR), lambda: keys.new("shop/a/generation=00000001/journal/x.avro")):
        with pytest.raises(ConfigError, match="TDM-N005") as caught:
            writing()
        assert caught.value.exit_code is ExitCode.USAGE
    demanding().check(PAIR)
