"""Commands that ask the store alone: a file that says nothing of Kafka is enough, and so are --root and --pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, records

from tandem.controller.cli.main import run
from tandem.sink.store import ObjectStore, open_store

ALONE = (
    ("history",),
    ("keys",),
    ("describe", "1"),
    ("describe", "orders"),
    ("report", "--html", "-"),
    ("status", "--s3-only"),
    ("check", "--s3-only"),
    ("checkpoint", "list"),
    ("checkpoint", "delete", "none"),
    ("wait", "--for", "complete", "--for", "generation=1", "--timeout", "5s"),
    ("pause", "--for", "1h"),
    ("resume",),
    ("records", "--topic", "orders", "--key", "none"),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A complete backup in a folder."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    found = open_store((tmp_path / "store").as_uri())
    Backup.completed(found, records("orders", 0, range(5)))
    return found


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and stderr."""
    code = run(list(words))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("command", ALONE, ids=" ".join)
def test_root_and_pair_are_enough(
    command: tuple[str, ...], store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """No configuration at all."""
    assert ran(capsys, *command, "--root", store.url, "--pair", PAIR)[0] == 0


@pytest.mark.parametrize("command", [*ALONE, ("list",)], ids=" ".join)
def test_a_file_without_kafka_is_enough(
    command: tuple[str, ...], store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that says where the backup is."""
    path = tmp_path / "store.yaml"
    path.write_text(f"pair: {PAIR}\nstore: {{root: '{store.url}'}}\n")
    code, said = ran(capsys, *command, "-c", str(path))
    assert code == 0, said


def test_the_options_win(store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over the file and over --set; what else the file says of the store counts."""
    path = tmp_path / "other.yaml"
    path.write_text("pair: other\nstore: {root: 'file:///does/not/exist'}\n")
    where = ("--root", store.url, "--pair", PAIR, "--set", "pair=third")
    assert run(["status", "--s3-only", "-c", str(path), *where, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["pair"], document["root"]) == (PAIR, store.url)


def test_a_pause_says_that_nobody_could_be_told(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Without brokers it takes a heartbeat longer, no more."""
    code, said = ran(capsys, "pause", "--root", store.url, "--pair", PAIR)
    assert code == 0
    assert "look by themselves within a heartbeat: kafka.bootstrap.servers is not configured" in said


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("status",), "--root and --pair require --s3-only"),
        (("check",), "--root and --pair require --s3-only"),
        (("check", "--connections"), "--root and --pair require --s3-only"),
        (("wait", "--for", "steady"), "--root and --pair require complete, generation=N and cleared=N"),
        (("wait", "--for", "complete", "--for", "role=a:Active"), "--root and --pair require complete"),
        (("verify", "--against-topic"), "--root and --pair require what the store alone answers"),
        (("verify", "--repair"), "--root and --pair require what the store alone answers"),
    ],
)
def test_who_asks_brokers_must_know_them(
    command: tuple[str, ...], why: str, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which brokers, only a configuration says; --root and --pair are no way around it."""
    code, said = ran(capsys, *command, "--root", store.url, "--pair", PAIR)
    assert code == (3 if command[0] == "check" else 2)
    assert why in said
    assert "name a configuration with -c/--config instead" in said


@pytest.mark.parametrize("command", [("status",), ("check",), ("wait", "--for", "steady"), ("verify", "--repair")])
def test_a_file_without_kafka_is_not_enough_for_them(
    command: tuple[str, ...], store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both missing things are named."""
    path = tmp_path / "store.yaml"
    path.write_text(f"pair: {PAIR}\nstore: {{root: '{store.url}'}}\n")
    code, said = ran(capsys, *command, "-c", str(path))
    assert code == (3 if command[0] == "check" else 2)
    assert "kafka.bootstrap.servers: required" in said
    assert "guards nothing" in said


def test_what_is_missing_is_asked_for(store: ObjectStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Half of the place is none; a wrong root is named by its option; other mistakes of a file are mistakes still."""
    code, said = ran(capsys, "history", "--root", store.url)
    assert code == 2
    assert "pair: required" in said
    assert "say where the backup is with --root and --pair" in said
    code, said = ran(capsys, "history", "--pair", PAIR, "--root", "ftp://host/x")
    assert code == 2
    assert (
        '--root: "ftp://host/x" is none of s3://bucket/prefix, gs://…, az://container/prefix and file:///absolute/path'
        in said
    )
    path = tmp_path / "store.yaml"
    path.write_text(f"pair: {PAIR}\nstore: {{root: '{store.url}'}}\nkafka: {{bootstrap.servers: ' '}}\ncodec: x\n")
    code, said = ran(capsys, "history", "-c", str(path))
    assert code == 2
    assert "kafka.bootstrap.servers" in said
    assert "codec: unknown key" in said
