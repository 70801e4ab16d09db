"""Health over HTTP: `/livez`, `/readyz`, `/active`, `/passive` (200 or 503), `/status` (JSON), `/metrics`, pages."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.output.output import document
from tandem.controller.decision.observation import Role
from tandem.controller.http.host_names import HostNames
from tandem.controller.http.server import HttpAnswer, HttpHandler, HttpServer
from tandem.controller.status.instance_state import InstanceState, instance_state
from tandem.controller.status.instance_view import InstanceView
from tandem.sink.process.safe_text import redact

_ALIVE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of the instance at one moment. `ticked_s` is the time since the last tick, in seconds."""

    role: Role
    ticked_s: float
    alive_within_s: float
    state: InstanceState

    @property
    def alive(self) -> bool:
        """Whether the instance's loop still ticks."""
        return self.ticked_s < self.alive_within_s


def health_of(known: InstanceView) -> Health:
    """Return the health of an instance for probes."""
    return Health(
        role=known.role,
        ticked_s=known.now_mono - known.ticked_mono,
        alive_within_s=max(_ALIVE_WITHIN_S, 10 * known.policy.heartbeat_s),
        state=instance_state(known),
    )


def starting(pair: str, instance: str, incarnation: str) -> Health:
    """Return the health of a process that still waits for its store or its brokers: alive, not ready."""
    state = InstanceState(
        pair=pair,
        instance=instance,
        incarnation=incarnation,
        not_ready="it waits for store, brokers or coordination topic",
        reason="starting",
    )
    return Health(role=Role.PASSIVE, ticked_s=0.0, alive_within_s=1.0, state=state)


class HealthSource:
    """The source of the server's health answers; `look` may be replaced while the server runs."""

    def __init__(self, look: Callable[[], Health]) -> None:
        self.look = look

    def __call__(self) -> Health:
        """Return the present health."""
        return self.look()


_CHECKS: dict[str, Callable[[Health], bool]] = {
    "/livez": lambda health: health.alive,
    "/readyz": lambda health: health.state.ready and health.alive,
    "/active": lambda health: health.role is Role.ACTIVE,
    "/passive": lambda health: health.role is Role.PASSIVE,
}


def serve(
    address: tuple[str, int],
    look: Callable[[], Health],
    pages: Mapping[str, Callable[[str], HttpAnswer]] | None = None,
    metrics: Callable[[str], tuple[bytes, str]] | None = None,
    hosts: Collection[str] = (),
) -> HttpServer:
    """Serve from a thread until `shutdown`. Raises ConfigError if the address can't be bound.

    `metrics` takes an Accept header and returns a page with its content type.

    `pages` are further answers by path, and take the query. They are called from many threads, and must not block.
    `hosts` are names of the server beside those that it finds by itself.
    """
    more = dict(pages or {})
    own = HostNames((address[0], *hosts))

    class Paths(HttpHandler):
        probes = frozenset(_CHECKS)
        names = own

        def find(self, path: str, query: str) -> HttpAnswer:
            answer = self._found(path, query)
            # The text may repeat error messages of stores and brokers, so secrets are masked.
            return replace(answer, body=redact(answer.body)) if isinstance(answer.body, str) else answer

        def _found(self, path: str, query: str) -> HttpAnswer:
            if path in more:
                return more[path](query)
            if path == "/metrics" and metrics is not None:
                body, kind = metrics(self.headers.get("Accept", ""))
                return HttpAnswer(body=body, kind=kind)
            health = look()
            if path == "/status":
                text = json.dumps(document("Instance", health.state), allow_nan=False)
                return HttpAnswer(body=text, kind="application/json")
            if path not in _CHECKS:
                there = ", ".join([*_CHECKS, "/status", *([] if metrics is None else ["/metrics"]), *more])
                return HttpAnswer(body=f"there are {there}\n", status=HTTPStatus.NOT_FOUND)
            good = _CHECKS[path](health)
            why = health.state.not_ready if path == "/readyz" else None
            return HttpAnswer(
                body=f"{'yes' if good else 'no'}, role {health.role.value}{f': {why}' if why else ''}\n",
                status=HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE,
            )

    try:
        server = HttpServer(address, Paths)
    except OSError as error:
        host, port = f"[{address[0]}]" if ":" in address[0] else address[0], address[1]
        raise ConfigError(
            f"http.listen: {host}:{port} can't be had: {error.strerror}",
            code="TDM-I019",
            remedy="choose another port, or stop what listens there"
            if error.errno == errno.EADDRINUSE
            else f"write an address of this machine, or :{port} for all of them",
        ) from error
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
