"""AWS's SDK with one way for credentials to fail.

Whoever gives them is somebody else: an agent on a node, the instance's metadata, a command of a profile. What they
answer is read by the SDK without a check, so that a name that is missing, a time that is none or credentials that have
ended would be a KeyError, a ValueError or a RuntimeError, in the middle of a request.
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
#: Seconds that a command may take which gives credentials.
COMMAND_S: Final = 60.0
#: What it ends in to read an answer of a service that is none: the SDK checks little of what it hands on.
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
    """Say where an answer could not be read, without its words: it may be a mistake of ours."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


class AwsSession(Session):
    """A session whose credentials can be had, or end in an error of the SDK's own, mostly CredentialRetrievalError."""

    def get_credentials(self) -> Any:  # noqa: ANN401 (the SDK has several kinds of them)
        """Return what the SDK finds, None if there is nothing."""
        # One that was asked before refuses a second time: it takes a role that it has seen for a circle.
        checked = _Checked(lambda: self._resolver().load_credentials())
        return None if checked.current() is None else checked

    def _resolver(self) -> Any:  # noqa: ANN401 (as the SDK's)
        resolver = self._create_credential_resolver()  # type: ignore[attr-defined]
        for provider in resolver.providers:
            _with_patience(provider)
            if isinstance(provider, AssumeRoleProvider):
                # A profile that a role is taken with has commands too; the SDK makes their provider when it is asked.
                builder = vars(provider)["_profile_provider_builder"]
                make = builder._create_process_provider  # noqa: SLF001 (there is no other way in)
                builder._create_process_provider = lambda name, make=make: _with_patience(make(name))  # noqa: SLF001
        return resolver


def _with_patience(provider: Any) -> Any:  # noqa: ANN401 (the SDK has several kinds of them)
    """Have a provider of a command's credentials not wait for ever, as the SDK does."""
    if isinstance(provider, ProcessProvider):
        vars(provider)["_popen"] = _Command
    return provider


class _Command(subprocess.Popen[bytes]):
    """The command of a profile that gives credentials. It does not take for ever, nor do all who wait for it."""

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002, ANN401 (as its base)
        """Return its output and errors. UselessCredentialsError if it takes too long; it is killed then."""
        try:
            return super().communicate(input, timeout or COMMAND_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with self:  # closes what it was read from, and waits
                pass
            raise _useless(f"the command of credential_process took longer than {COMMAND_S:.0f} s") from None


class _Checked:
    """Credentials of the SDK, checked each time that a request is signed with them. Thread-safe.

    What is of no use is let go of and looked for anew: the SDK itself keeps it until it ends, however late that is.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._found: Any = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (as the SDK's)
        if name.startswith("__") or name in {"_load", "_lock", "_found"}:  # of one that copy or pickle is making
            raise AttributeError(name)
        return getattr(self.current(), name)

    def current(self) -> Any:  # noqa: ANN401 (as the SDK's)
        """Return the SDK's object, looked for if there is none."""
        with self._lock:
            if self._found is None:
                self._found = _asked(self._load)
            return self._found

    def get_frozen_credentials(self) -> Any:  # noqa: ANN401 (as the SDK's)
        """Return what signs a request, renewed if it has to be."""
        return self._of(lambda found: _checked(found.get_frozen_credentials()))

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return what asks for one of them when it is called."""
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
    """What was given as credentials can't be any."""

    fmt = "from whoever gives credentials: {error_msg}"


def _useless(why: str) -> UselessCredentialsError:
    return UselessCredentialsError(provider="", error_msg=why)


def _checked(frozen: Any) -> Any:  # noqa: ANN401 (as the SDK's)
    """Return it if requests can be signed with it: http.client would quote what can't stand in a header."""
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
    except Exception as error:  # noqa: BLE001 (whatever a wrong answer is to the SDK)
        # Without its words: they may be the answer's.
        raise _useless(f"what was answered is of no use ({type(error).__name__})") from None


def _fits_a_header(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable()
