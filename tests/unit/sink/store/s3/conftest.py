"""A small S3 server in memory, and a store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.servers.serving import serving
from support.servers.tiny_s3 import TinyS3, settings_for

from tandem.sink.store import (
    ObjectStore,
    open_store,
)


@pytest.fixture
def server() -> Iterator[TinyS3]:
    """A server without faults."""
    tiny = TinyS3()
    with serving(tiny) as tiny.url:
        yield tiny


@pytest.fixture
def store(server: TinyS3) -> Iterator[ObjectStore]:
    """A store on that server, at the bucket's root."""
    opened = open_store("s3://bucket", settings_for(server.url))
    yield opened
    opened.close()
