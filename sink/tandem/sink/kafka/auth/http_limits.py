"""Limits for all that one call over HTTP may take: seconds and bytes, whatever the server does.

urllib3's time-outs are for each read of a socket, so a server that sends a byte now and then holds the caller for as
long as it likes: in the body, in the headers, in a proxy's answer before those. So may one that names the pause until
the next attempt (Retry-After), or whose answer, which nobody wants, is read to its end before that attempt.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import urllib3

from tandem.backup_avro.errors import TandemError


class _Socket(Protocol):
    """What is needed of sockets, in TLS or not, and of TLS within TLS."""

    def makefile(self, mode: str, buffering: int) -> Any: ...  # noqa: ANN401 - each kind has a file of its own

    def settimeout(self, value: float | None) -> None: ...


class AnswerLimits:
    """The limits of one call: `most_s` seconds from now, further attempts included, and `most` bytes of each answer.

    `read_s` is what one read may take. What passes the others raises what `error` makes of a few words. A connection
    that is being made is not ended: that takes as long as the caller's time-out, for each address of the name.
    """

    def __init__(
        self,
        *,
        most_s: float,
        read_s: float,
        most: int,
        error: Callable[[str], TandemError],
        now: Callable[[], float],
    ) -> None:
        self.read_s = read_s
        self._most = most
        self._error = error
        self._most_s = most_s
        self._ends_at = now() + most_s
        self._now = now

    def left_s(self) -> float:
        """Return the seconds that are left, more than 0. Raises the caller's error."""
        left = self._ends_at - self._now()
        if left <= 0:
            raise self._error(f"it takes more than {self._most_s:g} s")
        return left

    def check(self, size: int) -> None:
        """Raise the caller's error if an answer of so many bytes is too large."""
        if size > self._most:
            raise self._error(f"it sends more than {self._most} bytes")

    def put_on(self, pool: urllib3.HTTPConnectionPool) -> None:
        """Have all connections that the pool makes from now on keep to the limits."""
        make = pool.ConnectionCls

        def limited(*args: Any, **how: Any) -> Any:  # noqa: ANN401 - passed on as they are
            self.left_s()
            connection: Any = make(*args, **how)
            connection.response_class = partial(_Response, limits=self)
            return connection

        pool.ConnectionCls = limited  # type: ignore[assignment]  # called, and nothing else


class _Response(http.client.HTTPResponse):
    """An answer that is read within limits."""

    def __init__(self, sock: _Socket, debuglevel: int = 0, method: str | None = None, *, limits: AnswerLimits) -> None:
        file = _Limited(sock, limits)
        super().__init__(file, debuglevel, method)  # type: ignore[arg-type]  # its base makes a file of it, no more


class _Limited:
    """A socket of which only the file is wanted."""

    def __init__(self, sock: _Socket, limits: AnswerLimits) -> None:
        self._sock = sock
        self._limits = limits

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_File(self._sock, self._sock.makefile(mode, buffering=0), self._limits))


class _File(io.RawIOBase):
    """The bytes that come from a socket. No read waits longer than the time that is left."""

    def __init__(self, sock: _Socket, raw: io.RawIOBase, limits: AnswerLimits) -> None:
        self._sock = sock
        self._raw = raw
        self._limits = limits
        self._came = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - as its base has it
        self._limits.check(self._came)
        self._sock.settimeout(min(self._limits.read_s, self._limits.left_s()))
        try:
            size = self._raw.readinto(buffer)
        except TimeoutError:
            self._limits.left_s()
            raise
        self._came += size or 0
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()
