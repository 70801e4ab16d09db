"""An S3 server in memory that fails as it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.servers.serving import ANY_PORT, Quiet
from tandem.sink.store import (
    StoreAccess,
)

MIB = 1024 * 1024

#: Seconds between the look and the write of a server that does both apart: a busy machine starts threads slowly.
LOOK_S = 0.25

SECRET = "wJalrXUtnFEMI-K7MDENG"

Fault = Callable[["Request"], bool]
"""Does something to one request and tells whether that was the whole answer."""


class Request(Quiet, BaseHTTPRequestHandler):
    """One request to TinyS3; speaks as little S3 as the store needs."""

    disable_nagle_algorithm = True
    server: TinyS3

    def handle_one_request(self) -> None:
        """Go on quietly when the other side has hung up."""
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002 (as its base has it)
        """The server's own idea of the time."""
        return format_datetime(self.server.clock(), usegmt=True)

    def do_any(self) -> None:
        """Let the next fault have the request, else serve it."""
        parts = urlsplit(self.path)
        self.key = unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.key}")
            fault = self.server.faults.pop(0) if self.server.faults else None
        left = int(self.headers.get("Content-Length", 0))
        pieces = []
        while left:
            pieces.append(self.rfile.read(min(left, 2 * MIB)))
            left -= len(pieces[-1])
            time.sleep(self.server.pause_between_reads)
        self.body = b"".join(pieces)
        if fault is None or not fault(self):
            self.serve()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 (http.server looks for these names)

    def serve(self) -> None:
        """Answer as S3 would."""
        if self.command == "PUT":
            self.serve_put()
        elif self.command == "HEAD":
            self.answer(200, headers={"Last-Modified": self.date_time_string()})
        elif self.command == "GET" and self.key:
            self.serve_object()
        elif self.command == "GET":
            self.serve_listing()
        elif self.command == "POST":
            self.serve_post()
        else:
            self.answer(204)

    def serve_put(self) -> None:
        """PUT of an object."""
        objects = self.server.objects
        with self.server.lock:
            if self.headers.get("If-None-Match") == "*" and self.key in objects and not self.server.ignores_condition:
                self.fail(412, "PreconditionFailed")
                return
            if not self.server.slow_check:
                objects[self.key] = self.body
        if self.server.slow_check:
            time.sleep(LOOK_S)
            objects[self.key] = self.body
        self.answer(200, headers={"ETag": '"x"'})

    def serve_post(self) -> None:
        """Delete a batch."""
        objects = self.server.objects
        for key in [key for key in objects if f"<Key>{key}</Key>".encode() in self.body]:
            del objects[key]
        self.answer(200, b"<DeleteResult></DeleteResult>")

    def serve_object(self) -> None:
        """GET of an object, whole or from some byte on."""
        body = self.server.objects.get(self.key)
        if body is None:
            self.fail(404, "NoSuchKey")
        elif "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            if int(first) >= len(body):
                self.fail(416, "InvalidRange")
                return
            part = body[int(first) : int(last) + 1 if last else None]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"
            self.answer(206, part, headers={"Content-Range": span, "Last-Modified": self.date_time_string()})
        else:
            self.answer(200, body, headers={"Last-Modified": self.date_time_string()})

    def serve_listing(self) -> None:
        """One page with everything below the prefix."""
        keys = sorted(key for key in self.server.objects if key.startswith(self.query.get("prefix", "")))
        items = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys
        )
        self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode())

    def fail(self, status: int, code: str, message: str = "no") -> None:
        """Send an S3 error."""
        self.answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def hang_up(self) -> None:
        """End the connection in mid-answer."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


class TinyS3(ThreadingHTTPServer):
    """One bucket in memory, called `bucket`, with faults for the next requests, one each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(ANY_PORT, Request)
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.ignores_condition = False
        self.slow_check = False
        self.pause_between_reads = 0.0
        self.connections = 0
        self.url = ""

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()


def answers(status: int, code: str) -> Fault:
    """An S3 error instead of the service."""

    def fault(request: Request) -> bool:
        request.fail(status, code)
        return True

    return fault


def settings_for(url: str, **more: Any) -> StoreAccess:
    """Settings with little patience."""
    chosen = {"attempts": 3, "backoff_initial": 0.01, "backoff_max": 0.05, "read_timeout": 5.0} | more
    return StoreAccess(endpoint_url=url, access_key_id="AKIA", secret_access_key=SECRET, **chosen)


A_ROLE = (
    "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>role</AccessKeyId>"
    "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
