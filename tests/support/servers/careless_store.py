"""A store that speaks enough S3 for Tandem's probe but ignores `If-None-Match`, as some servers and old versions do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support.servers.serving import ANY_PORT, Quiet, serving


class _Handler(Quiet, BaseHTTPRequestHandler):
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        """Write whatever is there already, whatever the condition says."""
        self.objects[self._key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self) -> None:
        """Give an object, or list them."""
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            prefix = query.get("prefix", [""])[0]
            items = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
                f"<LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
                for key, data in sorted(self.objects.items())
                if key.startswith(prefix)
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
            self._answer(200, text.encode())
        elif self._key in self.objects:
            self._answer(200, self.objects[self._key])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_POST(self) -> None:
        """Delete everything that is asked for, and the rest too."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.objects.clear()
        self._answer(200, b"<DeleteResult></DeleteResult>")

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/").partition("/")[2]

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.answer(status, body, headers={"Last-Modified": formatdate(usegmt=True), "ETag": '"0"'})


def careless_store() -> AbstractContextManager[str]:
    """Run one, empty, until the `with` ends; the value is its URL."""
    return serving(ThreadingHTTPServer(ANY_PORT, type("Handler", (_Handler,), {"objects": {}})))
