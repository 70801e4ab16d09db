"""A session of AWS's SDK in which credentials fail in one way only.

Credentials come from other programs: an agent on a node, the instance's metadata, a command of a profile. The SDK reads
their answers without a check, so that a missing name, an invalid time or expired credentials would be a KeyError, a
ValueError or a RuntimeError, in the middle of a request.
"""

from __future__ import annotations

import subprocess
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import botocore.exceptions as vendor
from botocore.credentials import AssumeRoleProvider, ProcessProvider
from botocore.parsers import ResponseParserError
from botocore.session import Session

_T = TypeVar("_T")
#: Most seconds that a command may take to give credentials.
COMMAND_S: Final = 60.0
#: Errors of reading an answer that is not one of the service: the SDK checks little of the answers that it returns.
MISREAD: Final = (
    ResponseParserError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
)


def misread_at(error: Exception) -> str:
    """Return where an answer could not be read, without quoting it: the place may show a defect of Tandem."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


class AwsSession(Session):
    """A session whose credentials fail only with the SDK's own errors, mostly CredentialRetrievalError."""

    def get_credentials(self) -> Any:  # noqa: ANN401 (the SDK has several kinds of them)
        """Return the credentials that the SDK finds, None if there are none."""
        # A new resolver for each load: a used one refuses, because it takes a role seen before for a circle.
        checked = _Checked(lambda: self._resolver().load_credentials())
        return None if checked.current() is None else checked

    def _resolver(self) -> Any:  # noqa: ANN401 (as the SDK's)
        resolver = self._create_credential_resolver()  # type: ignore[attr-defined]
        for provider in resolver.providers:
            _with_patience(provider)
            if isinstance(provider, AssumeRoleProvider):
                # The profile that assumes a role may have a command too; the SDK makes its provider on demand.
                builder = vars(provider)["_profile_provider_builder"]
                make = builder._create_process_provider  # noqa: SLF001 (there is no other way in)
                builder._create_process_provider = lambda name, make=make: _with_patience(make(name))  # noqa: SLF001
        return resolver


def _with_patience(provider: Any) -> Any:  # noqa: ANN401 (the SDK has several kinds of them)
    """Limit the time of a provider that runs a command; the SDK itself would wait for ever."""
    if isinstance(provider, ProcessProvider):
        vars(provider)["_popen"] = _Command
    return provider


class _Command(subprocess.Popen[bytes]):
    """The command of a profile that gives credentials, limited to `COMMAND_S` so that no request waits for ever."""

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002, ANN401 (as its base)
        """Return its output and errors. Kills it and raises UselessCredentialsError if it takes too long."""
        try:
            return super().communicate(input, timeout or COMMAND_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with self:  # closes the pipes, and waits for the process
                pass
            raise _useless(f"the command of credential_process took longer than {COMMAND_S:.0f} s") from None


class _Checked:
    """Credentials of the SDK, checked each time that a request is signed with them. Thread-safe.

    Useless credentials are dropped and loaded again: the SDK itself keeps them until they expire, however late.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._found: Any = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (as the SDK's)
        if name.startswith("__") or name in {"_load", "_lock", "_found"}:  # copy and pickle ask before __init__ ran
            raise AttributeError(name)
        return getattr(self.current(), name)

    def current(self) -> Any:  # noqa: ANN401 (as the SDK's)
        """Return the SDK's credentials object, loaded if there is none."""
        with self._lock:
            if self._found is None:
                self._found = _asked(self._load)
            return self._found

    def get_frozen_credentials(self) -> Any:  # noqa: ANN401 (as the SDK's)
        """Return the credentials that sign a request, renewed if they are due."""
        return self._of(lambda found: _checked(found.get_frozen_credentials()))

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that reads one property of the credentials when it is called."""
        return lambda: self._of(lambda found: found.get_deferred_property(name)())

    def _of(self, ask: Callable[[Any], _T]) -> _T:
        found = self.current()
        if found is None:
            raise vendor.NoCredentialsError
        try:
            return _asked(lambda: ask(found))
        except UselessCredentialsError:
            with self._lock:
                if self._found is found:
                    self._found = None
            raise


class UselessCredentialsError(vendor.CredentialRetrievalError):
    """The answer of a credential source can't be used as credentials."""

    fmt = "from whoever gives credentials: {error_msg}"


def _useless(why: str) -> UselessCredentialsError:
    return UselessCredentialsError(provider="", error_msg=why)


def _checked(frozen: Any) -> Any:  # noqa: ANN401 (as the SDK's)
    """Return credentials that can sign requests, else raise: http.client would quote invalid header values."""
    if not isinstance(frozen.secret_key, str) or frozen.secret_key == "":
        raise _useless("the secret key is no text")
    for name, value in (("key id", frozen.access_key), ("token", frozen.token)):
        if not _fits_a_header(value) and not (name == "token" and (value is None or value == "")):
            raise _useless(f"the {name} is no text, or has letters that no header can have, such as a line break")
    return frozen


def _asked(ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except (vendor.BotoCoreError, vendor.ClientError):
        raise
    except OSError as error:
        raise _useless(f"{error.strerror}: {error.filename}") from None
    except Exception as error:  # noqa: BLE001 (a wrong answer may raise any error in the SDK)
        # Without the error's text, which may quote the answer.
        raise _useless(f"what was answered is of no use ({type(error).__name__})") from None


def _fits_a_header(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable()
