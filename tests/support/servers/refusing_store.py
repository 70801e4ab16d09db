"""A proxy in front of an S3 server that can refuse: every request, or those that write, with a status and code of S3.

Requests are passed on as they came, `Host` and all, so that their signatures stay right.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.servers.serving import ANY_PORT, Quiet, serving

SLOW_DOWN = (503, "SlowDown")
STORAGE_FULL = (507, "InsufficientStorage")
_WRITES = frozenset({"PUT", "POST"})
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


class _Handler(Quiet, BaseHTTPRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """Pass it on, or refuse."""
        self._answer()

    def do_HEAD(self) -> None:
        """Pass it on, or refuse."""
        self._answer()

    def do_PUT(self) -> None:
        """Pass it on, or refuse."""
        self._answer()

    def do_POST(self) -> None:
        """Pass it on, or refuse."""
        self._answer()

    def do_DELETE(self) -> None:
        """Pass it on, or refuse."""
        self._answer()

    def handle_expect_100(self) -> bool:
        """Refuse before the body is sent."""
        refusal = self.server.store.refusal(self.command, self.path)
        if refusal is None:
            return super().handle_expect_100()
        self.close_connection = True
        self._refuse(*refusal)
        return False

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refusal = self.server.store.refusal(self.command, self.path)
        if refusal is not None:
            self._refuse(*refusal)
            return
        there = HTTPConnection(self.server.store.target, timeout=60)
        try:
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    there.putheader(name, value)
            there.endheaders(body)
            self._pass_back(there.getresponse())
        finally:
            there.close()

    def _pass_back(self, answer: HTTPResponse) -> None:
        data = answer.read()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        if self.command != "HEAD" and answer.status != 204:
            headers = [item for item in headers if item[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(data))))
        self._send(answer.status, headers, data)

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._send(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))], text)

    def _send(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: RefusingStore) -> None:
        self.store = store
        super().__init__(ANY_PORT, _Handler)

    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle is no news."""


class RefusingStore:
    """Forwards to `target` (`host:port`) what is sent to `endpoint_url`, once `refusing_store` serves it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.endpoint_url = ""
        self._lock = threading.Lock()
        self._answer: tuple[int, str] | None = None
        self._writes_only = False
        self._part = ""

    def refuse(self, answer: tuple[int, str] | None, *, writes_only: bool = False, part: str = "") -> None:
        """From now on answer so (status, code of S3) where a path has `part` in it; None passes everything on again."""
        with self._lock:
            self._answer, self._writes_only, self._part = answer, writes_only, part

    def refusal(self, method: str, path: str) -> tuple[int, str] | None:
        """Return how a request is refused, None if it is passed on."""
        with self._lock:
            return self._answer if (method in _WRITES or not self._writes_only) and self._part in path else None


@contextmanager
def refusing_store(target: str) -> Iterator[RefusingStore]:
    """Forward to `target` (`host:port`) until the `with` ends."""
    store = RefusingStore(target)
    with serving(_Server(store)) as store.endpoint_url:
        yield store
