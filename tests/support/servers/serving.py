"""Small HTTP servers for tests, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

from tandem.controller.sandbox.ports import LOOPBACK

ANY_PORT = (LOOPBACK, 0)


class Quiet(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 and logs nothing. Stands before BaseHTTPRequestHandler, whose name linters look for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", *, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Serve in a thread until the `with` ends, which also closes the server. The value is its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    with server:
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
