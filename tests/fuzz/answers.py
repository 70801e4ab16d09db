"""Readers of what servers answer: something that calls itself S3, or a KMS. Whole answers, with their headers.

The requests are real ones of the SDK, over loopback. Whatever is answered, a caller gets what S3 could have said, or an
error of ours.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import socketserver
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

from botocore.config import Config
from support.servers.serving import ANY_PORT, serving

from fuzz import hostile
from fuzz.surface import Surface
from tandem.backup_avro.record.envelope import DATA_KEY_SIZE, LONGEST_WRAPPING_KEY
from tandem.sink.encryption import kms
from tandem.sink.store import ObjectStore, StoreAccess, UploadInfo, open_store
from tandem.sink.store.contract.object_keys import is_key

_MOST: Final = 4096
_LENGTH: Final = re.compile(rb"(?i)(?<=content-length: )[^\r]*")


class _Server(socketserver.ThreadingTCPServer):
    """Answers every request with the same bytes, and hangs up."""

    daemon_threads = True
    allow_reuse_address = True
    answer = b""

    def __init__(self) -> None:
        super().__init__(ANY_PORT, _Request)


class _Request(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Read a request, as it is sent by the SDK."""
        try:
            length = 0
            while (line := self.rfile.readline()) not in {b"", b"\r\n"}:
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if length and self.server.answer[:12] != b"HTTP/1.1 100":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.rfile.read(length)
            self.wfile.write(self.server.answer)
        except OSError:  # it was answered enough
            return


def _whole(status: str, headers: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _twisted(rng: random.Random, sound: bytes, more: list[bytes]) -> bytes:
    """Hurt bytes anywhere, or change, drop or repeat one header or one element; mostly the length fits again."""
    if rng.random() < 0.3:
        return hostile.bytes_of(rng, [sound, *more])
    head, _, body = sound.partition(b"\r\n\r\n")
    lines, pieces = head.split(b"\r\n"), re.split(rb"(?<=>)(?=.)", body)
    chosen = pieces if len(pieces) > 1 and rng.random() < 0.6 else lines
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(chosen))
        match rng.randrange(4):
            case 0:
                del chosen[at]
            case 1:
                chosen.insert(at, rng.choice(chosen))
            case 2:
                chosen[at] = hostile.text_of(rng, [chosen[at].decode(errors="replace")]).encode(errors="replace")
            case _:
                chosen[at] = _with(chosen[at], rng.choice(_WORST))
        if not chosen:
            break
    body = b"".join(pieces)
    if rng.random() < 0.2:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = b"\r\n".join(lines)
    if rng.random() < 0.8:
        head = _LENGTH.sub(b"%d" % len(body), head)
    return head + b"\r\n\r\n" + body


_WORST: Final = (b"-1", b"9" * 30, b"9" * 6000, b"", b"1e400", b"0001-01-01T00:00:00+14:00", b"\xff")


def _with(line: bytes, value: bytes) -> bytes:
    """Return a header, or the end of an element, with another value."""
    if b": " in line:
        return line.partition(b": ")[0] + b": " + value
    return value + line[max(0, line.find(b"<")) :]


# --- S3 ---------------------------------------------------------------------------------------------------------------

