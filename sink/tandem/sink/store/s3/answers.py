"""Reads and checks the answers of S3 that are no errors. Pure, but for the reading of a body.

The server is not assumed to be S3: these functions raise one of `aws_session.MISREAD` for an answer that lacks a field,
or has a value that no answer of S3 can have, and `S3Caller.call` turns that into an error of the store.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any, Final

from tandem.sink.store.contract.store_clock import utc

_OK: Final = 200
_WITH_END: Final = frozenset({"ListObjectsV2", "ListObjectVersions"})
_MORE_OR_NOT: Final = re.compile(rb"IsTruncated>(?:true|false)</")


def size_of(answer: Any) -> int:  # noqa: ANN401 (the SDK's answers are dicts of a type for each)
    """Return the size in bytes of an object, or of the range that is sent. Raises ValueError if it is negative."""
    return _positive(answer["ContentLength"])


def read_body(answer: Any) -> bytes:  # noqa: ANN401 (as above)
    """Return the body, checked by the SDK, and at most as long as the answer announces."""
    stream, size = answer["Body"], size_of(answer)
    if "transfer-encoding" not in answer["ResponseMetadata"]["HTTPHeaders"]:
        whole: bytes = stream.read()
        return whole
    # A chunked body may be longer than announced.
    data: bytes = stream.read(size + 1)
    if len(data) > size:
        raise ValueError("more bytes than were announced")
    stream.read(1)  # the SDK checks the checksum at the end
    return data


def listed_objects(page: Any, prefix: str) -> Sequence[tuple[str, int, datetime]]:  # noqa: ANN401 (as above)
    """Return name, size and time of the objects of a page."""
    return [
        (_below(prefix, item["Key"]), _positive(item["Size"]), utc(item["LastModified"]))
        for item in page.get("Contents", ())
    ]


def listed_files(page: Any, prefix: str) -> Sequence[str]:  # noqa: ANN401 (as above)
    """Return the names of the objects of a page."""
    return [_below(prefix, item["Key"]) for item in page.get("Contents", ())]


def listed_folders(page: Any, prefix: str) -> Sequence[str]:  # noqa: ANN401 (as above)
    """Return the names of the folders of a page, without the slash at their end."""
    names = [_below(prefix, item["Prefix"]) for item in page.get("CommonPrefixes", ())]
    if not all(name.endswith("/") for name in names):
        raise ValueError("a folder without its end")
    return [name[:-1] for name in names]


def listed_uploads(page: Any, prefix: str) -> Sequence[tuple[str, str, datetime]]:  # noqa: ANN401 (as above)
    """Return name, id and time of the uploads of a page."""
    return [
        (_below(prefix, item["Key"]), _text(item["UploadId"]), utc(item["Initiated"]))
        for item in page.get("Uploads", ())
    ]


def failed_deletes(answer: Any, asked: Sequence[str]) -> dict[str, tuple[str, str]]:  # noqa: ANN401 (as above)
    """Return code and message for each name that could not be deleted. Raises ValueError for other names."""
    failed = {
        _text(item["Key"]): (_text(item.get("Code", "unknown")), _text(item.get("Message", "")))
        for item in answer.get("Errors", ())
        if item.get("Code") != "NoSuchKey"
    }
    if not failed.keys() <= set(asked):
        raise ValueError("a name that was not asked for")
    return failed


def require_end(operation_model: Any, response_dict: Any, **_: object) -> None:  # noqa: ANN401 (as the SDK calls it)
    """Raise ValueError for a listing without a valid IsTruncated: the SDK takes all but "true" for the end."""
    if response_dict["status_code"] == _OK and operation_model.name in _WITH_END:
        body: bytes = response_dict["body"]
        if _MORE_OR_NOT.search(body) is None:
            raise ValueError("neither the end of a listing nor its middle")


def next_page(page: Any, seen: Container[str]) -> dict[str, str]:  # noqa: ANN401 (as above)
    """Return the arguments for the page after `page`, which is not the last; `seen` are the tokens of earlier pages."""
    following = _text(page["NextContinuationToken"])
    if not following or following in seen:
        raise ValueError("a listing that never ends")
    return {"ContinuationToken": following}


def next_uploads(page: Any, seen: Container[tuple[str, ...]]) -> dict[str, str] | None:  # noqa: ANN401 (as above)
    """Return the arguments for the next page, None if there is none; `seen` are the markers of earlier pages."""
    if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
        return None
    return _unseen(seen, KeyMarker=page["NextKeyMarker"], UploadIdMarker=page.get("NextUploadIdMarker", ""))


def next_versions(page: Any, seen: Container[tuple[str, ...]]) -> dict[str, str]:  # noqa: ANN401 (as above)
    """Return the arguments for the page after `page`, which is not the last; `seen`: the markers of earlier ones."""
    return _unseen(seen, KeyMarker=page["NextKeyMarker"], VersionIdMarker=page["NextVersionIdMarker"])


def _unseen(seen: Container[tuple[str, ...]], **markers: Any) -> dict[str, str]:  # noqa: ANN401 (as above)
    following = {name: _text(marker) for name, marker in markers.items()}
    if tuple(following.values()) in seen:
        raise ValueError("a listing that never ends")
    return following


def _below(prefix: str, name: object) -> str:
    found = _text(name)
    if not found.startswith(prefix):
        raise ValueError("a name that was not asked for")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("no size")
    return value
