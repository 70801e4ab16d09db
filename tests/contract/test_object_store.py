"""What every object store must do: one suite over the file store, three S3 servers, Azurite and fake-gcs-server.

The emulators that have to be built first (`support.emulators`) run in `make store-test` and `make test-all`.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.emulators.servers import BUCKET, Azurite, VersityGw, azure_settings, gcs_settings

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.signatures import Signer
from tandem.backup_avro.errors import DamagedError
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store import (
    BadKeyError,
    ObjectMissingError,
    ObjectStore,
    PutResult,
    StoreAccess,
    StoreMissingError,
    UploadInfo,
)
from tandem.sink.store.open_store import open_adapter, open_store

MIB = 1024 * 1024


@dataclass(frozen=True)
class Backend:
    """A kind of store: opens one at a root of its own, or at a root that does not exist.

    moto dates every upload to the same day of 2010, so `dates_uploads` is False for it. Without `begin_upload` the
    store has no uploads in parts.
    """

    open: Callable[[], Any]
    open_missing: Callable[[], Any]
    begin_upload: Callable[[Any, str], object] | None
    dates_uploads: bool = True


def s3_settings(endpoint_url: str, access: str, secret: str, **more: Any) -> StoreAccess:
    """Settings of a local server."""
    return StoreAccess(
        endpoint_url=endpoint_url,
        region="us-east-1",
        access_key_id=access,
        secret_access_key=secret,
        **more,
    )


def s3_backend(bucket: str, settings: StoreAccess, *, dates_uploads: bool = True) -> Backend:
    """A backend on a bucket that exists."""

    def begin(store: Any, key: str) -> object:
        return store._client.create_multipart_upload(Bucket=bucket, Key=store._root + key)

    return Backend(
        open=lambda: open_adapter(f"s3://{bucket}/run+1/{secrets.token_hex(6)}", settings),
        open_missing=lambda: open_adapter(f"s3://{bucket}-{secrets.token_hex(4)}/x", settings),
        begin_upload=begin,
        dates_uploads=dates_uploads,
    )


@pytest.fixture
def file_backend(tmp_path: Path) -> Backend:
    """Stores in folders of this test."""

    def begin(store: Any, key: str) -> None:
        _, descriptor = store._create_temporary(key)
        os.close(descriptor)

    return Backend(
        open=lambda: open_adapter(tmp_path.as_uri(), StoreAccess()),
        open_missing=lambda: open_adapter((tmp_path / "missing").as_uri(), StoreAccess()),
        begin_upload=begin,
    )


@pytest.fixture
def signed_backend(tmp_path: Path, file_backend: Backend) -> Backend:
    """The same by way of a store that signs documents: all that is none passes through."""
    (tmp_path / "key.pem").write_bytes((signer := Signer.generate()).pem())
    settings = StoreAccess(
        signing_key_file=str(tmp_path / "key.pem"), trusted_keys=signer.public, require_signatures=True
    )
    (tmp_path / "signed").mkdir()
    root = (tmp_path / "signed").as_uri()
    begin = file_backend.begin_upload
    assert begin is not None
    return Backend(
        open=lambda: open_store(root, settings),
        open_missing=lambda: open_store((tmp_path / "missing").as_uri(), settings),
        begin_upload=lambda _, key: begin(open_adapter(root, settings), key),
    )


@pytest.fixture
def seaweedfs_backend(s3: S3Server) -> Backend:
    """Stores on the sandbox's S3 server."""
    return s3_backend(s3.bucket, s3_settings(s3.endpoint_url, s3.key.access_key, s3.key.secret_key))


@pytest.fixture
def moto_backend(moto_url: str) -> Backend:
    settings = s3_settings(moto_url, "any", "thing")
    client = boto3.client(
        "s3", endpoint_url=moto_url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="thing"
    )
    client.create_bucket(Bucket="contract")
    client.close()
    return s3_backend("contract", settings, dates_uploads=False)


@pytest.fixture
def versitygw_backend(versitygw: VersityGw) -> Backend:
    """Stores on versitygw."""
    key = versitygw.key
    return s3_backend(BUCKET, s3_settings(versitygw.endpoint_url, key.access_key, key.secret_key))


def cloud_backend(scheme: str, settings: StoreAccess) -> Backend:
    """A backend on the emulators' bucket."""
    return Backend(
        open=lambda: open_adapter(f"{scheme}://{BUCKET}/run+1/{secrets.token_hex(6)}", settings),
        open_missing=lambda: open_adapter(f"{scheme}://{BUCKET}-{secrets.token_hex(4)}/x", settings),
        begin_upload=None,
    )


