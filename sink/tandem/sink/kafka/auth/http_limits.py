"""Limits the total seconds and bytes of one HTTP call, whatever the server does.

urllib3's time-outs apply to each read of a socket, so a server that sends a byte now and then can hold the caller for
as long as it likes: in the body, in the headers, in a proxy's answer before those. A server can do the same by setting
the pause until the next attempt (Retry-After), or by an error answer that urllib3 reads to its end before that attempt.
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
    """The methods needed of a socket: plain, TLS, or TLS within TLS."""

    def makefile(self, mode: str, buffering: int) -> Any: ...  # noqa: ANN401 - each kind has a file of its own

    def settimeout(self, value: float | None) -> None: ...


class AnswerLimits:
    """The limits of one call: `most_s` seconds from now, further attempts included, and `most` bytes of each answer.

    One read may take `read_s` seconds. A call that exceeds `most_s` or `most` raises the exception that `error` returns
    for a short reason. A connection attempt is not interrupted: it takes up to the caller's time-out for each address
    of the host name.
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
        """Return the remaining seconds, more than 0. Raises the caller's error if there are none."""
        left = self._ends_at - self._now()
        if left <= 0:
            raise self._error(f"it takes more than {self._most_s:g} s")
        return left

    def check(self, size: int) -> None:
        """Raise the caller's error if an answer of `size` bytes is too large."""
        if size > self._most:
            raise self._error(f"it sends more than {self._most} bytes")

    def apply_to(self, pool: urllib3.HTTPConnectionPool) -> None:
        """Apply the limits to all connections that the pool makes from now on."""
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
    """A socket that can only be turned into a file."""

    def __init__(self, sock: _Socket, limits: AnswerLimits) -> None:
        self._sock = sock
        self._limits = limits

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_File(self._sock, self._sock.makefile(mode, buffering=0), self._limits))


class _File(io.RawIOBase):
    """The bytes received from a socket. No read waits longer than the remaining time."""

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
