"""Recognises errors caused by a shortage of disk space, open files or memory, and gives the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ROOM: Final = "make room there, or name another place"
_MEMORY: Final = "give it more memory, or lower memory.budget"
_REMEDIES: Final = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: f"{_ROOM}, or raise the quota",
    errno.EFBIG: f"{_ROOM}, or raise the limit of a file's size (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=); docs/resources.md says how many it takes",
    errno.ENFILE: "the whole machine has too many open files: close some, or raise fs.file-max",
    errno.ENOMEM: _MEMORY,
}
_OF_A_STREAM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceShortage:
    """The lacking resource with its place (`message`), and the remedy."""

    message: str
    remedy: str


def resource_shortage(error: BaseException) -> ResourceShortage | None:
    """Return the resource shortage that `error` or one of its causes reports; None if there is none."""
    for one in _causes(error):
        if isinstance(one, MemoryError):
            return ResourceShortage(message="this process: out of memory", remedy=_MEMORY)
        if isinstance(one, OSError) and one.errno in _REMEDIES:
            unnamed = "stdout" if one.errno in _OF_A_STREAM else "this process"
            where = one.filename if isinstance(one.filename, str) else unnamed
            return ResourceShortage(message=f"{where}: {os.strerror(one.errno)}", remedy=_REMEDIES[one.errno])
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__
