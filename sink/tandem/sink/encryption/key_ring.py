"""The loaded keys: one for new objects, any number for reading. They are loaded at their first use, and cached.

A command that only reads chains therefore needs no key.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import CHUNK_SIZE, DATA_KEY_SIZE, Envelope
from tandem.sink.encryption import key_text
from tandem.sink.encryption.encryption_settings import UNENCRYPTED, KeySettings
from tandem.sink.encryption.errors import MissingKeyError, PlainObjectError
from tandem.sink.process import safe_text

_LONGEST_FILE: Final = 4096
_MAKE_ONE: Final = "it must hold 32 random bytes in base64 or hex: `openssl rand -base64 32` makes them"


class RootKey(Protocol):
    """A key that wraps other keys. `id` is its fingerprint, `place` the place where the configuration names it."""

    @property
    def id(self) -> str:
        """16 hex digits."""
        ...

    @property
    def place(self) -> str:
        """The key's place, for messages."""
        ...

    def new_wrapping_key(self, pair: str, generation: int) -> tuple[bytes, bytes]:
        """Return a key that wraps data keys, and the bytes (may be b"") from which `wrapping_key` recovers it."""
        ...

    def wrapping_key(self, stored: bytes, pair: str, generation: int) -> bytes:
        """Return the key that wraps data keys. Raises DamagedError if `stored` was not made by this key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalKey:
    """A key of 32 bytes from a file or the environment."""

    id: str
    place: str
    _wrapping: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str, place: str) -> LocalKey:
        """Return the key in `text`. Raises ConfigError that names `place` and shows no part of the text."""
        safe_text.register_secrets([text.strip()])
        key = key_text.parse(text)
        if key is None:
            raise ConfigError(f"{place} holds no key", code="TDM-N002", remedy=_MAKE_ONE)
        return cls(id=chunk_cipher.key_id(key), place=place, _wrapping=chunk_cipher.wrapping_key(key))

    def new_wrapping_key(self, pair: str, generation: int) -> tuple[bytes, bytes]:
        """Return the wrapping key derived from this key; nothing has to be stored."""
        del pair, generation
        return self._wrapping, b""

    @property
    def record_key(self) -> bytes:
        """The key for hashes of records, derived from this key."""
        return hmac.digest(self._wrapping, b"hashes of records", "sha256")

    def wrapping_key(self, stored: bytes, pair: str, generation: int) -> bytes:
        """Return the wrapping key derived from this key."""
        del pair, generation
        if stored:
            raise DamagedError(f"its wrapping key belongs to a KMS, but key {self.id} is not", code="TDM-N003")
        return self._wrapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSeal:
    """The envelope and the data key with which a new object is encrypted."""

    envelope: Envelope
    data_key: bytes = field(repr=False)


class KeyRing:
    """The keys that the settings name. Thread-safe. Any method raises ConfigError if a key can't be read."""

    def __init__(self, settings: KeySettings, *, environment: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environment = environment
        self._lock = threading.Lock()
        self._roots: dict[str, RootKey] | None = None

    @property
    def encrypts(self) -> bool:
        """Whether new objects are encrypted."""
        return self._settings.encrypts

    def current(self) -> str | None:
        """Return the id of the key for new objects, None if they are not encrypted."""
        return next(iter(self._opened())) if self._settings.encrypts else None

    def record_keys(self) -> dict[str, bytes]:
        """Return the keys for hashes of records, by the first 8 digits of their ids. Keys of a KMS have none."""
        return {root.id[:8]: root.record_key for root in self._opened().values() if isinstance(root, LocalKey)}

    def places(self) -> dict[str, str]:
        """Return the place of each key, by its id."""
        return {root.id: root.place for root in self._opened().values()}

    def new(self, key: str) -> ObjectSeal | None:
        """Return the seal for the new object `key`, None if it is not encrypted. Raises errors of the KMS.

        Raises ConfigError if the object has to be encrypted and no key for new objects is named.
        """
        if not self._settings.encrypts:
            self._refuse_plain_writing()
            return None
        root = next(iter(self._opened().values()))
        wrapping, stored = root.new_wrapping_key(*layout.place_of(key))
        data_key = os.urandom(DATA_KEY_SIZE)
        envelope = Envelope(
            key_id=root.id, data_key=chunk_cipher.wrap(data_key, wrapping), wrapping_key=stored, chunk_size=CHUNK_SIZE
        )
        return ObjectSeal(envelope=envelope, data_key=data_key)

    def data_key(self, key: str, envelope: Envelope) -> bytes:
        """Return the data key of the object `key`. Raises MissingKeyError, DamagedError, and errors of the KMS."""
        roots = self._opened()
        root = roots.get(envelope.key_id)
        if root is None:
            raise _missing(f"{key} is encrypted with key {envelope.key_id}, which is not at hand", roots)
        wrapping = root.wrapping_key(envelope.wrapping_key, *layout.place_of(key))
        return chunk_cipher.unwrap(envelope.data_key, wrapping)

    def require(self, objects: Iterable[StoredObject]) -> None:
        """Check before work begins that each object may be read, and that its key is loaded.

        Raises MissingKeyError for the first object without a loaded key, PlainObjectError for one that has to be
        encrypted and is not.
        """
        known: set[str] = set()
        for item in objects:
            self.refuse_plain(item)
            if item.envelope is None or item.envelope.key_id in known:
                continue
            if item.envelope.key_id not in self._opened():
                raise _missing(
                    f"{item.key} is encrypted with key {item.envelope.key_id}, which is not at hand", self._opened()
                )
            known.add(item.envelope.key_id)

    def count_missing(self, objects: Iterable[StoredObject]) -> dict[str, int]:
        """Return how many of the objects need each key that is not loaded, by its id."""
        counted = Counter(item.envelope.key_id for item in objects if item.envelope is not None)
        return {key_id: count for key_id, count in sorted(counted.items()) if key_id not in self._opened()}

    def refuses(self, item: StoredObject) -> bool:
        """Return whether an object has to be encrypted, and the chain records no envelope for it."""
        return self._settings.require and item.envelope is None

    def refuse_plain(self, item: StoredObject) -> None:
        """Raise PlainObjectError if `refuses` is true for an object."""
        if self.refuses(item):
            raise PlainObjectError(
                f"{item.key} is not encrypted, and encryption.require is set",
                code="TDM-N004",
                remedy="if it is older than the key, read it with --set encryption.require=false; `tandem keys` shows "
                "which generations hold such objects. If there should be none, a writer without the key stored it: "
                "`tandem verify` names all, and another generation may have none",
            )

    def _refuse_plain_writing(self) -> None:
        if self._settings.require:
            raise ConfigError(
                "new objects would not be encrypted, and encryption.require is set",
                code="TDM-N005",
                remedy="name a key for new objects in the configuration's `encryption` section",
            )

    def check(self, pair: str) -> None:
        """Load all keys and request one from the KMS, so that a mistake shows before records are read from brokers."""
        roots = self._opened()
        if self._settings.encrypts:
            next(iter(roots.values())).new_wrapping_key(pair, 0)
        else:
            self._refuse_plain_writing()

    def _opened(self) -> dict[str, RootKey]:
        with self._lock:
            if self._roots is None:
                self._roots = _open(self._settings, os.environ if self._environment is None else self._environment)
            return self._roots


#: The key ring of stores that were opened without keys.
NO_KEYS: Final = KeyRing(UNENCRYPTED)


def _missing(what: str, roots: Mapping[str, RootKey]) -> MissingKeyError:
    have = f"at hand: {', '.join(roots)}" if roots else "no key is named there"
    return MissingKeyError(
        what, code="TDM-N006", remedy=f"name that key in the configuration's `encryption` section; {have}"
    )


def _open(settings: KeySettings, environment: Mapping[str, str]) -> dict[str, RootKey]:
    """Return the keys by their ids, the one for new objects first."""
    roots: dict[str, RootKey] = {}
    for root in _named(settings, environment):
        roots.setdefault(root.id, root)
    return roots


def _named(settings: KeySettings, environment: Mapping[str, str]) -> Iterator[RootKey]:
    if settings.key_file is not None:
        yield _of_file(settings.key_file, "encryption.key_file")
    if settings.key_env is not None:
        yield _of_variable(settings.key_env, environment, "encryption.key_env")
    if settings.aws_kms_key_arn is not None:
        yield _of_kms(settings.aws_kms_key_arn, settings)
    for name in settings.decrypt_key_files:
        yield _of_file(name, "encryption.decrypt_key_files")
    for name in settings.decrypt_key_envs:
        yield _of_variable(name, environment, "encryption.decrypt_key_envs")
    for arn in settings.decrypt_aws_kms_key_arns:
        yield _of_kms(arn, settings)


def _of_kms(arn: str, settings: KeySettings) -> RootKey:
    # botocore takes long to load, and most processes don't need it.
    from tandem.sink.encryption.kms import KmsKey  # noqa: PLC0415 (loaded only where it is used)

    return KmsKey(arn, endpoint_url=settings.aws_kms_endpoint_url)


def _of_file(name: str, field: str) -> LocalKey:
    secret = key_text.may_be_secret(name)
    place = f"{field}: {'(not shown: it may be the key)' if secret else name}"
    absolute = ", as an absolute path" if secret else ""
    try:
        with Path(name).open("rb") as file:
            body = file.read(_LONGEST_FILE)
    except FileNotFoundError:
        raise ConfigError(
            f"{place}: no such file", code="TDM-N007", remedy=f"mount it, or correct the path{absolute}"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(
            f"{place}: can't be read ({why})", code="TDM-N008", remedy=f"correct its path{absolute}, or its permissions"
        ) from None
    return LocalKey.of(body.decode(errors="replace"), f"{field}: {name}")


def _of_variable(name: str, environment: Mapping[str, str], field: str) -> LocalKey:
    place = f"{field}: {name}"
    text = environment.get(name)
    if text is None:
        raise ConfigError(
            f"{place}: no such variable in the environment", code="TDM-N009", remedy="set it, or correct the name"
        )
    return LocalKey.of(text, place)


@runtime_checkable
class StoreWithKeys(Protocol):
    """A store that was opened with keys."""

    keys: KeyRing


def keys_of(store: object) -> KeyRing:
    """Return the keys that a store was opened with."""
    return store.keys if isinstance(store, StoreWithKeys) else NO_KEYS
