"""Gates: TCP forwarders between a part and a server, whose traffic can be cut, silenced, slowed or made deaf.

All gates of a campaign run on one event loop in one thread. Bytes pass unchanged; only their fate differs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self

from tandem.controller.sandbox.ports import LOOPBACK

_CHUNK = 64 * 1024
_SLOW_CHUNK = 2 * 1024
_SLOW_S = 0.05


class Mode(StrEnum):
    """What happens to the traffic of a gate."""

    OPEN = "open"
    CUT = "cut"  # connections are reset, new ones too
    SILENT = "silent"  # connections stand, nothing moves; what is on its way arrives late
    SLOW = "slow"  # some 40 KB a second and direction
    DEAF = "deaf"  # requests arrive, answers are lost: done, and nobody knows


class Gate:
    """Listens on loopback and forwards to what `target` returns (`host:port`, asked for each connection)."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, target: Callable[[], str]) -> None:
        self.name = name
        self._loop = loop
        self._target = target
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self._listener.setblocking(False)
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._mode = Mode.OPEN
        self._moving = asyncio.Event()
        self._moving.set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def mode(self) -> Mode:
        return self._mode

    def set(self, mode: Mode) -> None:
        """Change the mode, for connections that stand as well. Returns when it holds."""
        asyncio.run_coroutine_threadsafe(self._set(mode), self._loop).result(10)

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=_CHUNK)
        async with server:
            await server.serve_forever()

    async def _set(self, mode: Mode) -> None:
        # Connections that lost bytes, or that are cut, can't go on.
        broken = mode is Mode.CUT or (Mode.DEAF in {mode, self._mode} and mode is not self._mode)
        self._mode = mode
        if mode is Mode.SILENT:
            self._moving.clear()
        else:
            self._moving.set()
        if broken and mode is not Mode.DEAF:
            for task in list(self._connections):
                task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._mode is not Mode.CUT:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side went away, or the gate was cut: both ends see it
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._moving.wait()
        host, _, port = self._target().rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port), limit=_CHUNK)
        try:
            pumps = {
                asyncio.ensure_future(self._pump(reader, there_writer, answers=False)),
                asyncio.ensure_future(self._pump(there_reader, writer, answers=True)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            there_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await source.read(_SLOW_CHUNK if self._mode is Mode.SLOW else _CHUNK):
            await self._moving.wait()
            if self._mode is Mode.SLOW:
                await asyncio.sleep(_SLOW_S)
            if self._mode is Mode.DEAF and answers:
                continue
            to.write(data)
            await to.drain()


class Gates:
    """The loop and thread of all gates; use it in a `with`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)
        self._serving: list[asyncio.Future[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Cut everything and end the thread."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def open(self, name: str, target: Callable[[], str]) -> Gate:
        """Make a gate and begin to forward."""

        async def begin() -> Gate:
            gate = Gate(name, self._loop, target)
            self._serving.append(asyncio.ensure_future(gate.serve()))
            return gate

        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)

    async def _end(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
