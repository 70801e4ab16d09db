"""Hashes of records as stored in chains: plain, or an HMAC if objects are encrypted."""

from __future__ import annotations

import hmac
import os
from functools import cached_property
from typing import Final

from tandem.backup_avro.chain.entries import RecordHash
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing

#: Random, for this process alone, if the keys are in a KMS, which makes no hashes: with a key that no other party has,
#: none can verify a guess of a record by its hash.
_OWN_ID: Final = os.urandom(4).hex()
_OWN_KEY: Final = os.urandom(32)


class RecordKeys:
    """Makes and compares hashes of records with the keys of a store. Thread-safe; raises as `KeyRing`."""

    def __init__(self, keys: KeyRing = NO_KEYS) -> None:
        self._ring = keys

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        return {**self._ring.record_keys(), _OWN_ID: _OWN_KEY}

    @cached_property
    def _current(self) -> str:
        """The id of the key for new hashes, empty for plain ones."""
        current = self._ring.current()
        if current is None:
            return ""
        return current[:8] if current[:8] in self._keys else _OWN_ID

    def of(self, record: RecordHash | None) -> RecordHash | None:
        """Return the hash to store for a record, given its plain hash."""
        if record is None or not self._current:
            return record
        return self._keyed(record, self._current)

    def can_compare(self, known: RecordHash) -> bool:
        """Return whether the key of a stored hash is loaded, or the hash is plain."""
        return not known.key or known.key in self._keys

    def same(self, record: RecordHash, known: RecordHash) -> bool | None:
        """Return whether the plain hash `record` is of the same record as `known`; None if the key is not loaded."""
        if not self.can_compare(known):
            return None
        return (self._keyed(record, known.key) if known.key else record) == known

    def _keyed(self, record: RecordHash, key: str) -> RecordHash:
        text = f"{record.offset} {record.sha256}".encode()
        return RecordHash(record.offset, hmac.digest(self._keys[key], text, "sha256").hex()[: len(record.sha256)], key)


PLAIN: Final = RecordKeys()
"""For stores without keys."""
