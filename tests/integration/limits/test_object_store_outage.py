"""The S3 store while its server dies, hangs and comes back."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store import ObjectStore, PutResult, StoreAccess, StoreTransientError, open_store

pytestmark = pytest.mark.integration


@pytest.fixture
def server(own_s3: Callable[[], S3Server]) -> S3Server:
    """A server that this test may stop."""
    return own_s3()


@pytest.fixture
def open_here(server: S3Server) -> Iterator[Callable[..., ObjectStore]]:
    """A function that opens a store on that server."""
    opened = []

    def open_with(**more: Any) -> ObjectStore:
        settings = StoreAccess(
            endpoint_url=server.endpoint_url,
            access_key_id=server.key.access_key,
            secret_access_key=server.key.secret_key,
            **more,
        )
        opened.append(open_store(f"s3://{server.bucket}/root", settings))
        return opened[-1]

    yield open_with
    for store in opened:
        store.close()


def test_the_same_store_goes_on_after_a_crash(server: S3Server, open_here: Callable[..., ObjectStore]) -> None:
    """While the server is dead every call ends soon in a transient error; after its restart nothing is lost."""
    store = open_here(attempts=2)
    store.put_if_absent("before", b"kept")
    before = store.now()
    server.kill()
    begun = time.monotonic()
    for call in (
        lambda: store.put_if_absent("during", b"x"),
        lambda: store.get("before"),
        lambda: store.head("before"),
        lambda: list(store.list("")),
        lambda: store.delete(["before"]),
    ):
        with pytest.raises(StoreTransientError, match=server.endpoint_url):
            call()
    assert time.monotonic() - begun < 20
    assert store.now() >= before  # the clock runs on
    server.start()
    assert store.get("before") == b"kept"
    assert store.put_if_absent("before", b"other") is PutResult.EXISTS
    assert store.put_if_absent("during", b"x") in PutResult
    assert store.get("during") == b"x"


def test_a_call_lasts_through_a_short_hang(server: S3Server, open_here: Callable[..., ObjectStore]) -> None:
    """A server that stands still for longer than the read time-out: the retries carry the puts over it."""
    store = open_here(read_timeout=1.0, connect_timeout=1.0, attempts=10, backoff_max=0.5)
    store.put_if_absent("warm", b"up")
    bodies = {f"hang/{number}": secrets.token_bytes(1000) for number in range(8)}
    server.suspend()
    timer = threading.Timer(2.5, server.resume)
    timer.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda item: store.put_if_absent(*item), bodies.items()))
    finally:
        timer.join()
    # CREATED or, if a time-out hid the first success, EXISTS: in either case our bytes and only ours are there.
    assert {info.key: store.get(info.key) for info in store.list("hang/")} == bodies
