"""A gate in front of an S3 server: passes bytes on, and can hold one request in the middle, or the answer to it.

Requests go through unchanged, so that their signatures stay right. What is held stays held until `cut`; whoever sent it
waits, and when it is killed there, the server has seen half of an object, or all of it and nobody knows.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self
from urllib.parse import unquote

from tandem.controller.sandbox.ports import LOOPBACK

_CHUNK = 64 * 1024
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
Side = Literal["request", "answer"]


class Gate:
    """Listens on loopback, by IPv6 if `host` is `::1`, and forwards to `target` (`host:port`); use it in a `with`."""

    def __init__(self, target: str, *, host: str = LOOPBACK) -> None:
        name, _, port = target.rpartition(":")
        self._target = (name, int(port))
        six = ":" in host
        self._listener = socket.create_server((host, 0), backlog=64, family=socket.AF_INET6 if six else socket.AF_INET)
        self._host = f"[{host}]" if six else host
        self._lock = threading.Lock()
        self._pattern: re.Pattern[str] | None = None
        self._side: Side = "request"
        self._caught = threading.Event()
        self._released = threading.Event()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self.caught_line = ""

    @property
    def endpoint_url(self) -> str:
        """What clients want as `endpoint_url`."""
        return f"http://{self._host}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="gate", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closed = True
        self._released.set()
        with self._lock:
            for end in (self._listener, *self._sockets):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def hold(self, pattern: str, *, side: Side) -> None:
        """Hold the next request whose first line (decoded) matches: in the middle of its body, or before its answer."""
        with self._lock:
            self._caught.clear()
            self._released.clear()
            self._side = side
            self._pattern = re.compile(pattern)

    @property
    def caught(self) -> bool:
        """Whether a request is being held."""
        return self._caught.is_set()

    def cut(self) -> None:
        """Close the connection that is held: neither the rest of the request nor the answer arrives."""
        self._released.set()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, timeout=5)
                server.settimeout(None)
            except OSError:
                continue
            with self._lock:
                self._sockets += [client, server]
            answer_held = threading.Event()
            for name, work in (("in", self._requests), ("out", self._answers)):
                threading.Thread(
                    target=work, args=(client, server, answer_held), name=f"gate-{name}", daemon=True
                ).start()

    def _requests(self, client: socket.socket, server: socket.socket, answer_held: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                side = self._catches(data)
                if side == "request":
                    self._send_half(data, client, server)
                    self._caught.set()
                    self._released.wait()
                    break
                if side == "answer":
                    answer_held.set()
                server.sendall(data)
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket, answer_held: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_CHUNK):
                if answer_held.is_set() and not data.startswith(b"HTTP/1.1 100"):
                    self._caught.set()
                    self._released.wait()
                    break
                client.sendall(data)
        _end(client)

    @staticmethod
    def _send_half(data: bytes, client: socket.socket, server: socket.socket) -> None:
        while _HEAD_END not in data:
            data += client.recv(_CHUNK)
        head, _, body = data.partition(_HEAD_END)
        length = _LENGTH.search(head)
        assert length is not None, head
        half = int(length[1]) // 2
        server.sendall(head + _HEAD_END)
        while len(body) < half:
            body += client.recv(_CHUNK)
        server.sendall(body[:half])

    def _catches(self, data: bytes) -> Side | None:
        line = unquote(data.split(b"\r\n", 1)[0].decode("latin-1"))
        with self._lock:
            if self._pattern is None or not self._pattern.search(line):
                return None
            self._pattern = None
            self.caught_line = line
            return self._side


def _end(to: socket.socket) -> None:
    with suppress(OSError):
        to.shutdown(socket.SHUT_RDWR)
