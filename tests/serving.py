"""Small HTTP servers for tests, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from controller.sandbox.ports import LOOPBACK

ANY_PORT = (LOOPBACK, 0)


class Quiet:
    """Makes a BaseHTTPRequestHandler speak HTTP/1.1 and log nothing; stands before it among the bases."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serve in a thread until the `with` ends, which also closes the server. The value is its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    with server:
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
