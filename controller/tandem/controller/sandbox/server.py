"""What the local broker and the local S3 server have in common: ports, one process, a log, an end."""

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
    SILENT = "silent"  # the process is there but does not answer
    DEAD = "dead"  # started, not stopped, and yet gone
    STOPPED = "stopped"


def last_lines(log: bytes) -> str:
    """Return the end of a log, indented for a message, without the stack frames of Java."""
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip() and not _FRAME.match(line)]
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])


class LocalServer(ABC):
    """One server process with all its data below one folder, listening on loopback only.

    Ports are picked at the first start, again if somebody else was faster, and stay the same from then on, so a
    restarted server is found where it was. Not to be used by several threads at once.
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
        """Use `folder`; `ports` and `process` are those of an earlier life, `changed` is called when either changes."""
        self._cancelled = threading.Event()
        self.folder = folder.resolve()
        self.attached = attached
        self._ports = dict(ports or {})
        self._process = ServerProcess(process) if process else None
        self._changed = changed or (lambda: None)

    # What differs between servers.

    @property
    @abstractmethod
    def log(self) -> Path:
        """The file that gets the process's output."""

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration for the present ports; called before each start."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]:
        """Return the environment of the process."""

    @abstractmethod
    def answers(self) -> bool:
        """Ask the server, in a second or two, whether it is ready and really is this one. Changes nothing."""

    def _ready(self) -> bool:
        """As `answers`, but may set up what is still missing; asked again and again after a start."""
        return self.answers()

    def _tidy(self) -> None:  # noqa: B027 - most servers leave nothing
        """Remove what the server leaves outside its folder; called when it has ended."""

    # What is the same.

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports by name; empty before the first start."""
        return dict(self._ports)

    @property
    def process(self) -> ProcessId | None:
        """The process, also when it has died since; None when stopped on purpose."""
        return self._process.identity if self._process else None

    def forget_ports(self) -> None:
        """Let the next start pick other ports."""
        self._ports = {}

    def address(self, name: str) -> str:
        """Return `host:port` of the port called `name`."""
        return f"{LOOPBACK}:{self._ports[name]}"

    @property
    def running(self) -> bool:
        """Whether the process is there, suspended or not."""
        return self._process is not None and self._process.running

    @property
    def state(self) -> ServerState:
        """What the server is doing now."""
        if self._process is None:
            return ServerState.STOPPED
        if not self._process.running:
            return ServerState.DEAD
        if self._process.suspended:
            return ServerState.SUSPENDED
        return ServerState.RUNNING if self.answers() else ServerState.SILENT

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start the server unless it runs, and return when it answers.

        Raises PortTakenError if the ports of its earlier life are held by somebody else, ServerFailedError when it
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
        """Have a start in another thread end soon, and its process with it; so does every later start."""
        self._cancelled.set()

    def _await_ports(self) -> None:
        """Wait a moment for the ports: the kernel may still be taking down the earlier life."""
        end = time.monotonic() + _PORT_WAIT_S
        while taken := [port for port in self._ports.values() if not is_free(port)]:
            if time.monotonic() >= end:
                raise PortTakenError(
                    f"{self.title}: another process listens on port {taken[0]} of {LOOPBACK}",
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
        except BaseException:  # Ctrl-C too: what did not come up must not stay behind
            process.kill()
            self._process = None
            self._tidy()
            self._changed()
            raise

    def _await_answer(self, process: ServerProcess, timeout_s: float, *, log_begin: int = 0) -> None:
        end = time.monotonic() + timeout_s
        while True:
            ready = self._ready()
            if not process.running:  # asked after the answer: it may have come from another server on the same port
                raise self._failure(log_begin)
            if ready:
                return
            if self._cancelled.is_set():
                raise StartCancelledError(f"{self.title} was not waited for")
            if time.monotonic() >= end:
                raise ServerSilentError(
                    f"{self.title} runs but did not answer within {timeout_s:.0f} s",
                    remedy=f"see its log {self.log}; a busy machine may need another try",
                )
            time.sleep(_POLL_S)

    def _failure(self, log_begin: int) -> PortTakenError | ServerFailedError:
        """Tell from the log since byte `log_begin` why the server ended."""
        text = self._log_since(log_begin)
        if _BIND_FAILED.search(text):
            return PortTakenError(
                f"{self.title}: another process was faster to listen on one of {sorted(self._ports.values())}",
                remedy="start it again",
            )
        return ServerFailedError(
            f"{self.title} ended by itself; its last words:\n{last_lines(text)}", remedy=f"the whole log is {self.log}"
        )

    def _log_since(self, begin: int) -> bytes:
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read()

    def stop(self) -> None:
        """Stop in order, by SIGTERM, and after a grace time by SIGKILL. Stopping twice is no error."""
        if self._process is not None:
            self._process.stop(self.stop_grace_s)
            self._process = None
            self._tidy()
            self._changed()

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would. The data stays; `start` brings it back on the same ports."""
        if self._process is not None:
            self._process.kill()
            self._tidy()

    def suspend(self) -> None:
        """Freeze the process by SIGSTOP: connections stay open, nothing is answered."""
        if self._process is not None:
            self._process.suspend()

    def resume(self) -> None:
        """Let a frozen process go on."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def restart(self, *, timeout_s: float = 60.0) -> None:
        """Stop and start again on the same ports with the same data."""
        self.stop()
        self.start(timeout_s=timeout_s)
