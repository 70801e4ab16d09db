"""The sandbox: a broker and an S3 server that belong together; `<folder>/sandbox.json` holds their state.

<folder>/sandbox.json   ports, processes (pid and start time), bucket, key; readable by its owner only
<folder>/kafka/         server.properties, data/, kafka.log
<folder>/s3/            identities.json, data/, s3.log
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tandem.backup_avro.json_fields import NOT_IN_JSON, in_json
from tandem.controller.sandbox.errors import PartMissingError, PortTakenError, StateDamagedError
from tandem.controller.sandbox.jars import find_java, kafka_jars
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.process import ProcessId
from tandem.controller.sandbox.s3 import REGION, S3Server, find_seaweedfs
from tandem.controller.sandbox.server import LocalServer, ServerState
from tandem.controller.sandbox.sigv4 import S3Key

BUCKET = "tandem"
_VERSION = 1
_STATE_FILE = "sandbox.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """How to reach both servers."""

    bootstrap_servers: str
    s3_endpoint_url: str
    region: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server as seen from outside. `address` is None before the first start, `pid` unless it runs."""

    name: str
    state: ServerState
    address: str | None
    pid: int | None
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """`tandem sandbox status`: both servers. `endpoints` is None before the first start."""

    folder: Path
    servers: tuple[ServerStatus, ...]
    endpoints: Endpoints | None = field(metadata=NOT_IN_JSON)

    @property
    @in_json
    def bucket(self) -> str | None:
        """The bucket that was made."""
        return self.endpoints.bucket if self.endpoints else None

    @property
    @in_json
    def running(self) -> bool:
        """Whether both servers answer."""
        return bool(self.servers) and all(server.state is ServerState.RUNNING for server in self.servers)


