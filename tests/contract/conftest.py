"""A second S3 server for the object stores' contract, written by others than the first one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class QuietHandler(WSGIRequestHandler):
    """Logs nothing."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 (named so by its base)
        """Drop the line."""


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """A moto server that takes one request at a time: it looks first and writes later, so it is atomic only then."""
    inner = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def serve(environment: Any, start: Any) -> Any:
        with lock:
            return inner(environment, start)

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=QuietHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
