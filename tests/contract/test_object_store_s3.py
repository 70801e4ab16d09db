"""What S3 stores do beside the common contract: access, checksums, encryption, versions, long listings of uploads.

On the sandbox's S3 server where it can do it, else on moto.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tandem.backup_avro.errors import ConfigError
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store import ObjectStore, PutResult, StoreAccess, StoreDeniedError, StoreMissingError
from tandem.sink.store.contract.lifecycle_rules import lifecycle_rules
from tandem.sink.store.open_store import open_adapter
from tandem.sink.store.signed_store import SignedStore

MIB = 1024 * 1024
Opener = Callable[..., ObjectStore]


@pytest.fixture
def seaweedfs(s3: S3Server) -> Iterator[Opener]:
    """A function that opens a store at one prefix of the sandbox's S3 server, with the settings to try."""
    prefix = secrets.token_hex(6)
    opened: list[ObjectStore] = []

    def open_with(**more: Any) -> ObjectStore:
        chosen: dict[str, Any] = {
            "endpoint_url": s3.endpoint_url,
            "access_key_id": s3.key.access_key,
            "secret_access_key": s3.key.secret_key,
        }
        opened.append(open_adapter(f"s3://{s3.bucket}/{prefix}", StoreAccess(**(chosen | more))))
        return opened[-1]

    yield open_with
    for store in opened:
        store.close()


@pytest.fixture
def moto_client(moto_url: str) -> Iterator[Any]:
    """A plain client of moto, to look at what was stored and to set up buckets."""
    client = boto3.client(
        "s3", endpoint_url=moto_url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="thing"
    )
    yield client
    client.close()


def open_on_moto(moto_url: str, bucket: str, **more: Any) -> ObjectStore:
    """A store at the root of a bucket of moto."""
    settings = StoreAccess(endpoint_url=moto_url, access_key_id="any", secret_access_key="thing", **more)
    return open_adapter(f"s3://{bucket}", settings)


def test_a_wrong_secret_is_denied(seaweedfs: Opener) -> None:
    """By every method, with the remedy, and without showing either secret."""
    wrong = secrets.token_urlsafe(20)
    store = seaweedfs(secret_access_key=wrong)
    for call in (
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list("")),
        lambda: list(store.list_uploads("")),
        lambda: store.delete(["a"]),
        lambda: store.probe("p"),
    ):
        with pytest.raises(StoreDeniedError, match=r"SignatureDoesNotMatch.*\(check access_key_id") as caught:
            call()
        assert wrong not in str(caught.value)


def test_an_unknown_key_is_denied(seaweedfs: Opener) -> None:
    """The user is told which of the two is wrong as far as the store tells."""
    with pytest.raises(StoreDeniedError, match=r"InvalidAccessKeyId.*\(check access_key_id"):
        seaweedfs(access_key_id="nobody").put_if_absent("a", b"x")


def test_a_wrong_bucket_is_missing(s3: S3Server) -> None:
    """The message has the bucket, the address and what to do."""
    settings = StoreAccess(
        endpoint_url=s3.endpoint_url, access_key_id=s3.key.access_key, secret_access_key=s3.key.secret_key
    )
    store = open_adapter("s3://no-such-bucket/x", settings)
    with pytest.raises(StoreMissingError, match=rf"'no-such-bucket' at {s3.endpoint_url}: .*\(create the bucket"):
        store.probe("p")
    store.close()


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_every_checksum_setting_works(seaweedfs: Opener, checksums: str) -> None:
    """Small and large objects, written and read back, ranges too."""
    store = seaweedfs(checksums=checksums)
    large = secrets.token_bytes(6 * MIB)
    for key, body in {"small": b"0123456789", "empty": b"", "large": large}.items():
        assert store.put_if_absent(key, body) is PutResult.CREATED
        assert store.get(key) == body
        assert store.get(key, start=3, end=8) == body[3:8]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {}),
        ({"server_side_encryption": "AES256"}, {"ServerSideEncryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "kms_key_id": "alias/backup"},
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/backup"},
        ),
    ],
)
def test_encryption_is_asked_for(
    moto_url: str, moto_client: Any, settings: dict[str, Any], wanted: dict[str, str]
) -> None:
    """For small objects and large ones."""
    bucket = f"sse-{secrets.token_hex(4)}"
    moto_client.create_bucket(Bucket=bucket)
    store = open_on_moto(moto_url, bucket, **settings)
    store.probe("p")
    for key, body in {"small": b"x", "large": bytes(6 * MIB)}.items():
        assert store.put_if_absent(key, body) is PutResult.CREATED
        answer = moto_client.head_object(Bucket=bucket, Key=key)
        found = {name: answer[name] for name in ("ServerSideEncryption", "SSEKMSKeyId") if name in answer}
        # A bucket encrypts with AES256 by default.
        assert found == (wanted or {"ServerSideEncryption": "AES256"}) or (not wanted and found == {})
    store.close()


