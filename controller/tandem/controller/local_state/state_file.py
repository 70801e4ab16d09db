"""A small JSON file that several processes of one user read and replace. A reader sees a whole file or none."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tandem.backup_avro.errors import PermanentError, TandemError
from tandem.controller.process.whole_file import write_whole

_LOCK_S: Final = 2.0
"""Longest wait for another process that replaces the file; a stopped one must not stop a command."""
_POLL_S: Final = 0.02
_UNUSABLE: Final = "name another folder in state.dir, or `none` to remember nothing"


class StateFileError(PermanentError):
    """The file can't be read or written. Callers report it as a warning: nothing depends on the file."""


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return `tandem` below $XDG_STATE_HOME, or below `~/.local/state` if that is not an absolute path.

    Source: XDG Base Directory Specification 0.8. Raises StateFileError if the user has no home.
    """
    named = environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(named) if named.startswith("/") else Path.home() / ".local" / "state") / "tandem"
    except RuntimeError:
        raise StateFileError("the user has no home", code="TDM-V017", remedy=_UNUSABLE) from None


class ContentError(StateFileError):
    """The file is this user's, and its bytes are no JSON object: a fault of the disk, or another program's."""


class StateFile:
    """One JSON object in a file of mode 0600, of at most `most` bytes. All methods raise StateFileError."""

    def __init__(self, path: Path, *, most: int) -> None:
        self._path = path
        self._most = most

    def read(self) -> dict[str, Any] | None:
        """Return the object; None if there is no file."""
        self._check_folder()
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise self._unreadable("is no file of this user")
                data = file.read(self._most + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(f"can't be read: {error.strerror}") from error
        if len(data) > self._most:
            raise self._damaged(f"more than {self._most:,} bytes")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise self._damaged("no JSON object")
        return content

    def update(self, change: Callable[[dict[str, Any] | None], dict[str, Any] | None]) -> bool:
        """Replace the object by what `change` makes of it, alone among all processes; None leaves it as it is.

        Return whether `change` was called: it is not if another process holds the file for longer than two seconds. A
        file without a JSON object is renamed to `….unreadable`, and begun anew.
        """
        self._make_folder()
        with self._locked() as locked:
            if locked:
                content = change(self._read_or_set_aside())
                if content is not None:
                    self._replace(content)
            return locked

    def _read_or_set_aside(self) -> dict[str, Any] | None:
        try:
            return self.read()
        except ContentError:
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_suffix(".unreadable"))
            return None

    def _unreadable(self, why: str) -> StateFileError:
        return StateFileError(f"{self._path} {why}", code="TDM-V018", remedy=_UNUSABLE)

    def _damaged(self, what: str) -> StateFileError:
        return ContentError(
            f"{self._path} holds {what}", code="TDM-V022", remedy="none is needed: it is set aside and begun anew"
        )

    def _unwritable(self, error: TandemError | OSError) -> StateFileError:
        why = error.strerror if isinstance(error, OSError) else str(error.args[0])
        return StateFileError(f"{self._path} can't be written: {why}", code="TDM-V019", remedy=_UNUSABLE)

    def _check_folder(self) -> None:
        """Refuse a folder in which another user could replace the file. A volume's folder may be of root."""
        folder = self._path.parent
        try:
            found = folder.stat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(f"can't be read: {error.strerror}") from error
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & stat.S_IWOTH:
            raise StateFileError(f"others may write in the folder {folder}", code="TDM-V021", remedy=_UNUSABLE)

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._check_folder()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        lock = self._path.with_suffix(".lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield self._lock(descriptor)
        finally:
            os.close(descriptor)  # this gives the lock back

    def _lock(self, descriptor: int) -> bool:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            except OSError as error:
                raise self._unwritable(error) from error
            else:
                return True

    def _replace(self, content: dict[str, Any]) -> None:
        """Write the file; the lock is held, so parts that lie about are of processes that were killed."""
        try:
            for part in self._path.parent.glob(f".{self._path.name}.*"):
                part.unlink(missing_ok=True)
            data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
            write_whole(self._path, data, place=str(self._path), mode=0o600, force=True)
        except (OSError, TandemError) as error:
            raise self._unwritable(error) from error
