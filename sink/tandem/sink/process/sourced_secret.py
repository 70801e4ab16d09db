"""Secrets with the place where they were read. Pickled, as in a Spark task, a secret is its place and not its value.

The process that unpickles it reads the value at that place on its own machine, and masks it in its log. A secret that
is typed into the configuration has no such place: child processes get it by their environment (`handed_over`), and
other processes get the value itself, over channels that authenticate and encrypt (docs/decisions/0088). In that case a
warning names the key.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import structlog

from tandem.backup_avro.errors import ConfigError
from tandem.sink.process import safe_text

LARGEST_FILE: Final = 1024 * 1024
"""Most bytes of a file with a secret."""
_VARIABLE: Final = "_TANDEM_TYPED_{}"
"""Begins with an underscore: it is no key of the configuration."""
_LARGEST_VARIABLE: Final = 64 * 1024
"""Bytes. Linux starts no process with a variable of 128 KiB."""
_ONCE: Final = ("/dev/", "/proc/")
"""Folders whose files belong to one process."""
_LOG = structlog.get_logger()


class SecretSource(StrEnum):
    """The kind of place where a secret was read."""

    VARIABLE = "environment variable"
    FILE = "file"
    TYPED = "configuration"


class _Process:
    """The typed secrets of this process."""

    typed: ClassVar[dict[str, None]] = {}
    handed: ClassVar[dict[str, str]] = {}
    warned: ClassVar[set[str]] = set()


class SourcedSecret(str):
    """A secret of the configuration's `key`, read at `place`: the name of a variable, or the path of a file."""

    __slots__ = ("key", "place", "source")
    key: str
    source: SecretSource
    place: str

    def __new__(cls, value: str, *, key: str, source: SecretSource, place: str) -> Self:
        """Return the secret, and remember the value if it is typed."""
        made = super().__new__(cls, value)
        made.key, made.source, made.place = key, source, place
        if source is SecretSource.TYPED and value:
            _Process.typed[str(value)] = None
        return made

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the place; the value only if there is none."""
        source, place = self.reference() or (SecretSource.TYPED, "")
        if source is not SecretSource.TYPED:
            return read_again, (self.key, source, place)
        if self and self.key not in _Process.warned:
            _Process.warned.add(self.key)
            _LOG.warning("a secret travels with Spark's tasks", key=self.key, remedy=_remedy(self.key))
        return _arrived, (self.key, str(self))

    def reference(self) -> tuple[SecretSource, str] | None:
        """Return the place where another process can read the secret, None if there is none."""
        if self.source is not SecretSource.TYPED:
            return self.source, self.place
        variable = _Process.handed.get(str(self))
        return None if variable is None else (SecretSource.VARIABLE, variable)


def of_variable(value: str, *, key: str, name: str) -> SourcedSecret:
    """Return a secret that the environment variable `name` holds."""
    return SourcedSecret(value, key=key, source=SecretSource.VARIABLE, place=name)


def of_file(value: str, *, key: str, path: Path) -> SourcedSecret:
    """Return a secret that a file holds. A pipe, or a file that only this process can open, counts as typed."""
    place = str(path.absolute())
    if not path.is_file() or place.startswith(_ONCE):
        return typed(value, key=key)
    return SourcedSecret(value, key=key, source=SecretSource.FILE, place=place)


def typed(value: str, *, key: str) -> SourcedSecret:
    """Return a secret that stands in the configuration itself."""
    return SourcedSecret(value, key=key, source=SecretSource.TYPED, place="")


@contextmanager
def handed_over(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Put typed secrets into `environ` while a child process is started; later tasks refer to these variables."""
    fitting = [value for value in _Process.typed if "\0" not in value and len(value.encode()) < _LARGEST_VARIABLE]
    for value in fitting:
        _Process.handed.setdefault(value, _VARIABLE.format(len(_Process.handed)))
    environ.update({_Process.handed[value]: value for value in fitting})
    try:
        yield
    finally:
        for value in fitting:
            environ.pop(_Process.handed[value], None)


def reset() -> None:
    """Clear the state of this process: for tests."""
    for known in (_Process.typed, _Process.handed, _Process.warned):
        known.clear()


def read_again(key: str, source: SecretSource, place: str) -> SourcedSecret:
    """Return the secret at a place on this host. Raises ConfigError with key, place and host if there is none."""
    if source is SecretSource.VARIABLE:
        value, problem = os.environ.get(place, ""), "is not set" if not os.environ.get(place) else None
    else:
        value, problem = secret_text(Path(place))
    if problem is not None:
        raise ConfigError(
            f"{key}: {source} {place} on {socket.gethostname()}: {problem}",
            code="TDM-B001",
            remedy="Spark's executors read secrets where the configuration names them: set the variable or mount the "
            "file there as well; docs/security.md",
        )
    safe_text.register_secrets([value])
    return SourcedSecret(value, key=key, source=source, place=place)


def _arrived(key: str, value: str) -> SourcedSecret:
    safe_text.register_secrets([value])
    return typed(value, key=key)


def _remedy(key: str) -> str:
    file = f"{key}_file" if key.startswith("store.") else f"{key}.file"
    return f"{file} names a file that executors have too, or an environment variable holds it there: docs/security.md"


def secret_text(path: Path) -> tuple[str, str | None]:
    """Return the file's text without its trailing newline, and the problem with it (None: none)."""
    try:
        with path.open("rb") as file:
            body = file.read(LARGEST_FILE + 1)
        text = body.decode()
    except FileNotFoundError:
        return "", "no such secret file; mount it, or correct the path"
    except OSError as error:
        return "", f"secret file can't be read ({error.strerror}); correct its path or its permissions"
    except UnicodeDecodeError:
        return "", "secret file is not UTF-8 text"
    except ValueError:
        return "", "not a path"
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        return "", "secret file is empty"
    return (text, None) if len(body) <= LARGEST_FILE else ("", "secret file is larger than 1MiB")
