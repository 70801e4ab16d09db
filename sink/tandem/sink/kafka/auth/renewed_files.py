"""Clients of librdkafka that log in with renewed certificates: it reads files once, when a client is made.

Certificates that a cluster's operator or cert-manager renews are replaced on disk while instances run. A client with
the old ones is refused at its next connection, at the latest when they expire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog
from confluent_kafka import KafkaException

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.auth.client_config import Value

_LOG = structlog.get_logger()
_LOCATIONS: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
#: Longer than a request of an instance may take, and than its messages wait.
_RETIRED_S: Final = 60.0

Client = TypeVar("Client")


class CredentialFiles:
    """The files that `props`, with librdkafka's names, tell a client to log in with."""

    def __init__(self, props: Mapping[str, Value]) -> None:
        paths = {Path(str(props[name])) for name in _LOCATIONS if props.get(name)}
        found = {path: _stamp(path) for path in paths}
        self._stamps = {path: stamp for path, stamp in found.items() if stamp is not None}  # none of `probe`

    def replaced(self) -> bool:
        """Return whether a file is another one than when this object was made; not while one is missing."""
        stamps = {path: _stamp(path) for path in self._stamps}
        return stamps != self._stamps and None not in stamps.values()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or a link to it is turned, as Kubernetes does with all at once."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class RenewedClient(Generic[Client]):
    """A client that `make` opens anew once files of its login were replaced. Thread-safe.

    The one before is closed a minute later: requests of other threads may still wait for its answers.
    """

    def __init__(
        self, props: Mapping[str, Value], make: Callable[[], Client], close: Callable[[Client], object]
    ) -> None:
        self._props = props
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._retired: list[tuple[float, Client]] = []
        self._failed: str | None = None
        self._files = CredentialFiles(props)  # before the client reads them
        self._client = make()

    def get(self) -> Client:
        """Return the client to use now. While renewed files can't be used, that is the one before."""
        if self._lock.acquire(blocking=False):
            try:
                self._close_retired(time.monotonic() - _RETIRED_S)
                if self._files.replaced():
                    self._renew()
            finally:
                self._lock.release()
        return self._client

    def close(self) -> None:
        """Close all clients."""
        with self._lock:
            self._close_retired(time.monotonic())
            self._close(self._client)

    def _renew(self) -> None:
        files = CredentialFiles(self._props)
        try:
            client = self._make()
        except (KafkaException, TandemError) as error:  # a certificate may be there before its key
            if self._failed != str(error):
                _LOG.warning("cannot log in to Kafka with files that were replaced, trying again", error=error)
            self._failed = str(error)
            return
        _LOG.info("files of the login to Kafka were replaced, connecting anew")
        self._retired.append((time.monotonic(), self._client))
        self._files, self._client, self._failed = files, client, None

    def _close_retired(self, until: float) -> None:
        while self._retired and self._retired[0][0] <= until:
            self._close(self._retired.pop(0)[1])
