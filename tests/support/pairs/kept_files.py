"""Files that a process makes and deletes, kept to be searched: each gets a second name while it is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from support.repeated import Repeated


class KeptFiles(Repeated):
    """Links all files below `folder` into `kept`, which must be on the same file system. Used as a context.

    A file that is there for less than some milliseconds may be missed.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        super().__init__(every_s=0.005)
        folder.mkdir(exist_ok=True)
        kept.mkdir()
        self.kept = kept
        self.names: list[Path] = []
        self._folder = folder

    def once(self) -> None:
        """Link what is new."""
        for path in self._files():
            with suppress(OSError):
                if path.stat().st_nlink == 1:
                    os.link(path, self.kept / str(len(self.names)))
                    self.names.append(path)

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self._folder):
            yield from (Path(folder) / name for name in names)
