"""Base class of the local broker and the local S3 server: ports, one process, a log, start and stop."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import ClassVar

from tandem.controller.sandbox.errors import PortTakenError, ServerFailedError, ServerSilentError, StartCancelledError
from tandem.controller.sandbox.ports import LOOPBACK, is_free, pick_ports
from tandem.controller.sandbox.process import ProcessId, ServerProcess

_BIND_FAILED = re.compile(rb"address already in use|BindException|SocketServer failed to bind", re.IGNORECASE)
_FRAME = re.compile(r"\s+(at \S+\(.*\)|\.\.\. \d+ more)")
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 12
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_POLL_S = 0.1
_PORT_ATTEMPTS = 5
_PORT_WAIT_S = 5.0


class ServerState(Enum):
    """What a server is doing, by its process and by asking it."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    SILENT = "silent"  # the process exists but does not answer
    DEAD = "dead"  # the process was started, was not stopped, and does not exist any more
    STOPPED = "stopped"


def last_lines(log: bytes) -> str:
    """Return the last lines of a log, indented for a message, without Java stack frames."""
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip() and not _FRAME.match(line)]
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])


class LocalServer(ABC):
    """One server process with all its data below one folder, listening on loopback only.

    Ports are picked at the first start, and again if another process binds one first. From then on they stay the same,
    so clients find a restarted server at the same address. Not thread-safe.
    """

    title: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    stop_grace_s: ClassVar[float] = 20.0

    def __init__(
        self,
        folder: Path,
        *,
        attached: bool = True,
        ports: Mapping[str, int] | None = None,
        process: ProcessId | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """Use `folder`; `ports` and `process` are those of an earlier run. `changed` is called when either changes."""
        self._cancelled = threading.Event()
        self.folder = folder.resolve()
        self.attached = attached
        self._ports = dict(ports or {})
        self._process = ServerProcess(process) if process else None
        self._changed = changed or (lambda: None)

    # Implemented by each server.

    @property
    @abstractmethod
    def log(self) -> Path:
        """The file with the process's output."""

    @abstractmethod
    def _prepare(self) -> None:
        """Write the server's configuration for the current ports; called before each start."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]:
        """Return the environment of the process."""

    @abstractmethod
    def answers(self) -> bool:
        """Return, within a second or two, whether the server is ready and is this one. Changes nothing."""

    def _ready(self) -> bool:
        """Return like `answers`, but may also complete the set-up; polled after a start."""
        return self.answers()

    def _tidy(self) -> None:  # noqa: B027 - most servers leave no files behind
        """Remove files that the server leaves outside its folder; called when the process has ended."""

    # Common to all servers.

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports by name; empty before the first start."""
        return dict(self._ports)

    @property
    def process(self) -> ProcessId | None:
        """The process, even if it has died since; None after `stop`."""
        return self._process.identity if self._process else None

    def forget_ports(self) -> None:
        """Let the next start pick other ports."""
        self._ports = {}

    def address(self, name: str) -> str:
        """Return `host:port` of the port called `name`."""
        return f"{LOOPBACK}:{self._ports[name]}"

    @property
    def running(self) -> bool:
        """Whether the process exists, suspended or not."""
        return self._process is not None and self._process.running

    @property
    def state(self) -> ServerState:
        """The present state; sends a request to the server."""
        if self._process is None:
            return ServerState.STOPPED
        if not self._process.running:
            return ServerState.DEAD
        if self._process.suspended:
            return ServerState.SUSPENDED
        return ServerState.RUNNING if self.answers() else ServerState.SILENT

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start the server unless it runs, and return when it answers.

        Raises PortTakenError if another process holds the ports of an earlier run, ServerFailedError if the process
        ends by itself, ServerSilentError after `timeout_s`, StartCancelledError after `cancel`.
        """
        if self._process is not None and self._process.running:
            self.resume()
            self._await_answer(self._process, timeout_s)
            return
        if self._ports:
            self._await_ports()
            self._start_once(timeout_s)
            return
        for attempt in range(_PORT_ATTEMPTS):
            self._ports = dict(zip(self.port_names, pick_ports(len(self.port_names)), strict=True))
            try:
                self._start_once(timeout_s)
            except PortTakenError:
                self._ports = {}
                if attempt == _PORT_ATTEMPTS - 1:
                    raise
            else:
                return

    def cancel(self) -> None:
        """Make a start in another thread, and every later start, end soon with StartCancelledError and no process."""
        self._cancelled.set()

    def _await_ports(self) -> None:
        """Wait briefly until the ports are free: the kernel may still be closing the sockets of an earlier run."""
        end = time.monotonic() + _PORT_WAIT_S
        while taken := [port for port in self._ports.values() if not is_free(port)]:
            if time.monotonic() >= end:
                raise PortTakenError(
                    f"{self.title}: another process listens on port {taken[0]} of {LOOPBACK}",
                    code="TDM-D027",
                    remedy=f"stop it, see `ss -ltnp 'sport = :{taken[0]}'`",
                )
            time.sleep(_POLL_S)

    def _start_once(self, timeout_s: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        self._prepare()
        begin = self.log.stat().st_size if self.log.exists() else 0
        process = ServerProcess.spawn(
            self._command(), folder=self.folder, log=self.log, environment=self._environment(), attached=self.attached
        )
        self._process = process
        try:
            self._changed()
            self._await_answer(process, timeout_s, log_begin=begin)
        except BaseException:  # Ctrl-C too: a process that never answered must not stay behind
            process.kill()
            self._process = None
            self._tidy()
            self._changed()
            raise

    def _await_answer(self, process: ServerProcess, timeout_s: float, *, log_begin: int = 0) -> None:
        end = time.monotonic() + timeout_s
        while True:
            ready = self._ready()
            if not process.running:  # checked last: another server on the same port may have answered
                raise self._failure(log_begin)
            if ready:
                return
            if self._cancelled.is_set():
                raise StartCancelledError(f"{self.title} was not waited for", code="TDM-D028")
            if time.monotonic() >= end:
                raise ServerSilentError(
                    f"{self.title} runs but did not answer within {timeout_s:.0f} s",
                    code="TDM-D029",
                    remedy=f"see its log {self.log}; a busy machine may need another try",
                )
            time.sleep(_POLL_S)

    def _failure(self, log_begin: int) -> PortTakenError | ServerFailedError:
        """Return why the server ended, from its log after byte `log_begin`."""
        text = self._log_since(log_begin)
        if _BIND_FAILED.search(text):
            return PortTakenError(
                f"{self.title}: another process was faster to listen on one of {sorted(self._ports.values())}",
                code="TDM-D030",
                remedy="start it again",
            )
        return ServerFailedError(
            f"{self.title} ended by itself; its log ends with:\n{last_lines(text)}",
            code="TDM-D031",
            remedy=f"the whole log is {self.log}",
        )

    def _log_since(self, begin: int) -> bytes:
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read()

    def stop(self) -> None:
        """Stop the process by SIGTERM, and after a grace time by SIGKILL. Stopping twice is no error."""
        if self._process is not None:
            self._process.stop(self.stop_grace_s)
            self._process = None
            self._tidy()
            self._changed()

    def kill(self) -> None:
        """End the process by SIGKILL, like a crash. The data stays; `start` restarts it on the same ports."""
        if self._process is not None:
            self._process.kill()
            self._tidy()

    def suspend(self) -> None:
        """Stop the process by SIGSTOP: its connections stay open, but it answers no request."""
        if self._process is not None:
            self._process.suspend()

    def resume(self) -> None:
        """Let a suspended process continue (SIGCONT)."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def restart(self, *, timeout_s: float = 60.0) -> None:
        """Stop and start again on the same ports with the same data."""
        self.stop()
        self.start(timeout_s=timeout_s)
