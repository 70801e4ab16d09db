"""Health over HTTP: `/livez`, `/readyz`, `/active`, `/passive` (200 or 503), `/status` (JSON), `/metrics`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from backup_avro.errors import ConfigError
from controller.observation import Role

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A picture of the instance. `ticked_s` is the time since the last tick, `ready` whether it knows its role."""

    role: Role
    ready: bool
    ticked_s: float
    alive_within_s: float
    status: dict[str, object]

    @property
    def alive(self) -> bool:
        """Whether the loop still turns."""
        return self.ticked_s < self.alive_within_s


def starting(pair: str, instance: str, incarnation: str) -> Health:
    """Return the picture of a process that still waits for its store or its brokers: alive, not ready."""
    status: dict[str, object] = {"pair": pair, "instance": instance, "incarnation": incarnation, "role": None}
    return Health(
        role=Role.PASSIVE, ready=False, ticked_s=0.0, alive_within_s=1.0, status=status | {"reason": "starting"}
    )


class HealthSource:
    """Where the server looks; `look` may be replaced while it serves."""

    def __init__(self, look: Callable[[], Health]) -> None:
        self.look = look

    def __call__(self) -> Health:
        """Look."""
        return self.look()


_CHECKS: dict[str, Callable[[Health], bool]] = {
    "/livez": lambda health: health.alive,
    "/readyz": lambda health: health.ready and health.alive,
    "/active": lambda health: health.role is Role.ACTIVE,
    "/passive": lambda health: health.role is Role.PASSIVE,
}


def serve(
    address: tuple[str, int], look: Callable[[], Health], metrics: Callable[[str], tuple[bytes, str]] | None = None
) -> ThreadingHTTPServer:
    """Serve from a thread until `shutdown`. ConfigError if the address can't be had.

    `metrics` takes an Accept header and returns a page with its content type; both functions must not block.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and metrics is not None:
                self._send(HTTPStatus.OK, *metrics(self.headers.get("Accept", "")))
                return
            health = look()
            if path == "/status":
                self._answer(HTTPStatus.OK, json.dumps(health.status), "application/json")
            elif path in _CHECKS:
                good = _CHECKS[path](health)
                status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, f"{'yes' if good else 'no'}, role {health.role.value}\n", "text/plain")
            else:
                paths = ", ".join([*_CHECKS, "/status", "/metrics"])
                self._answer(HTTPStatus.NOT_FOUND, f"there are {paths}\n", "text/plain")

        def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
            self._send(status, text.encode(), f"{kind}; charset=utf-8")

        def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:  # noqa: ANN401 (probes are not worth a line each)
            """Say nothing."""

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise ConfigError(
            f"http.listen: {address[0]}:{address[1]} can't be had: {error.strerror}",
            remedy="choose another port, or stop what listens there",
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