class Sandbox:
    """A broker and an S3 server with their data in `folder`.

    By default the servers outlive this process, and another process finds them again through the folder. With
    `attached` they end with this process, for whatever reason it ends. Several processes may call `up` and `down` on
    one folder: a file lock serializes them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        attached: bool = False,
        say: Callable[[str], None] = lambda _: None,
        kafka_overrides: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet; `say` gets one line for each step that takes time."""
        self.folder = folder.expanduser().resolve()
        self.attached = attached
        self._say = say
        self._overrides = kafka_overrides
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        """Start both servers."""
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop both servers."""
        self.down()

    def up(self, *, timeout_s: float = 60.0) -> Endpoints:
        """Start the servers that don't run, and return when both answer. Calling it again changes nothing.

        Data and ports of an earlier run are kept; only a port that another process uses by now is replaced. Ctrl-C
        stops the servers that this call has started, and raises KeyboardInterrupt when they have ended.
        Raises JavaUnfitError, PartMissingError, DownloadFailedError, ServerFailedError, ServerSilentError,
        StateDamagedError.
        """
        # A missing program is reported before jars are downloaded or servers are started.
        find_java()
        find_seaweedfs()
        kafka_jars(say=self._say)
        with self._locked():
            servers = self._read() or self._servers({"access_key": "sandbox", "secret_key": secrets.token_urlsafe(24)})
            self._write(servers)
            earlier = [server.process for server in servers]
            pool = ThreadPoolExecutor(max_workers=len(servers))
            try:
                starts = [pool.submit(self._start, server, timeout_s) for server in servers]
                # Waits for both starts: after a failure of one, no thread is left that still starts the other.
                pool.shutdown()
            except KeyboardInterrupt:
                with _ignore_interrupts():
                    self._undo(servers, earlier, pool)
                raise
            for start in starts:
                start.result()
        return _endpoints(*servers)

    def down(self) -> bool:
        """Stop both servers; the data stays. Calling it again does nothing. False: the folder is not a sandbox."""
        if not (self.folder / _STATE_FILE).exists():
            return False
        with self._locked():
            for server in self._read() or ():
                if server.process is not None:
                    self._say(f"{server.title}: stopping")
                    server.stop()
        return True

    def status(self) -> SandboxStatus:
        """Return the state of both servers. Changes nothing. Raises StateDamagedError."""
        servers = self._read()
        if servers is None:
            return SandboxStatus(folder=self.folder, servers=(), endpoints=None)
        kafka, s3 = servers
        return SandboxStatus(
            folder=self.folder,
            servers=tuple(
                ServerStatus(
                    name=name,
                    state=server.state,
                    address=address if server.ports else None,
                    pid=server.process.pid if server.process and server.running else None,
                    log=server.log,
                )
                for name, server, address in (
                    ("kafka", kafka, kafka.bootstrap if kafka.ports else None),
                    ("s3", s3, s3.endpoint_url if s3.ports else None),
                )
            ),
            endpoints=_endpoints(kafka, s3) if kafka.ports and s3.ports else None,
        )

    def _undo(
        self, servers: Sequence[LocalServer], earlier: Sequence[ProcessId | None], pool: ThreadPoolExecutor
    ) -> None:
        """Cancel the starts, and stop the servers that they have started; a server that ran before keeps running."""
        for server in servers:
            server.cancel()
        pool.shutdown()
        for server, process in zip(servers, earlier, strict=True):
            if server.process not in {None, process}:
                server.stop()
        self._say("interrupted; what was started is stopped again")

    def _start(self, server: LocalServer, timeout_s: float) -> None:
        before = server.state
        if before is ServerState.RUNNING:
            self._say(f"{server.title}: runs already")
            return
        self._say(f"{server.title}: {'starting' if before is ServerState.STOPPED else f'is {before.value}; repairing'}")
        if before is ServerState.SILENT:  # `start` would only resume the process and wait for its answer
            server.stop()
        try:
            server.start(timeout_s=timeout_s)
        except PortTakenError as error:
            self._say(f"{error}; taking other ports")
            server.forget_ports()
            server.start(timeout_s=timeout_s)
        self._say(f"{server.title}: answers")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold an exclusive lock on the folder; the kernel releases it even if this process is killed."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
            if os.geteuid() not in {0, status.st_uid} or status.st_mode & stat.S_IWOTH:
                # The file names are known in advance: through a link of that name another file would be overwritten.
                raise PartMissingError(
                    f"{self.folder} belongs to another user, or any user can write there",
                    code="TDM-D023",
                    remedy=f"choose another folder with --dir, or run: chmod o-w {shlex.quote(str(self.folder))}",
                )
            lock = (self.folder / "sandbox.lock").open("a")
        except OSError as error:
            raise PartMissingError(
                f"can't use {self.folder} for a sandbox: {error}",
                code="TDM-D024",
                remedy="choose another folder with --dir",
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say(f"another process is busy with {self.folder}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _servers(self, state: Mapping[str, Any]) -> tuple[KafkaServer, S3Server]:
        """Build both servers from the content of `sandbox.json`; a missing part means a first start."""

        def changed() -> None:
            self._write((kafka, s3))

        kafka = KafkaServer(
            self.folder / "kafka",
            overrides=self._overrides,
            attached=self.attached,
            changed=changed,
            **_life(state.get("kafka")),
        )
        s3 = S3Server(
            self.folder / "s3",
            bucket=state.get("bucket", BUCKET),
            key=S3Key(access_key=state["access_key"], secret_key=state["secret_key"]),
            attached=self.attached,
            changed=changed,
            **_life(state.get("s3")),
        )
        return kafka, s3

    def _read(self) -> tuple[KafkaServer, S3Server] | None:
        """Build both servers from `sandbox.json`; return None if the file does not exist."""
        path = self.folder / _STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["v"] != _VERSION:
                raise StateDamagedError(
                    f"{path} has version {state['v']}, this release knows {_VERSION}",
                    code="TDM-D025",
                    remedy="stop that sandbox with the release that started it, or choose another folder",
                )
            return self._servers(state)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateDamagedError(
                f"{path} is not what `up` writes: {error!r}",
                code="TDM-D026",
                remedy="stop its servers by hand, if they run, and remove the folder",
            ) from error

    def _write(self, servers: tuple[KafkaServer, S3Server]) -> None:
        """Replace `sandbox.json` atomically; only its owner may read the secret in it."""
        kafka, s3 = servers
        with self._writing:  # both servers start at the same time, each in a thread
            state = {
                "v": _VERSION,
                "bucket": s3.bucket,
                "access_key": s3.key.access_key,
                "secret_key": s3.key.secret_key,
                "kafka": _dump(kafka),
                "s3": _dump(s3),
            }
            path = self.folder / _STATE_FILE
            fresh = path.with_name(f"{_STATE_FILE}.new")
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(state, file, indent=2)
            fresh.replace(path)


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore SIGINT during the block: a second Ctrl-C would leave servers running. Only for the main thread."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _dump(server: LocalServer) -> dict[str, Any]:
    process = server.process
    return {
        "ports": dict(server.ports),
        "process": {"pid": process.pid, "started": process.started} if process else None,
    }


def _life(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `ports` and `process` of an earlier run as arguments of LocalServer."""
    if not state:
        return {}
    process = state["process"]
    return {
        "ports": {str(name): int(port) for name, port in state["ports"].items()},
        "process": ProcessId(pid=int(process["pid"]), started=str(process["started"])) if process else None,
    }


def _endpoints(kafka: KafkaServer, s3: S3Server) -> Endpoints:
    return Endpoints(
        bootstrap_servers=kafka.bootstrap,
        s3_endpoint_url=s3.endpoint_url,
        region=REGION,
        bucket=s3.bucket,
        access_key=s3.key.access_key,
        secret_key=s3.key.secret_key,
    )
