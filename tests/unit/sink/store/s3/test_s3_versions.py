"""Former versions of a bucket: which there are, in which order they go, and that none comes back."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

import pytest
from support.servers.serving import serving
from support.servers.tiny_s3 import Fault, Request, TinyS3, settings_for

from tandem.backup_avro.chain import layout
from tandem.sink.store import ObjectStore, StoreTransientError, open_store
from tandem.sink.store.contract.former_versions import FormerVersion, versions_of
from tandem.spark_jobs.erasure.former_copies import FormerCopies, find_former_copies

PAIR = "pair"


class Bucket(TinyS3):
    """Keeps versions as AWS does: newest first, and under the id "null" what was put before versioning was on."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _Versioned
        self.versioned = True
        self.page = 1000
        self.kept: dict[str, list[tuple[str, bytes | None]]] = {}
        self.locked: set[tuple[str, str]] = set()

    def add(self, key: str, body: bytes | None) -> None:
        """Put an object, or hide it if it has no body."""
        there = self.kept.setdefault(key, [])
        if self.versioned:
            there.insert(0, (f"v{len(there)}", body))
        else:
            there[:] = [] if body is None else [("null", body)]


class _Versioned(Request):
    server: Bucket

    def serve(self) -> None:
        """Answer as S3 would."""
        kept = self.server.kept
        if self.command == "PUT":
            self.server.add(self.key, self.body)
            self.answer(200, headers={"ETag": '"x"'})
        elif self.command == "POST":
            for key in [key for key in kept if f"<Key>{key}</Key>".encode() in self.body]:
                self.server.add(key, None)
            self.answer(200, b"<DeleteResult></DeleteResult>")
        elif self.command == "DELETE":
            self.serve_delete(self.query["versionId"])
        elif "versions" in self.query:
            self.serve_versions()
        elif kept.get(self.key, [("", None)])[0][1] is None:
            self.fail(404, "NoSuchKey")
        else:
            self.answer(200, kept[self.key][0][1] or b"", headers={"Last-Modified": self.date_time_string()})

    def serve_delete(self, version: str) -> None:
        """Delete a version for good, unless a lock keeps it."""
        if (self.key, version) in self.server.locked:
            self.fail(403, "AccessDenied", "Object Lock")
            return
        left = [one for one in self.server.kept.pop(self.key) if one[0] != version]
        if left:
            self.server.kept[self.key] = left
        self.answer(204)

    def serve_versions(self) -> None:
        """One page, which may end between two versions of a key."""
        rows = [
            (key, version, body, place == 0)
            for key, versions in sorted(self.server.kept.items())
            for place, (version, body) in enumerate(versions)
        ]
        start = int(self.query.get("version-id-marker") or 0)
        end = start + self.server.page
        items = "".join(_row(*row, latest=latest) for *row, latest in rows[start:end])
        more = f"<NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>{end}</NextVersionIdMarker>"
        last = end >= len(rows)
        self.answer(200, said(f"<IsTruncated>{str(not last).lower()}</IsTruncated>{'' if last else more}{items}"))


def said(inner: str) -> bytes:
    """A page of a listing."""
    return f"<ListVersionsResult>{inner}</ListVersionsResult>".encode()


def _row(key: str, version: str, body: bytes | None, *, latest: bool) -> str:
    kind, size = ("DeleteMarker", "") if body is None else ("Version", f"<Size>{len(body)}</Size>")
    names = f"<Key>{escape(key)}</Key><VersionId>{version}</VersionId><IsLatest>{str(latest).lower()}</IsLatest>"
    return f"<{kind}>{names}{size}</{kind}>"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """A bucket with versioning."""
    tiny = Bucket()
    with serving(tiny) as tiny.url:
        yield tiny


@pytest.fixture
def versioned(bucket: Bucket) -> Iterator[ObjectStore]:
    """A store on it."""
    opened = open_store("s3://bucket/root", settings_for(bucket.url))
    yield opened
    opened.close()


def answers(body: bytes) -> Fault:
    """An answer with status 200."""
    return lambda request: request.answer(200, body) is None


def former(store: ObjectStore, prefix: str = "") -> list[FormerVersion]:
    """All former versions below a prefix."""
    versions = versions_of(store)
    assert versions is not None
    return list(versions.list_former(prefix))