def test_rules_that_take_the_backup_away_are_warned_of(moto_url: str, moto_client: Any) -> None:
    """Once there is one; a rule for what nobody needs any more is none."""
    moto_client.create_bucket(Bucket="expiring")
    store = open_on_moto(moto_url, "expiring")
    assert (store.probe("p/"), lifecycle_rules(store, "p/")) == ((), ())
    rules: list[dict[str, Any]] = [
        {"ID": "tidy", "NoncurrentVersionExpiration": {"NoncurrentDays": 3}},
        {"ID": "save money", "Expiration": {"Days": 30}},
    ]
    moto_client.put_bucket_lifecycle_configuration(
        Bucket="expiring",
        LifecycleConfiguration={"Rules": [{"Status": "Enabled", "Filter": {"Prefix": ""}} | rule for rule in rules]},
    )
    (warning,) = store.probe("p/")
    assert "'save money' deletes, 30 days after they were written, objects of the whole bucket" in warning
    assert [rule.name for rule in lifecycle_rules(SignedStore(store, StoreAccess()), "p/") or ()] == ["save money"]
    store.close()


def test_a_versioned_bucket_is_warned_of(moto_url: str, moto_client: Any) -> None:
    """There a delete hides the object, and its name can be created again; the operator must know."""
    moto_client.create_bucket(Bucket="versioned")
    moto_client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    store = open_on_moto(moto_url, "versioned")
    (warning,) = store.probe("p")
    assert "versioning is on" in warning
    assert store.put_if_absent("a", b"1") is PutResult.CREATED
    assert store.put_if_absent("a", b"2") is PutResult.EXISTS
    store.delete(["a"])
    assert store.head("a") is None
    assert [info.key for info in store.list("")] == []
    assert store.put_if_absent("a", b"3") is PutResult.CREATED
    assert store.get("a") == b"3"
    store.close()


def test_more_uploads_than_the_store_lists_at_once(seaweedfs: Opener) -> None:
    """This server can't go on after a page: what it tells is aborted, and listed again until nothing is left."""
    store: Any = seaweedfs()
    list_page = store._client.list_multipart_uploads
    for number in range(7):
        store._client.create_multipart_upload(Bucket=store._bucket, Key=f"{store._root}u/{number % 4}")
    store._client.list_multipart_uploads = lambda **arguments: list_page(**arguments, MaxUploads=2)
    aborted = []
    while found := list(store.list_uploads("u/")):
        for upload in found:
            store.abort_upload(upload)
        aborted += [upload.key for upload in found]
    assert sorted(aborted) == ["u/0", "u/0", "u/1", "u/1", "u/2", "u/2", "u/3"]


def test_markers_of_folders_are_no_objects(seaweedfs: Opener) -> None:
    """Consoles make empty objects whose key ends in a slash; they can't be named here and don't show."""
    store: Any = seaweedfs()
    store._client.put_object(Bucket=store._bucket, Key=f"{store._root}f/", Body=b"")
    store.put_if_absent("f/a", b"x")
    assert [info.key for info in store.list("")] == ["f/a"]
    assert list(store.list_folders("")) == ["f"]


def test_the_prefix_keeps_stores_apart(s3: S3Server) -> None:
    """A store sees its own prefix only; one prefix being the beginning of another makes no difference."""
    settings = StoreAccess(
        endpoint_url=s3.endpoint_url, access_key_id=s3.key.access_key, secret_access_key=s3.key.secret_key
    )
    base = secrets.token_hex(6)
    one = open_adapter(f"s3://{s3.bucket}/{base}/pair", settings)
    two = open_adapter(f"s3://{s3.bucket}/{base}/pair2/", settings)
    one.put_if_absent("x/1", b"one")
    two.put_if_absent("x/2", b"two")
    assert [info.key for info in one.list("")] == ["x/1"]
    assert [info.key for info in two.list("")] == ["x/2"]
    one.delete(["x/2"])
    assert two.get("x/2") == b"two"
    one.close()
    two.close()


