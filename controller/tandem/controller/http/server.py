"""An HTTP server that no client can block or exhaust: read-only, bounded in bytes, seconds and connections.

It answers an orchestrator's probes, which a slow client must not delay: a request is read within `READ_S` seconds in
all and `REQUEST_BYTES`, and an answer is sent within `WRITE_S` seconds. When all connections are open, the one that has
been sending its request for longest is closed, else the one that has been taking its answer for longest. At most
`CONNECTIONS` expensive answers are made at a time, and `SPARE` connections are left for probes.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from socketserver import TCPServer
from typing import Any, Final

import structlog

from tandem.controller.http.host_names import HostNames
from tandem.sink.process.rates import RatedLog

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)

READ_S: Final = 5.0
WRITE_S: Final = 10.0
REQUEST_BYTES: Final = 16 << 10
CONNECTIONS: Final = 32
SPARE: Final = 8

METHODS: Final = ("GET", "HEAD")
_ANOTHER_NAME: Final = "this server does not answer under that name: ask by IP address, or add the name to http.hosts\n"
_SECURE: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """One response. `headers` override those of every answer, which forbid caching, framing, sniffing and sources."""

    body: str | bytes
    kind: str = "text/plain"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class _TooLargeError(Exception):
    """The request has more than `REQUEST_BYTES`."""


class _Bounded(io.RawIOBase):
    """The bytes that a client sends, up to a number of bytes and a deadline."""

    def __init__(self, connection: socket.socket, *, limit: int, deadline_mono: float) -> None:
        self._connection = connection
        self._left = limit
        self._deadline_mono = deadline_mono

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 (as in the base class)
        left_s = self._deadline_mono - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if not self._left:
            raise _TooLargeError
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        if not count:
            raise ConnectionAbortedError("the client went away before it had asked")  # half a request is none
        self._left -= count
        return count


class HttpHandler(BaseHTTPRequestHandler):
    """One request of one connection. Subclasses answer paths in `find`; `probes` are paths that are answered at once.

    Probes are answered under any host name, all other paths only under one of `names`.
    """

    server: HttpServer
    probes: frozenset[str] = frozenset()
    names: HostNames = HostNames()
    server_version = "tandem"
    sys_version = ""
    # For answers to bytes that can't be parsed as a request.
    request_version = "HTTP/1.0"
    requestline = ""
    command = "GET"

    def find(self, path: str, query: str) -> HttpAnswer:
        """Return the answer for a path and its query, which is empty if there is none."""
        raise NotImplementedError

    def setup(self) -> None:
        """Limit the bytes and the time of the request."""
        super().setup()
        self.rfile.close()
        deadline_mono = time.monotonic() + READ_S
        self.rfile = io.BufferedReader(_Bounded(self.connection, limit=REQUEST_BYTES, deadline_mono=deadline_mono))

    def handle(self) -> None:
        """Read and answer one request; the connection is not kept alive."""
        try:
            self.handle_one_request()
        except ConnectionAbortedError:
            return
        except _TooLargeError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def parse_request(self) -> bool:
        """Refuse methods that are not read-only, and unknown host names. Nothing is read after this."""
        if not super().parse_request():
            return False
        if self.command not in METHODS:
            # Before the host name, whose check may wait for a name server.
            allowed = ", ".join(METHODS)
            status = HTTPStatus.METHOD_NOT_ALLOWED
            self._send(HttpAnswer(body=f"only {allowed}\n", status=status, headers={"Allow": allowed}))
            return False
        probed = self.path.partition("?")[0] in self.probes
        if not self.server.has_asked(self.connection, works=not probed):
            self._send(HttpAnswer(body="busy, ask again\n", status=HTTPStatus.SERVICE_UNAVAILABLE))
            return False
        if not (probed or all(self.names.has(host) for host in self.headers.get_all("Host", []))):
            self._send(HttpAnswer(body=_ANOTHER_NAME, status=HTTPStatus.MISDIRECTED_REQUEST))
            return False
        return True

    def do_GET(self) -> None:
        """Send the answer for the path."""
        try:
            path, _, query = self.path.partition("?")
            answer = self.find(path, query)
        except Exception as error:  # noqa: BLE001 (a page that fails must not look like a process that is gone)
            _RATED.exception("cannot answer over HTTP", path=self.path[:200], error=error)
            answer = HttpAnswer(
                body="this is a fault of tandem: its log says more\n", status=HTTPStatus.INTERNAL_SERVER_ERROR
            )
        self._send(answer)

    do_HEAD = do_GET  # noqa: N815 (as in the base class)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send a status and its phrase, without any text of the request."""
        status = HTTPStatus(code)
        self._send(HttpAnswer(body=f"{status.phrase}\n", status=status))

    def _send(self, answer: HttpAnswer) -> None:
        body = answer.body if isinstance(answer.body, bytes) else answer.body.encode(errors="replace")
        kind = answer.kind if "charset=" in answer.kind else f"{answer.kind}; charset=utf-8"
        self.request_version = "HTTP/1.0"  # older ones have no headers
        self.server.has_answered(self.connection)
        self.connection.settimeout(WRITE_S)
        self.send_response(answer.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**_SECURE, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 (probes are not worth a line each)
        """Log nothing."""


class HttpServer(ThreadingHTTPServer):
    """Answers each connection in a thread of its own; at most `CONNECTIONS` and `SPARE` are open."""

    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[HttpHandler]) -> None:
        """Listen at (host, port), an empty host being all addresses of the machine. Raises OSError."""
        self.address_family, place = _place(*address)
        super().__init__(place, handler)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._asking: dict[socket.socket, None] = {}  # in the order they came
        self._working: set[socket.socket] = set()
        self._taking: dict[socket.socket, None] = {}  # in the order their answers were begun

    def server_bind(self) -> None:
        """Bind the address; `::` for IPv4 too. Unlike the base class it asks no name server for the (unused) name."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (as in the base class)
        """Start to answer a connection; if all are in use, close the slowest client's, else this one."""
        with self._lock:
            full = len(self._open) >= CONNECTIONS + SPARE
            slowest = next(chain(self._asking, self._taking), None) if full else None
            if slowest is not None:
                self._forget(slowest)
            if not full or slowest is not None:
                self._open.add(request)
                self._asking[request] = None
        if slowest is not None:
            _hang_up(slowest)
        elif full:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 (as in the base class)
        """Forget a connection and close it."""
        with self._lock:
            self._forget(request)
        super().shutdown_request(request)

    def _forget(self, request: socket.socket) -> None:
        self._open.discard(request)
        self._asking.pop(request, None)
        self._working.discard(request)
        self._taking.pop(request, None)

    def has_asked(self, request: socket.socket, *, works: bool) -> bool:
        """Record that a connection's request was read, so that it now waits for the answer of this server.

        Return whether that answer may be made: at most `CONNECTIONS` expensive ones (`works`) are made at a time.
        """
        with self._lock:
            self._asking.pop(request, None)
            if works and len(self._working) >= CONNECTIONS:
                return False
            if works and request in self._open:
                self._working.add(request)
            return True

    def has_answered(self, request: socket.socket) -> None:
        """Record that an answer was made, so that the connection now waits for its client to take it."""
        with self._lock:
            self._asking.pop(request, None)
            self._working.discard(request)
            if request in self._open:
                self._taking[request] = None

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 (as in the base class)
        """Log at debug level only: clients go away while they are answered."""
        _LOG.debug("a client went away", error=str(sys.exception()))


def _place(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address family and the address to bind; IPv4 for a name that has both families. Raises OSError."""
    if not host:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return family, ("::" if family == socket.AF_INET6 else "0.0.0.0", port)  # noqa: S104 (that is what was asked for)
    families = {found[0] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6, (host, port)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # the client has already closed it
        _LOG.debug("a slow client was gone already")
