"""A TCP proxy before an S3 server on loopback that counts requests by what S3 bills them as."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from contextlib import suppress

_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_LISTING = re.compile(rb"[?&](list-type|uploads|versions)\b")
_CHUNK = 1 << 16


class CountingProxy:
    """Passes bytes on unchanged. A client has one request at a time on a connection, so each begins with a read."""

    def __init__(self, target: tuple[str, int]) -> None:
        """Listen on a free port."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint_url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def taken(self) -> Counter[str]:
        """Return the counts since the last call, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for one, other, counted in ((client, server, True), (server, client, False)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(one, other, counted), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, counted: bool) -> None:
        try:
            while data := one.recv(_CHUNK):
                if counted and (found := _REQUEST.match(data)):
                    self._count(found[1], found[2])
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _count(self, method: bytes, path: bytes) -> None:
        listing = method == b"GET" and _LISTING.search(path)
        with self._lock:
            self._counts["list" if listing else method.decode().lower()] += 1