@pytest.fixture
def azurite_backend(azurite: Azurite) -> Backend:
    """Stores on Azurite."""
    return cloud_backend("az", StoreAccess(**azure_settings(azurite)))


@pytest.fixture
def gcs_backend(gcs_url: str, tmp_path: Path) -> Backend:
    """Stores on fake-gcs-server."""
    return cloud_backend("gs", StoreAccess(**gcs_settings(gcs_url, tmp_path)))


BUILT = ("versitygw", "azurite", "gcs")


@pytest.fixture(
    params=["file", "signed", "seaweedfs", "moto", *(pytest.param(name, marks=pytest.mark.slow) for name in BUILT)]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    found: Backend = request.getfixturevalue(f"{request.param}_backend")
    return found


@pytest.fixture
def store(backend: Backend) -> Iterator[ObjectStore]:
    opened: ObjectStore = backend.open()
    yield opened
    opened.close()


def keys_of(store: ObjectStore, prefix: str = "", after: str | None = None) -> list[str]:
    """The listed keys as they come."""
    return [info.key for info in store.list(prefix, after=after)]


def put_all(store: ObjectStore, keys: list[str]) -> None:
    """Create every key, its own name as the body."""
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda key: store.put_if_absent(key, key.encode()), keys)) <= {PutResult.CREATED}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_put_creates_once_and_never_replaces(store: ObjectStore, kind: Callable[[bytes], bytes]) -> None:
    """The second put says EXISTS and the first body stays, whatever the second one is."""
    assert store.put_if_absent("a/b.json", kind(b"first")) is PutResult.CREATED
    assert store.put_if_absent("a/b.json", kind(b"first")) is PutResult.EXISTS
    assert store.put_if_absent("a/b.json", kind(b"other, longer")) is PutResult.EXISTS
    assert store.get("a/b.json") == b"first"


def test_of_many_writers_at_once_exactly_one_creates(store: ObjectStore) -> None:
    """Whoever was told CREATED is the one whose bytes are there, in a folder that did not exist before."""
    for number in range(3):
        key = f"race/{number}/object"
        barrier = threading.Barrier(8)

        def put(body: bytes, key: str = key, barrier: threading.Barrier = barrier) -> PutResult:
            barrier.wait()
            return store.put_if_absent(key, body)

        bodies = [secrets.token_bytes(100) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(put, bodies))
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is PutResult.CREATED]
        assert winners == [store.get(key)]


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    """Size 0 is neither missing nor overwritable."""
    assert store.put_if_absent("empty", b"") is PutResult.CREATED
    assert store.put_if_absent("empty", b"x") is PutResult.EXISTS
    info = store.head("empty")
    assert info is not None
    assert info.size == 0
    assert store.get("empty") == b""
    assert store.get("empty", end=4) == b""
    assert [listed.size for listed in store.list("empty")] == [0]


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 10), (3, 7), (9, 10), (7, None), (5, 99), (10, None), (11, 20), (4, 4)]
)
def test_a_range_is_a_slice(store: ObjectStore, start: int, end: int | None) -> None:
    """Ranges behave as slices of the body do, past its end too."""
    store.put_if_absent("object", b"0123456789")
    assert store.get("object", start=start, end=end) == b"0123456789"[start:end]


def test_more_than_is_wanted_is_not_read(store: ObjectStore) -> None:
    """A document has a largest size; of the bytes that are asked for, not of the object."""
    store.put_if_absent("o", b"0123456789")
    assert store.get("o", most=10) == b"0123456789"
    assert store.get("o", start=2, end=5, most=3) == b"234"
    assert store.get("o", start=8, end=99, most=2) == b"89"
    for wanted in ({"most": 9}, {"start": 2, "end": 5, "most": 2}, {"start": 1, "most": 8}):
        with pytest.raises(DamagedError, match=r"^o has \d+ bytes, and nothing that belongs there has more than \d"):
            store.get("o", **wanted)
    assert store.get("o") == b"0123456789"


def test_a_missing_object_is_told_apart(store: ObjectStore) -> None:
    """Get raises with the key in its message, head returns None; a folder is no object."""
    store.put_if_absent("folder/object", b"x")
    for key in ("nothing", "folder", "folder/nothing", "folder/object2", "object"):
        assert store.head(key) is None
        with pytest.raises(ObjectMissingError, match=key):
            store.get(key)
        with pytest.raises(ObjectMissingError, match=key):
            store.get(key, start=2, end=2)
        with pytest.raises(ObjectMissingError, match=key):
            store.get(key, start=2, end=5)


