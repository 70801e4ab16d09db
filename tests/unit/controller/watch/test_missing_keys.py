"""An instance compares the keys that it has read with those that the objects of all generations need."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from golden.encrypted import KEY, KEY_TEXT
from support.backups.build_backup import PAIR, Backup, records

from tandem.backup_avro.record.chunk_cipher import key_id
from tandem.controller.watch.store_watch import StoreView, StoreWatch
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader

OTHER_TEXT = "ff" + "01" * 31
OTHER_ID = key_id(bytes.fromhex(OTHER_TEXT))


def viewed(root: Path, settings: KeySettings) -> StoreView:
    """What an instance with these keys sees of the store."""
    reader = ChainReader(open_store(root.as_uri(), StoreAccess(encryption=settings)), PAIR)
    watch = StoreWatch(reader, interval_s=60.0, wake=threading.Event())
    watch.start()
    try:
        for _ in range(200):
            if watch.view is not None:
                return watch.view
            time.sleep(0.05)
    finally:
        watch.stop()
    raise AssertionError(watch.trouble or watch.damage)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A store with two generations of the older key, to the newer of which the newer key was added, and both keys."""
    old, new, root = tmp_path / "old", tmp_path / "new", tmp_path / "store"
    old.write_text(OTHER_TEXT)
    new.write_text(KEY_TEXT)
    root.mkdir()
    store = open_store(root.as_uri(), StoreAccess(encryption=KeySettings(key_file=str(old))))
    Backup.begun(store, records("t", 0, range(5)))
    second = Backup.begun(store, records("t", 0, range(5)), number=2)
    store.keys = KeyRing(KeySettings(key_file=str(new)))  # type: ignore[attr-defined]  # it is a file store
    second.commit(records("t", 0, range(5, 10)))
    return root, old, new


def test_objects_of_a_key_that_is_not_named_are_counted(files: tuple[Path, Path, Path]) -> None:
    """By generation and key; of the key that is named there are none."""
    root, _, new = files
    assert viewed(root, KeySettings(key_file=str(new))).missing_keys == {1: {OTHER_ID: 1}, 2: {OTHER_ID: 1}}


def test_no_key_at_all(files: tuple[Path, Path, Path]) -> None:
    """The section was taken out of the configuration: both keys are missing where objects need them."""
    found = viewed(files[0], KeySettings()).missing_keys
    assert (found[1], set(found[2])) == ({OTHER_ID: 1}, {OTHER_ID, key_id(KEY)})


def test_nothing_is_missing_where_both_are_named(files: tuple[Path, Path, Path]) -> None:
    """The older one for reading."""
    root, old, new = files
    assert viewed(root, KeySettings(key_file=str(new), decrypt_key_files=(str(old),))).missing_keys == {}
