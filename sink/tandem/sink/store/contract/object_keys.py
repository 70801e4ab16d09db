"""Checks object keys. One rule applies to every store, so that a key that works on one works on all.

Keys also come from outside, from chain entries that a restore reads. A key that passes can't leave the store's root.
"""

from __future__ import annotations

from tandem.sink.store.contract.object_store import BadKeyError

MAX_KEY_BYTES = 1024
"""S3's limit in UTF-8 bytes. The root's prefix counts too; the store checks the sum."""


def check_key(key: str) -> str:
    """Return `key` if it can name an object, else raise BadKeyError.

    Segments are split by `/`; none is empty, `.` or `..`; the first one does not begin with a dot (such folders are
    the store's own); no control characters and no backslash; well-formed Unicode of at most 1024 bytes.
    """
    if not key:
        raise BadKeyError(
            "an object key is empty",
            code="TDM-S037",
            remedy="this is a defect or a forged entry; report where it came from",
        )
    _check_text(key)
    _check_segments(key, key.split("/"))
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can start with it, else raise BadKeyError. It may be empty or end in mid-segment."""
    _check_text(prefix)
    _check_segments(prefix, prefix.split("/")[:-1])
    return prefix


def check_folder(prefix: str) -> str:
    """Return `prefix` if it is empty or names a folder with its trailing slash, else raise BadKeyError."""
    if prefix and not prefix.endswith("/"):
        raise BadKeyError(
            f"the folder {prefix!r} lacks its trailing slash", code="TDM-S038", remedy="this is a defect; report it"
        )
    return check_prefix(prefix)


def is_key(key: str) -> bool:
    """Return whether `key` passes `check_key`."""
    try:
        check_key(key)
    except BadKeyError:
        return False
    return True


def check_range(start: int, end: int | None) -> None:
    """Raise ValueError unless 0 <= start <= end."""
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"bytes [{start}, {end}) are no range")


def safe_start(prefix: str, after: str) -> str | None:
    """Return a StartAfter that skips no key > `after` with `prefix`, on servers of either order; None for no start.

    AWS orders keys by bytes. SeaweedFS orders folder by folder, as if `/` were less than any other character. The two
    differ only where a name is another folder's whole name followed by a character below `/` (such as `-`, `.` or
    `+`): `a/1` is greater than `a-b` by bytes, and comes first folder by folder. Besides, SeaweedFS leaves out the
    folder `a/` when the start is `a`. So the start is `after` up to a character that is greater than `/`, with none
    below `/` before it: no folder with wanted keys precedes such a start or is named by it. The caller drops the keys
    at or below `after`.

    `after` starts with `prefix`.
    """
    rest = after[len(prefix) :]
    cut = next((index for index, char in enumerate(rest) if char < "/"), len(rest))
    start = rest[: max(0, cut - 1)]
    while start and rest[len(start)] == "/":
        start = start[:-1]
    return prefix + start if start else None


def _check_text(key: str) -> None:
    if any(char < " " or char in "\\\x7f" or "\ud800" <= char <= "\udfff" for char in key):
        raise BadKeyError(
            f"the key {key!r} holds a control character, a backslash or a broken one",
            code="TDM-S039",
            remedy="rename it, or report where it came from",
        )
    if len(key.encode()) > MAX_KEY_BYTES:
        raise BadKeyError(
            f"the key {key[:80]!r}… is longer than {MAX_KEY_BYTES} bytes", code="TDM-S040", remedy="use a shorter root"
        )


def _check_segments(key: str, segments: list[str]) -> None:
    if any(segment in {"", ".", ".."} for segment in segments):
        raise BadKeyError(
            f"the key {key!r} is absolute or has an empty, '.' or '..' segment",
            code="TDM-S041",
            remedy="keys are relative to the store's root; report where this one came from",
        )
    if segments and segments[0].startswith("."):
        raise BadKeyError(
            f"the key {key!r} begins with a dot",
            code="TDM-S042",
            remedy="top-level names with a dot are the store's own; rename it",
        )