def test_head_tells_size_and_the_store_s_time(store: ObjectStore) -> None:
    """The time is close to the store's clock, within its resolution and a slow machine's doing."""
    store.put_if_absent("object", bytes(12345))
    info = store.head("object")
    assert info is not None
    assert (info.key, info.size) == ("object", 12345)
    assert abs(info.modified - store.now()) < timedelta(seconds=30)
    (listed,) = store.list("object")
    assert listed.size == info.size
    assert abs(listed.modified - info.modified) < timedelta(seconds=2)


def test_a_folder_lists_in_key_order(store: ObjectStore) -> None:
    """Names of one folder come ascending whatever the order of writing, and `after` cuts exactly."""
    keys = [f"gen/00000001/{number:020d}.json" for number in (5, 1, 10, 9, 0, 100)]
    put_all(store, [*keys, "gen/00000001.json", "gen/00000002.json"])
    assert keys_of(store, "gen/00000001/") == sorted(keys)
    for after in (*keys, "gen/00000001/", "gen/00000001/00000000000000000009"):
        assert keys_of(store, "gen/00000001/", after) == sorted(key for key in keys if key > after)


def test_more_keys_than_a_page(store: ObjectStore) -> None:
    """Listing and deleting go on past 1000 keys, and a listing may start in the middle."""
    keys = [f"many/{number:05d}+{number % 7}.avro" for number in range(1005)]
    put_all(store, keys)
    assert keys_of(store, "many/") == keys
    assert keys_of(store, "many/", keys[1000]) == keys[1001:]
    assert keys_of(store, "many/", keys[3]) == keys[4:]
    store.delete(keys[1:])
    assert keys_of(store, "many/") == keys[:1]


ODD_NAMES = [
    "a",
    "a.b",
    "a-b",
    "a_b",
    "a+b",
    "a=b",
    "A",
    "a0",
    "..a",
    "a..",
    "%41",
    "a b",
    "é",
    "\U0001f40d",
    "a,(b)'!*",
]


def test_odd_names_come_back_as_they_went_in(store: ObjectStore) -> None:
    """Dots, signs that URLs escape and other scripts are kept, in folders and in object names."""
    keys = [f"p/topics/{name}/partition=3/{name}+3+{7:020d}+{9:020d}+0123456789abcdef.avro" for name in ODD_NAMES]
    put_all(store, keys)
    assert sorted(keys_of(store, "p/")) == sorted(keys)
    assert all(store.get(key) == key.encode() for key in keys)
    assert list(store.list_folders("p/topics/")) == sorted(ODD_NAMES)
    for name, key in zip(ODD_NAMES, keys, strict=True):
        assert keys_of(store, f"p/topics/{name}/") == [key]
    store.delete(keys)
    assert keys_of(store, "p/") == []


def test_after_means_the_same_on_every_store(store: ObjectStore) -> None:
    """Servers order `a/1` and `a-b` differently; what comes after a key is the same set everywhere."""
    keys = ["a/1", "a/2/1", "a-b/1", "a.b", "a+b", "a0", "a=b/1", "ab/c-d", "ab/c/e", "ab/c0", "b", "x/y/z"]
    keys = [f"t/{key}" for key in keys]
    put_all(store, keys)
    for after in [*keys, "t/a", "t/a/", "t/a-", "t/ab/c", "t/ab/c/", "t/c", "s", "u", "t/a/1/", "t"]:
        for prefix in ("t/", "t/a", "t/a/", "t/ab/c"):
            wanted = sorted(key for key in keys if key.startswith(prefix) and key > after)
            assert sorted(keys_of(store, prefix, after)) == wanted, (prefix, after)


def test_a_prefix_may_end_in_mid_name(store: ObjectStore) -> None:
    """A prefix is characters, not a folder."""
    keys = ["claim/00000001.json", "claim/00000012.json", "claim/00000012/1", "claim2/0"]
    put_all(store, keys)
    assert sorted(keys_of(store, "claim/0000001")) == keys[1:3]
    assert sorted(keys_of(store, "claim")) == sorted(keys)
    assert keys_of(store, "claim/00000012/") == keys[2:3]
    assert keys_of(store, "nothing") == []
    assert keys_of(store, "claim/00000001.json/") == []


