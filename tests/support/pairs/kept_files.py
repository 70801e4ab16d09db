"""Files that a process makes and deletes, kept to be searched: each gets a second name while it is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

_EVERY_S = 0.005


class KeptFiles:
    """Links all files below `folder` into `kept`, which must be on the same file system. Used as a context.

    A file that is there for less than some milliseconds may be missed.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        folder.mkdir(exist_ok=True)
        kept.mkdir()
        self.kept = kept
        self.names: list[Path] = []
        self._folder = folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            for path in self._files():
                with suppress(OSError):
                    if path.stat().st_nlink == 1:
                        os.link(path, self.kept / str(len(self.names)))
                        self.names.append(path)

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self._folder):
            yield from (Path(folder) / name for name in names)
