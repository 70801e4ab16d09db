"""Errors of keys, by which no object is damaged, and `PlainObjectError` for an object that should be encrypted."""

from __future__ import annotations

from tandem.backup_avro.errors import ConfigError, DamagedError, PermanentError, TransientError


class MissingKeyError(ConfigError):
    """The configuration names no key, or not the one that an object was encrypted with."""


class KeyDeniedError(PermanentError):
    """The KMS refuses the credentials, the action or the key."""


class KeyUnavailableError(TransientError):
    """The KMS did not answer, or was too busy."""


class PlainObjectError(DamagedError):
    """A data object is not encrypted although `require` is set: its author may not have had the key."""