def test_folders(store: ObjectStore) -> None:
    """Next segments only, each once, objects of the folder itself left out."""
    put_all(store, ["top", "a/1", "a/2", "a/b/c/1", "a-b/1", "z/y/x"])
    assert list(store.list_folders("")) == ["a", "a-b", "z"]
    assert list(store.list_folders("a/")) == ["b"]
    assert list(store.list_folders("a/b/c/")) == []
    assert list(store.list_folders("nothing/")) == []


def test_files(store: ObjectStore) -> None:
    """The objects of a folder itself, in order; deeper ones and folders left out."""
    put_all(store, ["top", "a.json", "a/1", "a/2.json", "a/2/x", "a/b/c/1", "a-b/1", "z/y/x"])
    assert list(store.list_files("")) == ["a.json", "top"]
    assert list(store.list_files("a/")) == ["1", "2.json"]
    assert list(store.list_files("z/")) == []
    assert list(store.list_files("nothing/")) == []


def test_delete_takes_what_it_is_told_and_no_more(store: ObjectStore) -> None:
    """A missing key is no error, a folder's name deletes nothing, and a name is free again afterwards."""
    put_all(store, ["d/1", "d/2", "d/e/f/1", "other"])
    store.delete([])
    store.delete(["d/1", "d/1", "d", "d/e", "nothing", "other/below"])
    assert keys_of(store) == ["d/2", "d/e/f/1", "other"]
    store.delete(iter(["d/e/f/1", "d/2"]))
    assert keys_of(store) == ["other"]
    assert store.put_if_absent("d/1", b"anew") is PutResult.CREATED
    assert store.get("d/1") == b"anew"


def test_puts_and_deletes_in_one_folder_do_not_disturb_each_other(store: ObjectStore) -> None:
    """While others empty the folder over and over, no put fails and no object gets lost."""

    def churn(worker: int) -> list[str]:
        kept = []
        for number in range(25):
            gone, stays = f"x/y/{worker}-{number}-gone", f"x/y/z/{worker}-{number}-stays"
            assert store.put_if_absent(gone, b"1") is PutResult.CREATED
            store.delete([gone])
            if number % 5 == 0:
                assert store.put_if_absent(stays, b"1") is PutResult.CREATED
                kept.append(stays)
                store.delete([kept.pop(0)])
            assert store.put_if_absent(stays + "2", b"1") is PutResult.CREATED
            if number < 24:
                store.delete([stays + "2"])
            else:
                kept.append(stays + "2")
        return kept

    with ThreadPoolExecutor(6) as pool:
        kept = [key for part in pool.map(churn, range(6)) for key in part]
    assert keys_of(store, "x/") == sorted(kept)


def test_what_was_written_is_there_for_everybody_at_once(store: ObjectStore) -> None:
    """Read, head and listing after write, from another thread."""

    def check(number: int) -> bool:
        key = f"seen/{number}"
        store.put_if_absent(key, b"%d" % number)
        with ThreadPoolExecutor(1) as other:
            return other.submit(lambda: (store.get(key), keys_of(store, key))).result() == (b"%d" % number, [key])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(100, 140)))


def test_a_large_object(store: ObjectStore) -> None:
    """It is created whole and once, and leaves no unfinished upload."""
    body = secrets.token_bytes(11 * MIB + 17)
    assert store.put_if_absent("large/object", memoryview(body)) is PutResult.CREATED
    assert store.put_if_absent("large/object", body[: 6 * MIB]) is PutResult.EXISTS
    assert store.get("large/object") == body
    assert store.get("large/object", start=5 * MIB - 3, end=5 * MIB + 3) == body[5 * MIB - 3 : 5 * MIB + 3]
    assert [info.size for info in store.list("large/")] == [len(body)]
    assert list(store.list_uploads("")) == []


def test_of_several_writers_of_a_large_object_one_creates(store: ObjectStore) -> None:
    """The condition holds where parts are put together, too."""
    assert store.probe("") == ()
    bodies = [bytes([number]) * (6 * MIB) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda body: store.put_if_absent("large/race", body), bodies))
    winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is PutResult.CREATED]
    assert len(winners) == 1
    assert store.get("large/race") == winners[0]
    assert list(store.list_uploads("large/")) == []


