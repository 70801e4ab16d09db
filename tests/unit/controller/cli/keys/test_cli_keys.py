"""`tandem keys`: what each generation needs, what is at hand, and that nothing of a key is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from golden.encrypted import KEY, KEY_TEXT
from support.backups.build_backup import PAIR, Backup, records
from support.pages import documents

from tandem.backup_avro.record.chunk_cipher import key_id
from tandem.controller.cli.main import run
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store import StoreAccess, open_store

OTHER_TEXT = "ff" + "01" * 31
OTHER = bytes.fromhex(OTHER_TEXT)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A generation with objects of two keys, and one that is not encrypted; the configuration names the newer key."""
    monkeypatch.delenv("TANDEM_CONFIG", raising=False)
    for name, text in (("old", OTHER_TEXT), ("new", KEY_TEXT)):
        (tmp_path / name).write_text(text)
    root = tmp_path / "store"
    root.mkdir()
    store = open_store(root.as_uri(), StoreAccess(encryption=KeySettings(key_file=str(tmp_path / "old"))))
    backup = Backup.begun(store, records("t", 0, range(5)))
    for number, keys in ((1, KeyRing(KeySettings(key_file=str(tmp_path / "new")))), (2, NO_KEYS)):
        store.keys = keys  # type: ignore[attr-defined]  # it is a file store
        backup.commit(records("t", 0, range(5 * number, 5 * number + 5)))
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "pair": PAIR,
                "topics": {"include": ["t"]},
                "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                "store": {"root": root.as_uri()},
                "encryption": {"key_file": str(tmp_path / "new")},
            }
        )
    )
    return path


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The document on stdout, which is as its schema says."""
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    documents.check(found)
    return found


def test_a_key_that_is_needed_and_not_at_hand_is_unhealthy(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the older key named as well all is fine."""
    assert run(["keys", "-c", str(config), "-o", "json"]) == 3
    found = told(capsys)
    assert found["current"] == key_id(KEY)
    uses = {use["keyId"]: (use["objects"], use["atHand"]) for use in found["uses"]}  # type: ignore[attr-defined]
    assert uses == {None: (1, True), key_id(KEY): (1, True), key_id(OTHER): (1, False)}
    old = f"encryption.decrypt_key_files={config.parent / 'old'}"
    assert run(["keys", "-c", str(config), "--set", old, "-o", "json"]) == 0
    assert {one["keyId"] for one in told(capsys)["atHand"]} == {key_id(KEY), key_id(OTHER)}  # type: ignore[attr-defined]


def test_the_table_names_places_and_no_key(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids, files, counts."""
    assert run(["keys", "-c", str(config)]) == 3
    out = capsys.readouterr().out
    assert f"encryption.key_file: {config.parent / 'new'}" in out
    assert "not encrypted" in out
    assert "NO" in out
    assert KEY_TEXT not in out


def test_what_is_needed_is_shown_also_where_no_key_can_be_read(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the machine of somebody who only wants to know."""
    (config.parent / "new").unlink()
    assert run(["keys", "-c", str(config), "-o", "json"]) == 3
    printed = capsys.readouterr()
    assert "no such file" in printed.err
    found = json.loads(printed.out)
    assert found["current"] is None
    assert len(found["uses"]) == 3


def test_an_instance_does_not_begin_without_its_key(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the setting, before anything is asked of the brokers, and nothing stored."""
    (config.parent / "new").write_text("not-hexadecimal")
    before = sorted(config.parent.glob("store/**/*"))
    assert run(["run", "-c", str(config), "--set", "instance=a"]) == 2
    printed = capsys.readouterr()
    assert f"encryption.key_file: {config.parent / 'new'} holds no key" in printed.err
    assert "not-hexadecimal" not in printed.err
    assert sorted(config.parent.glob("store/**/*")) == before


def test_check_warns_of_keys_that_are_not_at_hand(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that the configuration should name; where it names none, nobody means to open anything."""

    def warned(*options: str) -> list[str]:
        run(["check", "-c", str(config), "--s3-only", "-o", "json", *options])
        found = json.loads(capsys.readouterr().out)
        return [one["message"] for one in found["findings"] if "key" in one["message"]]

    assert warned() == [f"generation 1 needs key {key_id(OTHER)}, which is not at hand"]
    assert warned("--set", f"encryption.decrypt_key_files={config.parent / 'old'}") == []
    (config.parent / "new").unlink()
    (message,) = warned()
    assert "no such file" in message
    settings = yaml.safe_load(config.read_text())
    del settings["encryption"]
    config.write_text(yaml.safe_dump(settings))
    assert warned() == []
