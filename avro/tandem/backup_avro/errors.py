"""The one tree of errors. Adapters wrap vendor errors at their edge, so that no vendor type leaks further in."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, TypeVar

_NOTE: Final = "error code: "
_LONGEST: Final = 4096
"""Characters of a message that are kept: a message may quote the refused input, whatever its length."""


class ExitCode(IntEnum):
    """Exit codes of the command line; part of the public interface."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNHEALTHY = 3
    TIMED_OUT = 4
    REFUSED = 5


class TandemError(Exception):
    """Base of all errors that Tandem raises on purpose.

    The message names the event and its place (topic, partition, object); `remedy` names the next step for the user.
    `code` is the stable name of the event, `TDM-` with the area's letter and three digits. Each place in the sources
    that makes an error has a code of its own; docs/errors.md lists them. A traceback ends with the code as a note.
    """

    exit_code: ExitCode = ExitCode.ERROR

    def __init__(self, message: str, *, code: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy
        self.add_note(f"{_NOTE}{code}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes: the constructors of subclasses take other arguments than `args`."""
        return _unpickled, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.remedy})" if self.remedy else message


class TransientError(TandemError):
    """The same call may succeed later: a time-out, a 503, a broker that restarts."""


class PermanentError(TandemError):
    """The same call fails again until the configuration, the store or the cluster is changed."""


class ConfigError(PermanentError):
    """The configuration or the command line is wrong; the message names the key."""

    exit_code = ExitCode.USAGE


class RefusedError(PermanentError):
    """The operation is refused because carrying it out could lose data."""

    exit_code = ExitCode.REFUSED


class OversizeError(RefusedError):
    """A document would be larger than the limit of all readers; it was not written."""


class DamagedError(PermanentError):
    """Stored or received bytes fail a check: checksum, hash link, format."""

    exit_code = ExitCode.UNHEALTHY

    def text_about(self, key: str) -> str:
        """Return the error's text as the end of a sentence that begins with the object's name `key`."""
        return str(self.args[0]).removeprefix(key).lstrip(": ")


class TooLargeError(DamagedError):
    """The decompressed size of compressed bytes exceeds the limit that the reader has set."""


class NewerFormatError(DamagedError):
    """Stored bytes were written by a newer release: they are not damaged, but this release can't interpret them."""


class TimedOutError(TandemError):
    """A wait that the user asked for ran out."""

    exit_code = ExitCode.TIMED_OUT


_Kept = TypeVar("_Kept", bound=TandemError)


def code_in_note(line: str) -> str | None:
    """Return the code that a traceback's line gives as a note of TandemError, or None if the line is no such note."""
    line = line.strip()
    return line.removeprefix(_NOTE) if line.startswith(_NOTE) else None


def _unpickled(kind: type[TandemError], args: tuple[object, ...], state: dict[str, object]) -> TandemError:
    found = kind.__new__(kind, *args)
    found.__dict__.update(state)
    return found


def bare(error: _Kept) -> _Kept:
    """Return an error of the same type, words, code, remedy and attributes, without traceback, cause and context.

    For callers that keep errors: a traceback references the local variables of its frames, and so the very bytes that
    were refused. A message is cut after 4,096 characters.
    """
    kind = type(error)
    args = (item[:_LONGEST] if isinstance(item, str) else item for item in error.args)
    # The constructor is not called: some take more arguments than a message, and these are in the attributes.
    found = kind.__new__(kind, *args)
    found.__dict__.update(error.__dict__)
    return found
