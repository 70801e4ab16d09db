"""A server that answers every request with an error in which it repeats all that it was sent.

Proxies that help with debugging do so, and so may whoever listens at an address that somebody has mistyped.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

from support.servers.serving import ANY_PORT, Quiet, serving


class _Handler(Quiet, BaseHTTPRequestHandler):
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


def echoing() -> AbstractContextManager[str]:
    """Serve until the `with` ends; the value is the URL."""
    return serving(ThreadingHTTPServer(ANY_PORT, _Handler))
