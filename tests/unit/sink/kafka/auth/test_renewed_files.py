"""A client that read its certificates once is made anew when they were replaced on disk."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tandem.sink.kafka.auth import renewed_files
from tandem.sink.kafka.auth.renewed_files import CredentialFiles, RenewedClient


def mounted(folder: Path) -> dict[str, str]:
    """Certificate and key as Kubernetes mounts a secret: the names are links into a folder that is replaced whole."""
    turn(folder, "one")
    for name in ("user.crt", "user.key"):
        (folder / name).symlink_to(folder / "..data" / name)
    return {"ssl.certificate.location": str(folder / "user.crt"), "ssl.key.location": str(folder / "user.key")}


def turn(folder: Path, version: str) -> None:
    """Put another version of all files in the place of the one before, at once."""
    (folder / version).mkdir()
    for name in ("user.crt", "user.key"):
        (folder / version / name).write_text("x")
    (folder / "..new").symlink_to(folder / version)
    (folder / "..new").rename(folder / "..data")


def test_files_are_replaced(tmp_path: Path) -> None:
    """However that is done; not while one is missing, and never without files."""
    props = mounted(tmp_path)
    files = CredentialFiles(props)
    assert not files.replaced()
    turn(tmp_path, "two")
    assert files.replaced()
    files = CredentialFiles(props)
    (tmp_path / "two" / "user.key").unlink()
    assert not files.replaced()
    (tmp_path / "two" / "user.key").write_text("another")
    assert files.replaced()
    files = CredentialFiles(props | {"ssl.ca.location": "probe"})
    turn(tmp_path, "three")
    assert files.replaced(), "that librdkafka looks for the authorities itself is no missing file"
    assert not CredentialFiles({"bootstrap.servers": "b:1", "ssl.key.pem": "text"}).replaced()


def test_a_client_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the files were replaced, and not before they can be used. The old one is closed when it has had its time."""
    props = mounted(tmp_path)
    number = count(1)
    unusable = False
    closed: list[int] = []

    def make() -> int:
        if unusable:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "the key does not belong to the certificate"))
        return next(number)

    client = RenewedClient(props, make, closed.append)
    assert [client.get(), client.get()] == [1, 1]
    turn(tmp_path, "two")
    unusable = True
    assert [client.get(), client.get()] == [1, 1]
    unusable = False
    assert [client.get(), client.get()] == [2, 2]
    assert closed == []
    monkeypatch.setattr(renewed_files, "_RETIRED_S", 0.0)
    assert (client.get(), closed) == (2, [1])
    turn(tmp_path, "three")
    assert client.get() == 3
    client.close()
    assert sorted(closed) == [1, 2, 3]
