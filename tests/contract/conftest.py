"""Servers for the object stores' contract beside the sandbox's: moto, and the emulators of `support.emulators`."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from support.emulators.gcs_front import gcs_front
from support.emulators.servers import Azurite, FakeGcs, VersityGw
from support.servers.certificates import Authority
from werkzeug.serving import WSGIRequestHandler, make_server


class QuietHandler(WSGIRequestHandler):
    """Logs nothing."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 (named so by its base)
        """Drop the line."""


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """A moto server that takes one request at a time: it looks first and writes later, so it is atomic only then."""
    with _serving(None) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def moto_tls(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The same buckets behind TLS: its URL, and the authority that nobody knows, as PEM."""
    authority = Authority("Private")
    own = authority.issue("store", address="127.0.0.1")
    (tmp_path / "store.pem").write_text(own.key + own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "store.pem")
    with _serving(context) as port:
        yield f"https://127.0.0.1:{port}", authority.pem


@pytest.fixture(scope="session")
def azurite(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Azurite:
    """Azure's emulator."""
    server = Azurite(tmp_path_factory.mktemp("azurite"))
    servers.callback(server.stop)
    server.start()
    return server


@pytest.fixture(scope="session")
def fake_gcs(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> FakeGcs:
    """fake-gcs-server, bare."""
    server = FakeGcs(tmp_path_factory.mktemp("gcs"))
    servers.callback(server.stop)
    server.start()
    return server


@pytest.fixture(scope="session")
def gcs_url(servers: ExitStack, fake_gcs: FakeGcs) -> str:
    """The URL of fake-gcs-server behind what translates for it."""
    return servers.enter_context(gcs_front(fake_gcs.endpoint_url))


@pytest.fixture(scope="session")
def versitygw(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> VersityGw:
    """A third S3 server."""
    server = VersityGw(tmp_path_factory.mktemp("versitygw"))
    servers.callback(server.stop)
    server.start()
    return server


@contextmanager
def _serving(context: ssl.SSLContext | None) -> Iterator[int]:
    inner = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def serve(environment: Any, start: Any) -> Any:
        with lock:
            return inner(environment, start)

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=QuietHandler, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()
