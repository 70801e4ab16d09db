"""An object on its way to the store is in memory once: up to four of them are sent at a time."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.httpsession import URLLib3Session
from golden.encrypted import KEY_TEXT
from support.servers.tiny_s3 import settings_for
from urllib3 import HTTPResponse

from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.store import open_store
from tandem.sink.store.contract.object_store import put_new
from tandem.sink.store.encrypted_objects import ObjectBytes, new_seal

SIZE = 64 << 20
PIECE = 1 << 20
NAME = "shop/a/generation=00000001/topics/t/partition=0/t+0+0+1+x.avro"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of each request's body, which is read as a connection reads it, by a server that takes everything."""
    sizes: list[int] = []

    def send(_: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        body = request.body
        sizes.append(sum(map(len, iter(lambda: body.read(16 << 10), b""))) if hasattr(body, "read") else len(body))
        return AWSResponse(request.url, 200, {"ETag": '"x"'}, HTTPResponse(io.BytesIO()))

    monkeypatch.setattr(URLLib3Session, "send", send)
    tracemalloc.start()
    yield sizes
    tracemalloc.stop()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_an_object_is_in_memory_once(
    scheme: str, encrypted: bool, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is built, signed and sent. What botocore needs for its first request is not counted."""
    monkeypatch.setenv("KEY", KEY_TEXT)
    keys = KeySettings(key_env="KEY") if encrypted else KeySettings()
    store = open_store("s3://bucket", settings_for(f"{scheme}://store.test", encryption=keys))
    put_new(store, "first", b"")
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    canvas = ObjectBytes(new_seal(store, NAME), key=NAME, size=SIZE)
    for _ in range(0, SIZE, PIECE):
        canvas.write(bytes(PIECE))
    put_new(store, NAME, canvas.finish())
    _, peak = tracemalloc.get_traced_memory()
    assert sent[-1] >= SIZE
    assert SIZE <= peak - before < SIZE + 3 * PIECE
