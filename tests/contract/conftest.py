"""A second S3 server for the object stores' contract, written by others than the first one."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
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