_TIMES: Final = "Date: Wed, 25 Nov 2026 10:00:00 GMT\r\nLast-Modified: Wed, 25 Nov 2026 09:00:00 GMT\r\n"
_LISTED: Final = "".join(
    f"<Contents><Key>p/a/{n}</Key><LastModified>2026-11-25T09:00:00.000Z</LastModified><Size>{n}</Size></Contents>"
    for n in range(3)
)
_SOUND: Final[Mapping[str, bytes]] = {
    "get": _whole("200 OK", f'{_TIMES}ETag: "x"\r\nx-amz-checksum-crc32: DUoRhQ==\r\n', "hello world"),
    "range": _whole("206 Partial Content", f"{_TIMES}Content-Range: bytes 0-4/11\r\n", "hello"),
    "head": _whole("206 Partial Content", f"{_TIMES}Content-Range: bytes 0-0/11\r\n", "h"),
    "list": _whole(
        "200 OK",
        f"{_TIMES}Content-Type: application/xml\r\n",
        f"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>{_LISTED}</ListBucketResult>",
    ),
    "list page": _whole(
        "200 OK",
        _TIMES,
        f"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>{_LISTED}"
        "</ListBucketResult>",
    ),
    "folders": _whole(
        "200 OK",
        _TIMES,
        "<ListBucketResult><IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>p/a/</Prefix></CommonPrefixes>"
        "</ListBucketResult>",
    ),
    "uploads": _whole(
        "200 OK",
        _TIMES,
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>p/a/1</NextKeyMarker><Upload>"
        "<Key>p/a/1</Key><UploadId>u</UploadId><Initiated>2026-11-25T09:00:00Z</Initiated></Upload>"
        "</ListMultipartUploadsResult>",
    ),
    "delete": _whole(
        "200 OK", _TIMES, "<DeleteResult><Error><Key>p/a/1</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
    ),
    "put": _whole("200 OK", f'{_TIMES}ETag: "x"\r\n', ""),
    "refused": _whole("403 Forbidden", _TIMES, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"),
    "missing": _whole("404 Not Found", _TIMES, "<Error><Code>NoSuchKey</Code><Key>p/a/1</Key></Error>"),
}


def _twisted_s3(rng: random.Random) -> tuple[str, bytes]:
    call = rng.choice(list(_CALLS))
    sound = _SOUND[call] if rng.random() < 0.9 else rng.choice(list(_SOUND.values()))
    return call, _twisted(rng, sound, list(_SOUND.values()))


def _got(data: bytes) -> None:
    if len(data) > _MOST:
        raise AssertionError(f"{len(data)} bytes, and {_MOST} are the most")


def _listed(store: ObjectStore) -> None:
    for info in store.list("a/"):
        if not is_key(info.key) or not info.key.startswith("a/") or info.size < 0 or info.modified.tzinfo is None:
            raise AssertionError(f"believed in {info!r:.200}")


def _foldered(store: ObjectStore) -> None:
    for name in (*store.list_folders("a/"), *store.list_files("a/")):
        if not is_key(f"a/{name}"):
            raise AssertionError(f"believed in {name!r:.200}")


def _headed(store: ObjectStore) -> None:
    info = store.head("a/1")
    if info is not None and (info.size < 0 or info.modified.tzinfo is None):
        raise AssertionError(f"believed in {info!r:.200}")


def _uploaded(store: ObjectStore) -> None:
    for upload in store.list_uploads("a/"):
        if not isinstance(upload, UploadInfo) or not is_key(upload.key):
            raise AssertionError(f"believed in {upload!r:.200}")


_CALLS: Final[Mapping[str, Callable[[ObjectStore], object]]] = {
    "get": lambda store: _got(store.get("a/1", most=_MOST)),
    "range": lambda store: _got(store.get("a/1", start=0, end=5, most=_MOST)),
    "head": _headed,
    "list": _listed,
    "list page": _listed,
    "folders": _foldered,
    "uploads": _uploaded,
    "delete": lambda store: store.delete(["a/1", "a/2"]),
    "put": lambda store: store.put_if_absent("a/1", b"hello"),
}


@contextmanager
def _s3() -> Iterator[Surface]:
    server = _Server()
    with serving(server) as url:
        settings = StoreAccess(
            endpoint_url=url, access_key_id="AKIA", secret_access_key="s", attempts=1, read_timeout=5.0
        )
        store = open_store("s3://bucket/p", settings)

        def read(job: tuple[str, bytes]) -> object:
            call, server.answer = job
            return _CALLS[call](store)

        try:
            yield Surface(name="answer of S3", twist=_twisted_s3, read=read)
        finally:
            store.close()


# --- a KMS ------------------------------------------------------------------------------------------------------------

_ARN: Final = "arn:aws:kms:eu-central-1:111122223333:key/0d0d0d0d-aaaa-bbbb-cccc-0123456789ab"
_KEY: Final = base64.b64encode(bytes(range(32))).decode()
_GIVEN: Final = {"KeyId": _ARN, "Plaintext": _KEY, "CiphertextBlob": base64.b64encode(bytes(184)).decode()}
_OF_KMS: Final = (
    json.dumps(_GIVEN).encode(),
    json.dumps({"KeyId": _ARN, "Plaintext": _KEY, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}).encode(),
    b'{"__type":"AccessDeniedException","message":"no"}',
)
_SIZES: Final = (0, 1, 16, 31, 32, 33, 64, LONGEST_WRAPPING_KEY, LONGEST_WRAPPING_KEY + 1)


def _twisted_kms(rng: random.Random) -> tuple[bool, bytes]:
    if rng.random() < 0.3:
        name = rng.choice(("Plaintext", "CiphertextBlob"))
        body = json.dumps(_GIVEN | {name: base64.b64encode(bytes(rng.choice(_SIZES))).decode()}).encode()
    else:
        body = hostile.document_of(rng, list(_OF_KMS))
    status = rng.choice(("200 OK", "200 OK", "200 OK", "400 Bad Request", "500 Internal Server Error", "301 Moved"))
    kind = rng.choice(("application/x-amz-json-1.1", "text/html"))
    answer = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (
        status.encode(), kind.encode(), len(body)
    )  # fmt: skip
    answer += body
    return rng.random() < 0.5, _twisted(rng, answer, []) if rng.random() < 0.2 else answer


@contextmanager
def _kms() -> Iterator[Surface]:
    environment = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s"}
    once = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1})
    server = _Server()
    with serving(server) as url, mock.patch.dict(os.environ, environment), mock.patch.object(kms, "_CONFIG", once):
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += 2 * 3600.0  # nothing that was given before is fresh
            return now

        key = kms.KmsKey(_ARN, endpoint_url=url, monotonic=clock)
        number = 0

        def read(job: tuple[bool, bytes]) -> object:
            nonlocal number
            number += 1
            opens, server.answer = job
            stored = b"blob"
            if opens:
                plain = key.wrapping_key(stored, "shop", number)
            else:
                plain, stored = key.new_wrapping_key("shop", number)
            if len(plain) != DATA_KEY_SIZE or not 0 < len(stored) <= LONGEST_WRAPPING_KEY:
                raise AssertionError(f"believed in a key of {len(plain)} bytes from {len(stored)}")
            return plain

        yield Surface(name="answer of a KMS", twist=_twisted_kms, read=read)


OPENED: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "answer of S3": _s3,
    "answer of a KMS": _kms,
}
