"""Servers of tests look often whether they have to end: closing one would otherwise take half a second."""

from __future__ import annotations

from functools import partialmethod

import pytest

from tandem.controller.http.server import HttpServer


@pytest.fixture(autouse=True)
def _end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpServer, "serve_forever", partialmethod(HttpServer.serve_forever, poll_interval=0.01))