def sent_by(store: ObjectStore) -> list[dict[str, str]]:
    """Keep the headers of every request of a store from now on, under their names in small letters."""
    sent: list[dict[str, str]] = []

    def keep(request: Any, **_: object) -> None:
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        sent.append(headers | {":method": request.method, ":url": request.url})

    client: Any = store
    client._client.meta.events.register("before-send.s3", keep)
    return sent


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"server_side_encryption": "AES256"}, {"": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "kms_key_id": "alias/backup", "bucket_key": True},
            {"": "aws:kms", "-aws-kms-key-id": "alias/backup", "-bucket-key-enabled": "true"},
        ),
        ({"server_side_encryption": "aws:kms:dsse"}, {"": "aws:kms:dsse"}),
    ],
)
def test_headers_of_encryption(
    moto_url: str, moto_client: Any, settings: dict[str, Any], wanted: dict[str, str]
) -> None:
    """On every put, and on nothing else: S3 refuses them there."""
    bucket = f"sse-{secrets.token_hex(4)}"
    moto_client.create_bucket(Bucket=bucket)
    store: Any = open_on_moto(moto_url, bucket, **settings)
    sent = sent_by(store)
    prefix = "x-amz-server-side-encryption"
    for key, body in {"small": b"x", "large": bytes(6 * MIB)}.items():
        assert store.put_if_absent(key, body) is PutResult.CREATED
        assert store.get(key) == body
    store.delete(["small"])
    for headers in sent:
        found = {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}
        assert found == (wanted if headers[":method"] == "PUT" else {}), headers[":url"]
    assert len(sent) == 5
    store.close()


@pytest.mark.parametrize("checksums", ["when_supported", "when_required", "off"])
def test_headers_of_checksums(seaweedfs: Opener, checksums: str) -> None:
    """With `when_supported` on puts too, with `when_required` only where S3 wants one, with `off` nowhere."""
    store = seaweedfs(checksums=checksums)
    sent = sent_by(store)
    assert store.put_if_absent("a", b"123456789") is PutResult.CREATED
    assert store.get("a") == b"123456789"
    assert [info.key for info in store.list("")] == ["a"]
    store.delete(["a", "b"])
    assert list(store.list("")) == []
    marked = {
        headers[":method"]
        for headers in sent
        if any(name.startswith("x-amz-checksum-") or name == "content-md5" for name in headers if "mode" not in name)
    }
    assert marked == {"when_supported": {"PUT", "POST"}, "when_required": {"POST"}, "off": set()}[checksums]


@pytest.mark.parametrize(("style", "host"), [("path", "s3.example.org/bucket/"), ("virtual", "bucket.s3.example.org/")])
def test_addresses(style: str, host: str) -> None:
    """The bucket is in the path or in the host name."""
    store: Any = open_adapter(
        "s3://bucket",
        StoreAccess(
            endpoint_url="https://s3.example.org",
            addressing_style=style,  # type: ignore[arg-type]
            access_key_id="a",
            secret_access_key="b",
        ),
    )
    url = store._client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    assert url.startswith(f"https://{host}k?")
    store.close()


def test_temporary_credentials(moto_url: str, moto_client: Any) -> None:
    """A session token goes with each request."""
    moto_client.create_bucket(Bucket="temporary")
    store = open_on_moto(moto_url, "temporary", session_token="of-a-session")
    sent = sent_by(store)
    store.put_if_absent("a", b"x")
    assert [headers["x-amz-security-token"] for headers in sent] == ["of-a-session"]
    store.close()


def test_an_authority_of_its_own(moto_tls: tuple[str, str], moto_client: Any, tmp_path: Path) -> None:
    """`ca_bundle` vouches for a server that nobody else vouches for; without it the error names it."""
    url, pem = moto_tls
    moto_client.create_bucket(Bucket="private")
    bundle = tmp_path / "ca.pem"
    bundle.write_text(pem)
    store = open_on_moto(url, "private", ca_bundle=str(bundle))
    assert store.put_if_absent("a", b"x") is PutResult.CREATED
    store.close()
    stranger = open_on_moto(url, "private", attempts=1)
    with pytest.raises(StoreDeniedError, match=r"\(set ca_bundle"):
        stranger.get("a")
    stranger.close()
    with pytest.raises(ConfigError, match="ca_bundle: /nowhere: no such file"):
        open_on_moto(url, "private", ca_bundle="/nowhere")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"bucket_key": True}, "bucket_key"),
        ({"bucket_key": True, "server_side_encryption": "aws:kms:dsse"}, "bucket_key"),
        ({"kms_key_id": "x", "server_side_encryption": "AES256"}, "kms_key_id"),
    ],
)
def test_contradictions(settings: dict[str, Any], word: str) -> None:
    """What would have no effect is refused."""
    with pytest.raises(ConfigError, match=word):
        StoreAccess(**settings)
