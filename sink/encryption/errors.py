"""What goes wrong with keys. None of it is damage: the objects are as they were written."""

from __future__ import annotations

from backup_avro.errors import ConfigError, PermanentError, TransientError


class MissingKeyError(ConfigError):
    """The configuration names no key, or not the one that an object was encrypted with."""


class KeyDeniedError(PermanentError):
    """The KMS refuses the credentials, the action or the key."""


class KeyUnavailableError(TransientError):
    """The KMS did not answer, or was too busy."""