def journal(seq: int) -> str:
    """The key of a journal, which an erasure counts."""
    return layout.journal_key(PAIR, "a", 1, seq=seq, nonce="abcdef0123456789")


def purged(store: ObjectStore) -> FormerCopies:
    """What a purge of everything reports."""
    return find_former_copies(store, PAIR, "orders", needed=(), purge=True)


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_purge_brings_no_object_back(bucket: Bucket, versioned: ObjectStore, page: int) -> None:
    """What was put before versioning was on lies under "null" below its marker, and goes before the marker does."""
    bucket.page = page
    keys = [journal(seq) for seq in range(3)]
    for since, key in enumerate(keys):
        bucket.versioned = since > 1
        versioned.put_if_absent(key, b"12345")
    bucket.versioned = True
    versioned.delete(keys)
    found = find_former_copies(versioned, PAIR, "orders", needed=(), purge=False)
    assert (found.versions, found.bytes) == (6, 15)
    assert purged(versioned) == FormerCopies(deleted=6)
    assert bucket.kept == {}
    assert [versioned.head(key) for key in keys] == [None] * 3


def test_a_locked_version_keeps_no_other(bucket: Bucket, versioned: ObjectStore) -> None:
    """It stays with its marker, so that its object does not come back, and is counted; all others go."""
    keys = [journal(seq) for seq in range(4)]
    for key in keys:
        versioned.put_if_absent(key, b"12345")
    versioned.delete(keys)
    locked = [f"root/{keys[number]}" for number in (0, 2)]
    bucket.locked = {(key, "v0") for key in locked}
    for deleted in (4, 0):
        found = purged(versioned)
        assert (found.versions, found.bytes, found.deleted) == (4, 10, deleted)
        assert found.error is not None
        assert keys[0] in found.error
        assert sorted(bucket.kept) == locked
    assert versioned.head(keys[0]) is None
    bucket.locked = set()
    assert purged(versioned) == FormerCopies(deleted=4)


@pytest.mark.parametrize("page", [1, 1000])
def test_the_versions_of_a_key_come_before_its_marker(bucket: Bucket, versioned: ObjectStore, page: int) -> None:
    """Whichever of them a deletion reaches last, no version is ever without its marker."""
    bucket.page = page
    for body in (b"1", b"2", None):
        bucket.add("root/p/1", body)
    bucket.add("root/p/2", b"3")
    assert [(one.key, one.size, one.marker) for one in former(versioned, "p/")] == [
        ("p/1", 1, False),
        ("p/1", 1, False),
        ("p/1", 0, True),
    ]


def test_a_bucket_that_never_had_versions_has_none(bucket: Bucket, versioned: ObjectStore) -> None:
    """Its objects are listed under "null", by some servers not even as the latest."""
    bucket.kept["root/p/1"] = [("null", b"1")]
    assert former(versioned, "p/") == []
    bucket.faults = [answers(said(f"<IsTruncated>false</IsTruncated>{_row('root/p/1', 'null', b'1', latest=False)}"))]
    assert former(versioned, "p/") == []


MORE = "<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>2</NextVersionIdMarker>"
WRONG = {
    "neither its end nor its middle": said(_row("root/p/1", "v0", b"1", latest=False)),
    "an end in other letters": said("<IsTruncated>False</IsTruncated>"),
    "a document of another server": b"<status>ok</status>",
    "nothing": b"",
    "truncated, and no marker": said("<IsTruncated>true</IsTruncated>"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_listing_that_s3_would_not_send(bucket: Bucket, versioned: ObjectStore, kind: str) -> None:
    """It is asked for again, and never taken for the end, or for a bucket without versions."""
    for body in (b"1", b"2", None):
        bucket.add("root/p/1", body)
    bucket.faults = [answers(WRONG[kind])]
    assert len(former(versioned, "p/")) == 3
    bucket.faults = [answers(WRONG[kind])] * 3
    with pytest.raises(StoreTransientError):
        former(versioned, "p/")


def test_a_listing_that_goes_in_circles(bucket: Bucket, versioned: ObjectStore) -> None:
    """The page that names the marker of an earlier one is not dropped: the listing fails."""
    circle = answers(said(MORE + _row("root/p/1", "v0", b"1", latest=False)))
    bucket.faults = [circle] * 4
    with pytest.raises(StoreTransientError, match="the answer is no S3 answer"):
        former(versioned, "p/")