def test_unfinished_uploads_are_found_and_aborted(store: ObjectStore, backend: Backend) -> None:
    """They are no objects; aborting takes one at a time, and twice is no error."""
    if backend.begin_upload is None:
        assert list(store.list_uploads("")) == []
        return
    for key in ("up/a/1", "up/a/1", "up/b/2+3=4", "other/1"):
        backend.begin_upload(store, key)
    assert keys_of(store) == []
    found = list(store.list_uploads("up/"))
    assert sorted(upload.key for upload in found) == ["up/a/1", "up/a/1", "up/b/2+3=4"]
    if backend.dates_uploads:
        assert all(abs(upload.initiated - store.now()) < timedelta(seconds=30) for upload in found)
    first = next(upload for upload in found if upload.key == "up/a/1")
    store.abort_upload(first)
    store.abort_upload(first)
    assert sorted(upload.key for upload in store.list_uploads("up/")) == ["up/a/1", "up/b/2+3=4"]
    for upload in store.list_uploads(""):
        store.abort_upload(upload)
    assert list(store.list_uploads("")) == []
    assert store.put_if_absent("up/a/1", b"x") is PutResult.CREATED


def test_the_clock_is_sane(store: ObjectStore) -> None:
    """UTC, near this host's, and it goes forward."""
    moments = [store.now() for _ in range(100)]
    assert moments == sorted(moments)
    assert moments[0].utcoffset() == timedelta(0)
    assert abs(moments[-1] - datetime.now(UTC)) < timedelta(seconds=30)


def test_the_probe_leaves_nothing(store: ObjectStore) -> None:
    """Its objects are gone afterwards, and it can run from several processes at once."""
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(store.probe, ["", "p", "p/q/"])) == [(), (), ()]
    assert keys_of(store) == []
    assert list(store.list_uploads("")) == []


BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "a/./b", ".hidden/a", ".tandem-uploads/x",
    "a\0b", "a\nb", "a\\b", "\ud800", "x" * 1025,
]  # fmt: skip


def test_no_key_leaves_the_root(store: ObjectStore) -> None:
    """Every method refuses such a key before it does anything."""
    store.put_if_absent("good", b"x")
    for key in BAD_KEYS:
        upload = UploadInfo(key=key, upload_id=key, initiated=datetime.now(UTC))
        for call in (
            lambda key=key: store.put_if_absent(key, b"x"),
            lambda key=key: store.get(key),
            lambda key=key: store.head(key),
            lambda key=key: store.delete([key]),
            lambda upload=upload: store.abort_upload(upload),
        ):
            with pytest.raises(BadKeyError):
                call()
    assert keys_of(store) == ["good"]


def test_no_prefix_leaves_the_root(store: ObjectStore) -> None:
    """Nor can a listing or a probe."""
    for prefix in ("/", "/a", "a//", "../", "a/../", "./", ".hidden/", "a\0", "a\\"):
        for call in (
            lambda prefix=prefix: list(store.list(prefix)),
            lambda prefix=prefix: list(store.list_folders(prefix)),
            lambda prefix=prefix: list(store.list_files(prefix)),
            lambda prefix=prefix: list(store.list_uploads(prefix)),
            lambda prefix=prefix: store.probe(prefix),
        ):
            with pytest.raises(BadKeyError):
                call()


def test_a_missing_root_is_told_apart_from_an_empty_one(backend: Backend) -> None:
    """No method takes a missing bucket or folder for an empty store; the message says what to do."""
    store = backend.open_missing()
    for call in (
        lambda: store.put_if_absent("a/b", b"x"),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list("")),
        lambda: list(store.list_folders("")),
        lambda: list(store.list_files("")),
        lambda: list(store.list_uploads("")),
        lambda: store.delete(["a"]),
        lambda: store.probe(""),
    ):
        with pytest.raises(StoreMissingError, match=r"\(.+\)"):
            call()
    store.close()


@pytest.mark.parametrize("length", [174, 249])
def test_the_data_of_any_topic_has_a_place(store: ObjectStore, length: int) -> None:
    """Kafka takes topic names of 249 letters, file systems and servers on them 255 bytes between two slashes."""
    place = {"topic": "t" * length, "partition": 12, "first": 0, "last": 9}
    keys = [
        make(("shop", "a", 7), nonce=layout.marked("0" * 16, "a" * 7), **place)
        for make in (layout.data_key, layout.swept_key)
    ]
    put_all(store, keys)
    assert sorted(keys_of(store, layout.data_prefix("shop", "a", 7))) == sorted(keys)
    store.delete(keys)
    assert keys_of(store) == []
