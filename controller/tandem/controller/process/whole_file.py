"""Atomic writing of files: a file is complete or does not exist, even if the disk fills up or the process is killed."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import Final

from tandem.backup_avro.errors import ConfigError, PermanentError
from tandem.sink.process.resource_limits import resource_shortage

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def write_whole(file: Path, data: bytes, *, place: str, mode: int = 0o666, force: bool = False) -> None:
    """Write `data` to a temporary file, sync it, then give it the name `file`; the umask applies to `mode`.

    `place` names the file in messages. Raises FileExistsError if it exists and `force` is not set, ConfigError if the
    file can't be written, PermanentError if the disk is full.
    """
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if force:
            part.replace(file)
        else:
            _link(part, file)
    except FileExistsError:
        raise
    except OSError as error:
        lacking = resource_shortage(error)
        if lacking is not None:
            why = f"{place}: {os.strerror(error.errno or 0)}; nothing was written"
            raise PermanentError(why, code="TDM-C038", remedy=lacking.remedy) from error
        raise ConfigError(
            f"{place}: {error.strerror}", code="TDM-C039", remedy="name a file that can be written"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _link(part: Path, file: Path) -> None:
    """Give the file its name. Raises FileExistsError if another process has created a file of that name meanwhile."""
    try:
        os.link(part, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if file.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file)) from None
        part.rename(file)
