"""Keys: where they come from, what is said when one is missing, and that none is ever shown."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden import encrypted

from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode
from tandem.backup_avro.record import chunk_cipher
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.errors import MissingKeyError
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.spark.session import from_spark

A, B = bytes(range(32)), bytes(range(50, 82))
NAME = "shop/a/generation=00000003/journal/00000000000000000001+0011223344556677.avro"
ARN = "arn:aws:kms:eu-central-1:111122223333:key/0d0d0d0d-aaaa-bbbb-cccc-0123456789ab"


@pytest.fixture
def key_file(tmp_path: Path) -> Callable[[bytes], str]:
    """Writes a key to a file of its own."""

    def write(key: bytes) -> str:
        path = tmp_path / f"{key[0]}.key"
        path.write_text(base64.b64encode(key).decode() + "\n")
        return str(path)

    return write


def test_a_new_object_opens_with_the_same_key_from_elsewhere(key_file: Callable[[bytes], str]) -> None:
    """File and environment, base64 and hex, name one key."""
    written = KeyRing(KeySettings(key_file=key_file(A))).new(NAME)
    assert written is not None
    reader = KeyRing(KeySettings(decrypt_key_envs=("OLD",)), environment={"OLD": A.hex()})
    assert reader.data_key(NAME, written.envelope) == written.data_key
    assert reader.current() is None
    assert reader.new(NAME) is None
    assert list(reader.places()) == [chunk_cipher.key_id(A)]


def test_every_object_has_a_data_key_of_its_own(key_file: Callable[[bytes], str]) -> None:
    """The number of a chunk is nonce enough only then."""
    ring = KeyRing(KeySettings(key_file=key_file(A)))
    seals = [ring.new(NAME) for _ in range(50)]
    assert len({seal.data_key for seal in seals if seal is not None}) == 50
    assert len({seal.envelope.data_key for seal in seals if seal is not None}) == 50


def test_after_a_rotation_new_objects_have_the_new_key_and_old_ones_open(key_file: Callable[[bytes], str]) -> None:
    """The old key moves to the list of those for reading."""
    old = KeyRing(KeySettings(key_file=key_file(A))).new(NAME)
    ring = KeyRing(KeySettings(key_file=key_file(B), decrypt_key_files=(key_file(A),)))
    new = ring.new(NAME)
    assert old is not None
    assert new is not None
    assert ring.current() == new.envelope.key_id == chunk_cipher.key_id(B)
    assert ring.data_key(NAME, old.envelope) == old.data_key
    assert ring.data_key(NAME, new.envelope) == new.data_key


def test_a_missing_key_is_no_damage_and_named_by_its_id(key_file: Callable[[bytes], str]) -> None:
    """With what to do, and from a Spark task likewise."""
    seal = KeyRing(KeySettings(key_file=key_file(A))).new(NAME)
    assert seal is not None
    for ring in (NO_KEYS, KeyRing(KeySettings(key_file=key_file(B)))):
        with pytest.raises(MissingKeyError, match=f"{chunk_cipher.key_id(A)}.*`encryption`") as caught:
            ring.data_key(NAME, seal.envelope)
        assert not isinstance(caught.value, DamagedError)
        assert caught.value.exit_code is ExitCode.USAGE
        told = from_spark("".join(traceback.format_exception(caught.value)))
        assert isinstance(told, MissingKeyError)
        assert told.code == caught.value.code == "TDM-N006"


def test_a_data_key_that_was_changed_is_damage(key_file: Callable[[bytes], str]) -> None:
    """The right key is there, and yet it does not open."""
    ring = KeyRing(KeySettings(key_file=key_file(A)))
    envelope = encrypted.envelopes()["local"]
    assert ring.data_key(encrypted.NAME, envelope) == encrypted.DATA_KEY
    object.__setattr__(envelope, "wrapping_key", b"of a KMS")
    with pytest.raises(DamagedError, match="TDM-N003"):
        ring.data_key(encrypted.NAME, envelope)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "!" * 44,
        "A" * 43 + "=",
        "0" * 64,
        base64.b64encode(bytes(31)).decode(),
        "\x00\xff" * 16,
        "x" * 9999,
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    """Neither length nor content; a key of one byte again and again was an example's."""
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"encryption.key_file.*holds no key.*openssl") as caught:
        KeyRing(KeySettings(key_file=str(path))).new(NAME)
    assert not text or text not in str(caught.value)


