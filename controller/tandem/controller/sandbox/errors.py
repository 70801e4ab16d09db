"""Errors of the local servers; each message names the place, each remedy the next step."""

from __future__ import annotations

from tandem.backup_avro.errors import PermanentError, TransientError


class JavaUnfitError(PermanentError):
    """Java is not installed, or is too old for the broker."""


class DownloadFailedError(TransientError):
    """The broker's jars could not be fetched: no network, a proxy, a registry that is down."""


class PartMissingError(PermanentError):
    """A program or folder that the sandbox needs does not exist or can't be used."""


class PortTakenError(TransientError):
    """Another process listens on a port that the server needs."""


class ServerFailedError(PermanentError):
    """A server process ended unexpectedly; the message quotes the end of its log."""


class ServerSilentError(TransientError):
    """A server process runs but did not answer in time."""


class StateDamagedError(PermanentError):
    """`sandbox.json` exists but does not have the content that `up` writes."""


class StartCancelledError(TransientError):
    """The start of the server was cancelled while it was waiting for an answer."""
