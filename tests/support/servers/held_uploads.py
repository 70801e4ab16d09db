"""Processes held in the middle of an upload, on any store: by a gate before its server, or in the process itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from support.emulators.places import StorePlace
from support.servers.gate import Gate

# A folder has no server before which a gate could stand: the process itself stops, with half of the file written.
_HALF_WRITTEN = """
import os, pathlib, time
_write = os.write
def _held(descriptor, data):
    hold = pathlib.Path("held")
    if hold.exists() and hold.read_text() in (path := os.readlink(f"/proc/self/fd/{descriptor}")) and ".avro~" in path:
        _write(descriptor, data[: len(data) // 2])
        pathlib.Path("caught").write_text(path)
        time.sleep(3600)
    return _write(descriptor, data)
os.write = _held
"""


class HeldUploads(Protocol):
    """Holds the next data object below a prefix half sent; `start` are the arguments of `Pair.start` for that."""

    start: dict[str, Any]

    def hold(self, prefix: str) -> None:
        """Hold the next upload of an object below `prefix`."""

    def caught(self) -> str:
        """Return the name of the object that is being held, empty as long as there is none."""

    def cut(self) -> None:
        """Let the rest never arrive."""


class _HeldFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start = {"prelude": _HALF_WRITTEN}

    def hold(self, prefix: str) -> None:
        (self._folder / "held").write_text(prefix)

    def caught(self) -> str:
        caught = self._folder / "caught"
        return Path(caught.read_text()).name.partition("~")[0] if caught.exists() else ""

    def cut(self) -> None:
        (self._folder / "held").unlink()


class _HeldRequests:
    def __init__(self, gate: Gate, place: StorePlace) -> None:
        self._gate = gate
        through = urlsplit(place.settings["endpoint_url"])._replace(netloc=urlsplit(gate.endpoint_url).netloc)
        self.start = {"store": {"endpoint_url": through.geturl()}}

    def hold(self, prefix: str) -> None:
        self._gate.hold(rf"^PUT /.*/{re.escape(prefix)}topics/.*\.avro", side="request")

    def caught(self) -> str:
        line = self._gate.caught_line if self._gate.caught else ""
        return line.partition(" HTTP/")[0].partition("?")[0].rpartition("/")[2]

    def cut(self) -> None:
        self._gate.cut()


@contextmanager
def held_uploads(place: StorePlace, folder: Path) -> Iterator[HeldUploads]:
    """Yield what holds uploads to a place; `folder` is the working directory of the processes."""
    if not place.server:
        yield _HeldFiles(folder)
        return
    with Gate(place.server) as gate:
        yield _HeldRequests(gate, place)