def test_files_and_variables_that_are_not_there_are_named(tmp_path: Path) -> None:
    """With the setting that names them."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"key_file": str(tmp_path / "none")}, "encryption.key_file: .*no such file"),
        ({"decrypt_key_files": (str(tmp_path),)}, "encryption.decrypt_key_files: .*can't be read"),
        ({"key_file": "\0"}, "encryption.key_file: .*not a path"),
        ({"key_env": "NONE"}, "encryption.key_env: NONE: no such variable"),
        ({"decrypt_key_envs": ("NONE",)}, "encryption.decrypt_key_envs: NONE"),
    ]
    for settings, message in cases:
        with pytest.raises(ConfigError, match=message):
            KeyRing(KeySettings(**settings), environment={}).check("shop")


@pytest.mark.parametrize("name", ["a password", "A1b2" * 8, "/" + "A1b2" * 21 + "A=="])
def test_a_secret_in_place_of_a_path_is_not_shown(name: str) -> None:
    """Also one that is no key, or begins with a slash as base64 may."""
    with pytest.raises(ConfigError, match=r"encryption\.key_file: \(not shown.*no such file") as caught:
        KeyRing(KeySettings(key_file=name)).check("shop")
    assert name not in str(caught.value)


def test_keys_are_not_read_before_they_are_needed() -> None:
    """So `tandem status` needs none."""
    ring = KeyRing(KeySettings(decrypt_key_files=("/nowhere",)))
    assert not ring.encrypts
    assert ring.new(NAME) is None
    assert ring.current() is None
    ring.require(())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key_file": "/k", "key_env": "K"}, "encryption.key_env: is set beside key_file"),
        ({"key_file": ""}, "encryption.key_file: is empty; name a key, or leave the setting out"),
        ({"key_env": "", "require": True}, "encryption.key_env: is empty"),
        ({"aws_kms_key_arn": ""}, "encryption.aws_kms_key_arn: is empty"),
        ({"decrypt_key_files": ("/k", "")}, "encryption.decrypt_key_files: is empty"),
        ({"decrypt_key_envs": ("",)}, "encryption.decrypt_key_envs: is empty"),
        ({"key_env": base64.b64encode(A).decode()}, "encryption.key_env: is not the name"),
        ({"decrypt_key_envs": ("a b",)}, "encryption.decrypt_key_envs: is not the name"),
        ({"key_env": "TANDEM_KEY"}, "TANDEM_KEY would be taken"),
        ({"aws_kms_key_arn": "alias/backup"}, "not an alias"),
        ({"decrypt_aws_kms_key_arns": (ARN + "/x",)}, "decrypt_aws_kms_key_arns"),
        ({"aws_kms_endpoint_url": "https://kms"}, "has no use"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    """The setting is named, and what may be a key is not shown."""
    with pytest.raises(ConfigError, match=message) as caught:
        KeySettings(**settings)
    assert base64.b64encode(A).decode() not in str(caught.value)


def test_nothing_shows_a_key(key_file: Callable[[bytes], str]) -> None:
    """Not what holds them, however it is printed."""
    ring = KeyRing(KeySettings(key_file=key_file(A)))
    seal = ring.new(NAME)
    assert seal is not None
    shown = repr((ring, ring._opened(), seal))
    for secret in (A, seal.data_key, chunk_cipher.wrapping_key(A)):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
        assert base64.b64encode(secret).decode() not in shown
    assert chunk_cipher.key_id(A) not in {A.hex()[:16], chunk_cipher.wrapping_key(A).hex()[:16]}


_PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END PRIVATE KEY-----"
# With two slashes in a row, which a path would lose.
_SLASHES = base64.b64encode(b"\xff" * 31 + b"\0")


@pytest.mark.parametrize(
    "key",
    [
        A.hex(),
        base64.b64encode(A).decode(),
        base64.urlsafe_b64encode(b"\xfe" * 31 + b"\0").decode(),
        _SLASHES.decode(),
        _PEM,
    ],
)
def test_a_key_is_no_path(key: str) -> None:
    """Paths are shown in errors, keys are not: whoever makes settings by hand is told, and nothing is repeated."""
    for make in (
        lambda: KeySettings(key_file=key),
        lambda: KeySettings(decrypt_key_files=("/run/key", key)),
        lambda: StoreAccess(signing_key_file=key),
    ):
        with pytest.raises(ConfigError, match=r"key_files?: holds a key itself; put the key into a file") as caught:
            make()
        assert key not in str(caught.value)


@pytest.mark.parametrize("path", ["/run/secrets/tandem/data.key", "key", "a" * 44, "/run/" + "k" * 39, "0" * 64])
def test_a_path_is_a_path(path: str) -> None:
    """Also one as long as a key."""
    assert KeySettings(key_file=path).key_file == path
