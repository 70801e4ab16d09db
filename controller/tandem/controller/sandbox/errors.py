"""What can go wrong with local servers; each message names the place, each remedy what to do next."""

from __future__ import annotations

from tandem.backup_avro.errors import PermanentError, TransientError


class JavaUnfitError(PermanentError):
    """No Java, or one too old for the broker."""


class DownloadFailedError(TransientError):
    """The broker's jars could not be fetched: no network, a proxy, a registry that is down."""


class PartMissingError(PermanentError):
    """A program or folder that the sandbox needs is not there."""


class PortTakenError(TransientError):
    """Somebody else listens on a port that the server needs."""


class ServerFailedError(PermanentError):
    """A server ended although it should run; the message quotes the end of its log."""


class ServerSilentError(TransientError):
    """A server runs but did not answer in time."""


class StateDamagedError(PermanentError):
    """`sandbox.json` is there but is not what `up` writes."""


class StartCancelledError(TransientError):
    """Whoever started the server no longer waits for it."""
