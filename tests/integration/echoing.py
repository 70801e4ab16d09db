"""A server that answers every request with an error in which it repeats all that it was sent.

Proxies that help with debugging do so, and so may whoever listens at an address that somebody has mistyped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

from controller.sandbox.ports import LOOPBACK


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = escape(f"{self.requestline} {dict(self.headers)} {body[:1000]!r}")
        answer = f"<Error><Code>AccessDenied</Code><Message>you sent {said}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def echoing() -> Iterator[int]:
    """Serve; the value is the port on loopback."""
    server = ThreadingHTTPServer((LOOPBACK, 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
