"""Members of streams and share groups, for which no Python client has the requests (KIP-1071, KIP-932)."""

from __future__ import annotations

import socket
import struct
import time
import uuid

_STREAMS_GROUP_HEARTBEAT = 88
_SHARE_GROUP_HEARTBEAT = 76
_CORRELATION = 7
_EMPTY = b"\x01"
_NULL = b"\x00"
_NO_TAGS = b"\x00"
_ABSENT = b"\xff"
_PRESENT = b"\x01"
#: The coordinator is loading, moves, or its topic is being created.
_AGAIN = frozenset({14, 15, 16})
_JOINS, _LEAVES = 0, -1


def join_streams_group(bootstrap: str, group: str, topic: str) -> str:
    """Join as the one member of a streams group that reads `topic`; return the member's id."""
    member = str(uuid.uuid4())
    subtopology = _text("0") + _array(_text(topic)) + _EMPTY * 5 + _NO_TAGS
    topology = _PRESENT + struct.pack(">i", 0) + _array(subtopology) + _NO_TAGS
    _streams(bootstrap, group, member, _JOINS, topology=topology, tasks=_EMPTY, process=_text(member))
    return member


def leave_streams_group(bootstrap: str, group: str, member: str) -> None:
    """Leave the group, which then has no member."""
    _streams(bootstrap, group, member, _LEAVES, topology=_ABSENT, tasks=_NULL, process=_NULL)


def join_share_group(bootstrap: str, group: str, topic: str) -> str:
    """Join a share group that reads `topic`; return the member's id."""
    member = str(uuid.uuid4())
    _share(bootstrap, group, member, _JOINS, _array(_text(topic)))
    return member


def leave_share_group(bootstrap: str, group: str, member: str) -> None:
    """Leave the group, which then has no member."""
    _share(bootstrap, group, member, _LEAVES, _NULL)


def _streams(
    bootstrap: str, group: str, member: str, epoch: int, *, topology: bytes, tasks: bytes, process: bytes
) -> None:
    ids = _text(group) + _text(member) + struct.pack(">ii", epoch, 0) + _NULL * 2
    # Behind the process: no endpoint, tags, offsets of tasks or their ends, and no shutdown of the application.
    rest = struct.pack(">i", 30_000) + topology + tasks * 3 + process + _ABSENT + _NULL * 3 + b"\x00"
    _send(bootstrap, _STREAMS_GROUP_HEARTBEAT, ids + rest + _NO_TAGS)


def _share(bootstrap: str, group: str, member: str, epoch: int, topics: bytes) -> None:
    body = _text(group) + _text(member) + struct.pack(">i", epoch) + _NULL + topics + _NO_TAGS
    _send(bootstrap, _SHARE_GROUP_HEARTBEAT, body, version=1)


def _send(bootstrap: str, api: int, body: bytes, *, version: int = 0) -> None:
    """Send until the coordinator answers; an error fails the test."""
    deadline = time.monotonic() + 60
    while (error := _asked(bootstrap, api, version, body))[0] in _AGAIN and time.monotonic() < deadline:
        time.sleep(0.2)
    assert error[0] == 0, error


def _asked(bootstrap: str, api: int, version: int, body: bytes) -> tuple[int, bytes]:
    """Return the error code and what follows it."""
    host, _, port = bootstrap.rpartition(":")
    frame = struct.pack(">hhih", api, version, _CORRELATION, -1) + _NO_TAGS + body
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        stream = connection.makefile("rb")
        size = struct.unpack(">i", stream.read(4))[0]
        answer = stream.read(size)
    correlation, tags, _throttled, code = struct.unpack_from(">ibih", answer)
    assert (correlation, tags) == (_CORRELATION, 0)
    return code, answer[11:]


def _text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 127, "its length is one byte"
    return bytes([len(data) + 1]) + data


def _array(*items: bytes) -> bytes:
    return bytes([len(items) + 1]) + b"".join(items)
