"""A broker that says that it knows only older versions of some requests, as clusters that are not Apache Kafka do.

A gate in front of it changes its answers to ApiVersions on the way; clients choose among the versions that are left.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from support.clusters.brokers import Listeners
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
Change: TypeAlias = Callable[[bytes, int], bytes]
"""Makes of an answer, from its correlation id on, and the version of its request what clients get."""
_API_VERSIONS = 18
_FLEXIBLE = 3
_UNSUPPORTED_VERSION = 35


class CappedKafka(KafkaServer):
    """A broker behind the gate; `caps` is the highest version by the number of a request."""

    def __init__(self, folder: Path, caps: Mapping[int, int], changes: Mapping[int, Change] | None = None) -> None:
        """See KafkaServer. `changes` are made to answers, by the number of the request."""
        self._gate = _Gate(caps, changes or {})
        listeners = Listeners.through({"capped": self._gate.address})
        super().__init__(folder, ports=listeners.ports, overrides=listeners.overrides)
        self._gate.open(listeners.behind["capped"])

    @property
    def bootstrap(self) -> str:
        return self._gate.address

    def stop(self) -> None:
        super().stop()
        self._gate.close()


class _Gate:
    def __init__(self, caps: Mapping[int, int], changes: Mapping[int, Change]) -> None:
        self._caps = caps
        self._changes = {_API_VERSIONS: self._capped, **changes}
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"

    def open(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        threading.Thread(target=self._accept, args=((host, int(port)),), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, target: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            asked: dict[int, tuple[int, int]] = {}
            for work, one, other in ((self._requests, client, server), (self._answers, server, client)):
                threading.Thread(target=work, args=(one, other, asked), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        for frame in _frames(client):
            key, version, correlation = struct.unpack_from(">hhi", frame)
            if key in self._changes:
                asked[correlation] = (key, version)
            _pass(server, frame)
        _end(server)

    def _answers(self, server: socket.socket, client: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        for frame in _frames(server):
            key, version = asked.pop(struct.unpack_from(">i", frame)[0], (-1, -1))
            _pass(client, frame if key < 0 else self._changes[key](frame, version))
        _end(client)

    def _capped(self, answer: bytes, version: int) -> bytes:
        """Return the answer with lower versions: an error code, then (key, least, highest) for each request."""
        frame = bytearray(answer)
        if struct.unpack_from(">h", frame, 4)[0] == _UNSUPPORTED_VERSION:
            version = 0
        if version < _FLEXIBLE:
            (count,), at, size = struct.unpack_from(">i", frame, 6), 10, 6
        else:
            count, at, size = frame[6] - 1, 7, 7  # with room for tags, of which there are none
            assert count < 127, "the count takes more than one byte"
        for place in range(at, at + count * size, size):
            key, least, highest = struct.unpack_from(">hhh", frame, place)
            struct.pack_into(">h", frame, place + 4, max(least, min(highest, self._caps.get(key, highest))))
        return bytes(frame)


def _frames(end: socket.socket) -> Iterator[bytes]:
    with suppress(OSError), end.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", head)[0])


def _pass(end: socket.socket, frame: bytes) -> None:
    with suppress(OSError):
        end.sendall(struct.pack(">i", len(frame)) + frame)


def _end(to: socket.socket) -> None:
    with suppress(OSError):
        to.shutdown(socket.SHUT_RDWR)
