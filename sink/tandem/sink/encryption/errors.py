"""What goes wrong with keys, which is no damage: the objects are as they were written. And what should have one."""

from __future__ import annotations

from tandem.backup_avro.errors import ConfigError, DamagedError, PermanentError, TransientError


class MissingKeyError(ConfigError):
    """The configuration names no key, or not the one that an object was encrypted with."""


class KeyDeniedError(PermanentError):
    """The KMS refuses the credentials, the action or the key."""


class KeyUnavailableError(TransientError):
    """The KMS did not answer, or was too busy."""


class PlainObjectError(DamagedError):
    """A data object is not encrypted, and only what is encrypted is to be read: whoever has no key may have made it."""
